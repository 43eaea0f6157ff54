//! Checkpoints of Map-Collective jobs, whoever wrote them: a job goes on from one that is whole, and names any other.
#![cfg_attr(fuzzing, no_main)]

use cool_fuzz::File;
use cool_map::{Checkpoint, Error, Job, Next, Options, Progress};

thread_local! {
    static FILE: File = File::new();
}

fn check(bytes: &[u8]) {
    FILE.with(|file| {
        let path = file.holding(bytes).to_owned();
        let checkpoint = Checkpoint { path, run: "fuzz".into(), resume: true };
        let options = Options { checkpoint: Some(&checkpoint), ..Options::default() };
        let mut progress = Progress::<Vec<(String, u16)>>::new();
        let step = |_: &_, _| -> Result<Next<_>, Error> { unreachable!("there are to be no iterations") };
        match Job::alone(&options).iterate(&mut progress, 0, || Ok(Vec::new()), step) {
            Ok(()) => assert!(progress.state().is_some_and(|state| state.len() <= bytes.len())),
            Err(refused) => file.assert_named(&refused),
        }
    });
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    FILE.with(|file| {
        let path = file.holding(&[]).to_owned();
        let checkpoint = Checkpoint { path: path.clone(), run: "fuzz".into(), resume: false };
        let options = Options { checkpoint: Some(&checkpoint), ..Options::default() };
        let step =
            |state: &Vec<_>, i| Ok::<_, Error>(Next::Again([&state[..], &[(format!("s{i}"), 300)]].concat()));
        let mut progress = Progress::new();
        Job::alone(&options).iterate(&mut progress, 3, || Ok(Vec::new()), step).expect("iterated");
        vec![std::fs::read(path).expect("read"), b"{}\n".to_vec()]
    })
}

cool_fuzz::target!(10_000);
