//! Waiting for COOL while the host's MPI library goes on: MPI wants a blocked call to bring forward what others have begun, as a message
//! of which this rank's part is not done. The libraries do so only when they are called, so they are, by a question
//! that changes nothing.

use crate::host::{Handle, Host};
use std::ffi::c_int;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long COOL alone is waited for, before the host's library is asked for the first time.
const FIRST: Duration = Duration::from_micros(200);
/// And at last.
const LAST: Duration = Duration::from_millis(2);

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for what is awaited by a waker.
pub(crate) fn for_future<F: Future>(host: &Host, comm: Handle, future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    progress_until(host, comm, || match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}

/// Has a thread do what takes long and calls no function of MPI, and waits for it; `None` if there is no thread, or it has panicked.
pub(crate) fn for_thread<R: Send + 'static>(
    host: &Host,
    comm: Handle,
    work: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let waiting = thread::current();
    let work = move || {
        // However it ends.
        let _wake = WakeAtEnd(waiting);
        work()
    };
    let thread = thread::Builder::new().name("cool-mpi-join".into()).spawn(work).ok()?;
    progress_until(host, comm, || thread.is_finished().then_some(()));
    thread.join().ok()
}

struct WakeAtEnd(Thread);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

/// Waits until there is something: whoever makes it unparks this thread.
fn progress_until<R>(host: &Host, comm: Handle, mut look: impl FnMut() -> Option<R>) -> R {
    let (mut pause, mut since) = (FIRST, Instant::now());
    loop {
        if let Some(found) = look() {
            return found;
        }
        let waited = since.elapsed();
        if waited < pause {
            thread::park_timeout(pause - waited);
        } else {
            host.progress(comm);
            (pause, since) = (LAST.min(2 * pause), Instant::now());
        }
    }
}

impl Host {
    /// Has the library do what there is to do, by asking whether a message has come. It may attend only to networks that the
    /// communicator needs: `MPI_COMM_WORLD` needs all, but is there only in programs that have called `MPI_Init`.
    fn progress(&self, comm: Handle) {
        // A status has 24 bytes at most in the binary interfaces that there are, and 32 in the standard's.
        let (mut initialized, mut found, mut status): (c_int, c_int, [u64; 8]) = (0, 0, [0; 8]);
        // SAFETY: a place for a number.
        unsafe { (self.functions.initialized)(&raw mut initialized) };
        let comm = if initialized == 0 { comm } else { self.world };
        let (source, tag) = (self.abi.any_source(), self.abi.any_tag());
        // What it returns is of no interest: a library that has failed says so where it is asked for something.
        // SAFETY: a communicator, and places for a number and a status.
        unsafe {
            let status = (&raw mut status).cast();
            (self.functions.iprobe)(source, tag, comm, &raw mut found, status)
        };
    }
}
