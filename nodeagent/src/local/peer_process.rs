//! The process that opened a rank's connection. A process that it forked may keep the connection
//! open when it ends, for example a worker that loads data, but the rank has ended then.

use crate::async_socket::AsyncSocket;
use cool_proto::peer;
use rustix::net::Shutdown;
use std::future::poll_fn;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Watches a process until it is dropped.
#[derive(Debug)]
pub(super) struct ProcessWatch {
    _task: JoinSet<()>,
}

/// Watches the process that opened a connection. When the process has ended, nothing more is
/// received after the data that was sent before, as if the connection had been closed.
///
/// Returns `None` if this process cannot see the other one, for example because that is in a
/// container of its own.
pub(super) fn watch(connection: &Arc<AsyncSocket>) -> Option<ProcessWatch> {
    let process = AsyncSocket::new(peer::process(connection.as_fd()).ok()?).ok()?;
    let (mut task, connection) = (JoinSet::new(), Arc::clone(connection));
    task.spawn(async move {
        poll_fn(|context| process.poll_ready(context)).await;
        // An error means that the connection has been closed.
        let _ = rustix::net::shutdown(connection.as_fd(), Shutdown::Read);
    });
    Some(ProcessWatch { _task: task })
}

#[cfg(test)]
#[allow(unsafe_code, reason = "code between fork and exec")]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_connection_ends_with_its_process_if_another_holds_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let held = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let of_child = held.try_clone().unwrap();
        let mut command = Command::new("cat");
        // SAFETY: the call between fork and exec is only a system call.
        unsafe { command.pre_exec(move || Ok(rustix::net::connect(&of_child, &address)?)) };
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        drop(command);
        let (ours, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = Arc::new(AsyncSocket::new(ours).unwrap());
        let _watch = watch(&ours).expect("the process is visible");
        rustix::io::write(&held, b"last").unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        for bytes in [4, 0] {
            let read = ours.read(|socket| Ok(rustix::io::read(socket, &mut [0; 16])?));
            assert_eq!(timeout(PATIENCE, read).await.expect("the connection ends").unwrap(), bytes);
        }
    }
}
