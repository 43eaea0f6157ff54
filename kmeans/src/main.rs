//! `cool-kmeans`: the command around the library of the same name.

mod classifying;
mod cli;
mod command;
mod terminal;

use clap::Parser;
use cli::{Cli, make_folder};
use command::{Classify, Command, Program};
use cool_kmeans::bounds::Bounds;
use cool_kmeans::choose::Method;
use cool_kmeans::lloyd::{Clustered, Clustering, Share};
use cool_kmeans::peers::{Peers, surviving};
use cool_kmeans::progress::Progress;
use cool_kmeans::report::{self, Network, Run};
use cool_kmeans::{Error, npy, words};
use std::process::ExitCode;
use std::time::Instant;
use terminal::Terminal;

fn main() -> ExitCode {
    match start(&Program::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In one piece: whoever ends the job at the first failure must not cut it.
            let line = format!("cool-kmeans: {error}\n");
            eprint!("{line}");
            ExitCode::FAILURE
        }
    }
}

fn start(program: &Program) -> Result<(), Error> {
    match (&program.command, &program.fit) {
        (Some(Command::Fit(cli)), _) => fit(cli),
        (None, Some(cli)) => fit(cli),
        (Some(Command::Classify(Classify::Train(train))), _) => {
            on_all_ranks(train.alone(), || |peers: &Peers<'_>| train.run(peers))
        }
        (Some(Command::Classify(Classify::Test(test))), _) => {
            on_all_ranks(test.alone(), || |peers: &Peers<'_>| test.run(peers))
        }
        (None, None) => {
            Err(Error::Input("no input: name pictures, folders, text files or an .npy file".into()))
        }
    }
}

fn fit(cli: &Cli) -> Result<(), Error> {
    on_all_ranks(cli.alone, || {
        let mut kept = Kept::default();
        move |peers: &Peers<'_>| rank(cli, peers, &mut kept)
    })
}

/// Runs as the rank that `cool run` started, as ranks in this process, or alone. `part` makes what a rank does, which it does
/// again whenever others are lost.
fn on_all_ranks<P: FnMut(&Peers<'_>) -> Result<(), Error>>(
    alone: bool,
    part: impl Fn() -> P + Sync,
) -> Result<(), Error> {
    let by_hand = std::env::var_os("COOL_SOCKET").is_none();
    if alone || by_hand && !cfg!(feature = "embedded") {
        return part()(&Peers::alone());
    }
    let results = cool::launch(|comm| surviving(comm, part()))?;
    let errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    let cause = errors.iter().position(|e| !matches!(e, Error::Elsewhere { .. })).unwrap_or(0);
    errors.into_iter().nth(cause).map_or(Ok(()), Err)
}

/// What a rank keeps when others are lost.
#[derive(Default)]
struct Kept {
    start: Option<Instant>,
    share: Option<Share>,
    progress: Progress,
}

/// What each rank does, again whenever others are lost.
fn rank(cli: &Cli, peers: &Peers<'_>, kept: &mut Kept) -> Result<(), Error> {
    let start = *kept.start.get_or_insert_with(Instant::now);
    let threads = cli.threads(peers.on_node().0);
    let how = cli.clustering(threads);
    let terminal = Terminal::new(peers.leads(), how.iterations);
    // What would spoil a long run at its end is better found out before it.
    let ready = if peers.leads() { cli.outputs().try_for_each(|path| make_folder(path)) } else { Ok(()) };
    let loading = peers.agree(ready.and_then(|()| cli.loading(threads)))?;

    let share = Share::renew(&mut kept.share, peers, &loading, &terminal)?;
    let loaded = start.elapsed().as_secs_f64();
    for path in &share.skipped {
        terminal.say(&format!("left out, as it does not decode: {}", path.display()));
    }
    terminal.say(&format!(
        "{} points of {} coordinates, {} ranks of {threads} threads; loaded in {loaded:.1} s",
        share.chosen.len(),
        share.points.dims,
        peers.size()
    ));
    terminal.say(&plan(share, &how));
    let clustered = share.cluster(peers, &how, &terminal, &mut kept.progress)?;
    terminal.finish();

    let found = match cli.words {
        Some(_) => words::find(peers, share, &clustered, cli.word_count, cli.word_points)?,
        None => Vec::new(),
    };
    let network = Network::total(peers)?;
    let write = || {
        if let Some(path) = &cli.words {
            words::write(path, &share.source, &found)?;
        }
        let run = Run { seed: how.seed, threads, loading: loaded, total: start.elapsed().as_secs_f64() };
        finish(cli, peers, share, &clustered, &run, network, &terminal)
    };
    // The others stay until it is done: if rank 0 is lost, one of them does it.
    peers.agree(if peers.leads() { write() } else { Ok(()) })
}

/// What was chosen to make it fast.
fn plan(share: &Share, how: &Clustering) -> String {
    let bounds = match how.effort.near(&share.points, how.k) {
        Some(near) if how.effort.method != Method::Full => {
            let near = near.min(how.k);
            format!("bounds for {near} centroids a point, {} bytes each", Bounds::bytes_per_point(near))
        }
        _ => "no bounds".to_owned(),
    };
    format!("{} instructions; {bounds}", how.effort.level)
}

/// Rank 0's last words and files.
fn finish(
    cli: &Cli,
    peers: &Peers<'_>,
    share: &Share,
    clustered: &Clustered,
    run: &Run,
    network: Network,
    terminal: &Terminal,
) -> Result<(), Error> {
    terminal.say(&format!(
        "{} clusters after {} iterations{}; inertia {}",
        clustered.centroids.len(),
        clustered.iterations.len(),
        if clustered.converged { " (converged)" } else { "" },
        terminal::significant(clustered.inertia)
    ));
    if let Some(path) = &cli.centroids {
        npy::write(path, &share.grid.real(&clustered.centroids), share.points.dims)?;
    }
    if let Some(path) = &cli.summary {
        report::write_json(path, &report::summarise(peers, share, clustered, run, network))?;
    }
    Ok(())
}
