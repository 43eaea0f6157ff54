//! Runtimes of Tokio that report a lack of threads as an error, and that keep a thread for blocking
//! operations.

use std::io;
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Time for which a runtime keeps idle threads: longer than any agent runs.
const KEEP_ALIVE_SECONDS: u64 = 100 * 365 * 24 * 3600;

/// Builds a runtime with `workers` threads, or 0 for a runtime of the current thread, and starts
/// its first thread for blocking operations.
///
/// The runtime keeps this thread, so blocking operations wait while the system refuses to start
/// further threads. A runtime without any such thread panics, which would end the agent of all
/// users of the node.
///
/// # Errors
/// Returns an error if the system refuses what the runtime needs.
pub fn build(builder: &mut Builder, workers: usize) -> io::Result<Runtime> {
    check_threads(workers + 1)?;
    if workers > 0 {
        builder.worker_threads(workers);
    }
    let runtime = builder.enable_all().thread_keep_alive(Duration::from_secs(KEEP_ALIVE_SECONDS)).build()?;
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// Starts this number of threads at the same time and ends them, because Tokio panics if it cannot
/// start its threads, and then waits forever for those that it has started.
fn check_threads(count: usize) -> io::Result<()> {
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write();
    let start = |_| {
        let gate = Arc::clone(&gate);
        thread::Builder::new().spawn(move || drop(gate.read()))
    };
    let threads: io::Result<Vec<_>> = (0..count).map(start).collect();
    drop(closed);
    threads?.into_iter().for_each(|thread| drop(thread.join()));
    Ok(())
}
