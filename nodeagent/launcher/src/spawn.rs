//! Starts one rank: what has to be done between fork and exec, where only system calls are allowed.
#![allow(unsafe_code, reason = "code between fork and exec, and a signal as a file")]

use crate::account::Account;
use rustix::fs::Mode;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, umask};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// How a rank is to run, beside its program.
#[derive(Debug)]
pub(crate) struct SpawnConditions<'a> {
    /// As whom, unless as this process.
    pub(crate) account: Option<&'a Account>,
    /// In which cgroup: where to say so.
    pub(crate) procs: Option<&'a File>,
    /// Where; empty: where this process is.
    pub(crate) workdir: &'a str,
}

/// Starts `command` under these conditions, as the leader of a process group of its own. It ends with this process.
pub(crate) fn spawn(mut command: Command, conditions: &SpawnConditions<'_>) -> io::Result<Child> {
    let workdir = CString::new(conditions.workdir)?;
    let procs: Option<RawFd> = conditions.procs.map(AsRawFd::as_raw_fd);
    let identity = conditions.account.map(|account| {
        let groups: Vec<Gid> = account.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        (Uid::from_raw(account.uid), Gid::from_raw(account.gid), groups)
    });
    let parent = rustix::process::getpid();
    let prepare = move || prepare(procs, identity.as_ref(), &workdir, parent);
    // SAFETY: `prepare` makes system calls only, on values made before; it neither allocates nor locks.
    unsafe { command.pre_exec(prepare) };
    command.process_group(0).spawn()
}

/// What the child does before its program. Its directory comes last, so that it is entered with the user's rights.
fn prepare(
    procs: Option<RawFd>,
    identity: Option<&(Uid, Gid, Vec<Gid>)>,
    workdir: &CString,
    parent: Pid,
) -> io::Result<()> {
    if let Some(procs) = procs {
        // SAFETY: the parent keeps it open, and so does this copy of it; the bytes are a constant.
        if unsafe { libc::write(procs, b"0".as_ptr().cast(), 1) } != 1 {
            return Err(io::Error::last_os_error());
        }
    }
    if let Some((uid, gid, groups)) = identity {
        // The calls are of the thread, and there is one.
        set_thread_groups(groups)?;
        set_thread_res_gid(*gid, *gid, *gid)?;
        set_thread_res_uid(*uid, *uid, *uid)?;
    }
    umask(Mode::from_raw_mode(0o022));
    // A change of user takes this back, so it comes after; and the parent may have ended before.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(parent) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    if !workdir.is_empty() {
        rustix::process::chdir(workdir.as_c_str())?;
    }
    Ok(())
}

/// Ends of children, as a file that can be read when there are any. Children do not inherit that.
pub(crate) fn child_ends() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is made before it is used, and its address is valid throughout.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let descriptor = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // Nobody else has it.
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}
