//! Properties of a job's processes that separate them from the processes of other jobs, and that
//! they would otherwise inherit from the launcher or the agent.
#![allow(unsafe_code, reason = "no safe function joins a keyring")]

use crate::account::Account;
use rustix::fs::{Gid, Uid, fchown, fstatfs};
use std::fs;
use std::io;
use std::os::fd::AsFd;

/// The file system of pipes without a name.
const PIPEFS_MAGIC: u64 = 0x5049_5045;

/// The operation of keyctl(2) that replaces the session keyring of a process.
const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;

/// The score by which the kernel prefers or spares a process when memory is exhausted (proc(5)).
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// Gives this process a new session keyring (keyrings(7)), which its children inherit. Otherwise
/// the ranks of all users would find each other's keys, for example Kerberos tickets, in the
/// keyring of the launcher.
///
/// # Errors
/// Returns an error if the system refuses, for example because it has no keyrings.
pub(crate) fn join_session_keyring() -> io::Result<()> {
    let unnamed = std::ptr::null::<libc::c_char>();
    // SAFETY: a null pointer is permitted as the name. The call changes no memory of this process.
    match unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, unnamed) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns whether this process is spared when memory is exhausted, as an agent or a launcher may
/// be.
pub(crate) fn is_spared() -> bool {
    let score = fs::read_to_string(OOM_SCORE_ADJ).ok();
    score.and_then(|score| score.trim().parse::<i32>().ok()).is_some_and(|score| score < 0)
}

/// Ends the sparing of this process. An error means that the system has no such setting, because
/// every process may raise its score.
pub(crate) fn end_sparing() {
    let _ = fs::write(OOM_SCORE_ADJ, "0");
}

/// Makes an account the owner of a pipe, so that its processes may open their own output again, for
/// example as /dev/stderr. Files of other kinds keep their owners, because the agent could pass any
/// file that it may open.
///
/// # Errors
/// Returns an error if the system refuses.
pub(crate) fn give_pipe(pipe: impl AsFd, account: &Account) -> io::Result<()> {
    if fstatfs(&pipe)?.f_type as u64 == PIPEFS_MAGIC {
        fchown(&pipe, Some(Uid::from_raw(account.uid)), Some(Gid::from_raw(account.gid)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;

    /// Returns the number of the session keyring of this thread.
    fn session_keyring() -> libc::c_long {
        const KEYCTL_GET_KEYRING_ID: libc::c_int = 0;
        const KEY_SPEC_SESSION_KEYRING: libc::c_int = -3;
        // SAFETY: the call takes numbers only.
        unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 1) }
    }

    #[test]
    fn each_job_has_a_session_keyring_of_its_own() {
        // Each thread has its own credentials, and thus keyrings.
        let keyring =
            || std::thread::spawn(|| join_session_keyring().ok().map(|()| session_keyring())).join().unwrap();
        let [Some(one), Some(other)] = [keyring(), keyring()] else {
            // Some containers forbid keyrings.
            return;
        };
        assert!(one > 0 && one != other && one != session_keyring());
    }

    #[test]
    fn only_pipes_change_their_owner() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let account = Account { uid: 4001, gid: 4101, ..Account::look_up("root").unwrap() };
        let (_read, write) = io::pipe().unwrap();
        give_pipe(&write, &account).unwrap();
        let stat = fstat(&write).unwrap();
        assert_eq!((stat.st_uid, stat.st_gid), (4001, 4101));
        let file = tempfile::tempfile().unwrap();
        give_pipe(&file, &account).unwrap();
        assert_eq!(fstat(&file).unwrap().st_uid, 0);
    }
}
