//! The process at the other end of a Unix socket. Only these functions are sound if that process is
//! in another PID namespace, for example in a container: the system then reports the number 0,
//! which rustix cannot represent.
#![allow(unsafe_code, reason = "no safe function represents a process number of 0")]

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The credentials of a process at the time when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Number of the process. `None` if it is in a PID namespace that this process cannot see.
    pub pid: Option<Pid>,
    /// Number of its user.
    pub uid: u32,
}

/// Returns the credentials of the process at the other end of a Unix socket.
///
/// # Errors
/// Returns an error if the descriptor is not a connected Unix socket.
pub fn credentials(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: the option consists of three numbers, and all values are valid.
    unsafe { read_option(socket.as_fd(), libc::SO_PEERCRED, &mut credentials) }?;
    Ok(PeerCredentials { pid: Pid::from_raw(credentials.pid), uid: credentials.uid })
}

/// Returns a file of the process at the other end of a Unix socket. It becomes readable when the
/// process ends.
///
/// # Errors
/// Returns an error if the process has ended, or if this process cannot see it.
pub fn process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    // SAFETY: the option is a descriptor, and any value is valid.
    if unsafe { read_option(socket.as_fd(), libc::SO_PEERPIDFD, &mut descriptor) }.is_ok() {
        // SAFETY: the system has created the descriptor, which has no other owner.
        return Ok(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    // Before Linux 6.5, the process can be found only by its number.
    let pid = credentials(socket)?.pid.ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
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
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    /// Set in the process that the test starts in a PID namespace of its own.
    const IN_NAMESPACE: &str = "COOL_TEST_IN_PID_NAMESPACE";

    #[test]
    fn a_peer_in_another_pid_namespace_has_no_number() {
        if std::env::var_os(IN_NAMESPACE).is_some() {
            let peer = credentials(io::stdin()).unwrap();
            println!("{}", if peer.pid.is_none() { "no number" } else { "a number" });
            return;
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        let own = PeerCredentials {
            pid: Some(rustix::process::getpid()),
            uid: rustix::process::geteuid().as_raw(),
        };
        assert_eq!(credentials(&ours).unwrap(), own);
        let test = "peer::tests::a_peer_in_another_pid_namespace_has_no_number";
        let output = Command::new("unshare")
            .args(["--user", "--pid", "--fork", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(IN_NAMESPACE, "1")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .output();
        // Some machines do not let tests make namespaces.
        let Ok(output) = output else { return };
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("no number") || errors.contains("unshare failed"), "{text}{errors}");
    }
}
