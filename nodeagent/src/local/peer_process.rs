//! The process that opened a rank's connection. A process that it forked may keep the connection
//! open when it ends, for example a worker that loads data, but the rank has ended then.
#![allow(unsafe_code, reason = "no safe function returns the process of a socket")]

use crate::async_socket::AsyncSocket;
use rustix::net::Shutdown;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
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
    let process = AsyncSocket::new(process(connection.as_fd()).ok()?).ok()?;
    let (mut task, connection) = (JoinSet::new(), Arc::clone(connection));
    task.spawn(async move {
        poll_fn(|context| process.poll_ready(context)).await;
        // An error means that the connection has been closed.
        let _ = rustix::net::shutdown(connection.as_fd(), Shutdown::Read);
    });
    Some(ProcessWatch { _task: task })
}

/// Returns the process that opened a connection. The file becomes readable when it ends.
fn process(connection: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    // SAFETY: the option is a descriptor, and any value is valid.
    if unsafe { read_option(connection, libc::SO_PEERPIDFD, &mut descriptor) }.is_ok() {
        // SAFETY: the system has created the descriptor, which has no other owner.
        return Ok(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    // Before Linux 6.5, the process can be found only by its number.
    let number = Pid::from_raw(credentials(connection)?.pid).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}

/// Returns the credentials of the process that opened a connection. The process number is 0 if this
/// process cannot see the other one.
pub(super) fn credentials(connection: impl AsFd) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: the option consists of three numbers, and all values are valid.
    unsafe { read_option(connection.as_fd(), libc::SO_PEERCRED, &mut credentials) }?;
    Ok(credentials)
}

/// Reads an option of a socket.
///
/// # Safety
/// All values that the system may write for this option must be valid values of `T`.
unsafe fn read_option<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut size = size_of::<T>() as libc::socklen_t;
    let value: *mut T = value;
    // SAFETY: the system writes at most `size` bytes to `value`, which has that many.
    match unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value.cast(), &raw mut size)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
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
