//! Checkpoints of Map-Collective jobs from any source: a job must resume from a valid checkpoint,
//! and an error must name any other file.

use crate::File;
use cool_map::{Checkpoint, Error, Job, Options, Progress};

thread_local! {
    static FILE: File = File::new("");
}

pub(crate) fn check(bytes: &[u8]) {
    FILE.with(|file| {
        let path = file.with_contents(bytes).to_owned();
        let checkpoint = Checkpoint { path, run: "fuzz".into(), resume: true };
        let mut progress = Progress::<Vec<(String, u16)>>::new();
        progress.keep_in(checkpoint);
        let step = |_: &_, _| -> Result<_, Error> { unreachable!("there are to be no iterations") };
        match Job::alone(Options::default()).iterate(&mut progress, || Ok(Vec::new()), |_, _| true, step) {
            Ok(state) => assert!(state.len() <= bytes.len()),
            Err(refused) => file.assert_named(&refused),
        }
    });
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    FILE.with(|file| {
        let path = file.with_contents(&[]).to_owned();
        let checkpoint = Checkpoint { path: path.clone(), run: "fuzz".into(), resume: false };
        let mut progress = Progress::new();
        progress.keep_in(checkpoint);
        let step = |state: &Vec<_>, i| Ok::<_, Error>([&state[..], &[(format!("s{i}"), 300)]].concat());
        let job = Job::alone(Options::default());
        job.iterate(&mut progress, || Ok(Vec::new()), |_, done| done == 3, step).expect("iterated");
        vec![std::fs::read(path).expect("read"), b"{}\n".to_vec()]
    })
}

target!(10_000);
