//! Starts one rank. Between fork and exec, only system calls are allowed.
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

/// The conditions under which a rank runs, in addition to its program.
#[derive(Debug)]
pub(crate) struct SpawnConditions<'a> {
    /// The account of the rank, if it differs from that of this process.
    pub(crate) account: Option<&'a Account>,
    /// The file by which the rank must join its cgroup, if it has one.
    pub(crate) procs: Option<&'a File>,
    /// The working directory; empty for that of this process.
    pub(crate) workdir: &'a str,
}

/// Starts `command` under these conditions, as the leader of its own process group. The process is
/// killed when this process ends.
pub(crate) fn spawn(mut command: Command, conditions: &SpawnConditions<'_>) -> io::Result<Child> {
    let workdir = CString::new(conditions.workdir)?;
    let procs: Option<RawFd> = conditions.procs.map(AsRawFd::as_raw_fd);
    let identity = conditions.account.map(|account| {
        let groups: Vec<Gid> = account.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        (Uid::from_raw(account.uid), Gid::from_raw(account.gid), groups)
    });
    let parent = rustix::process::getpid();
    let prepare = move || prepare(procs, identity.as_ref(), &workdir, parent);
    // SAFETY: `prepare` only makes system calls with values that were made before. It neither
    // allocates nor locks.
    unsafe { command.pre_exec(prepare) };
    command.process_group(0).spawn()
}

/// Prepares the child before exec. The working directory must be entered last, because the user's
/// permissions apply to it.
fn prepare(
    procs: Option<RawFd>,
    identity: Option<&(Uid, Gid, Vec<Gid>)>,
    workdir: &CString,
    parent: Pid,
) -> io::Result<()> {
    if let Some(procs) = procs {
        // SAFETY: the parent keeps the file open, and so does the child's copy; the bytes are a
        // constant.
        if unsafe { libc::write(procs, b"0".as_ptr().cast(), 1) } != 1 {
            return Err(io::Error::last_os_error());
        }
    }
    if let Some((uid, gid, groups)) = identity {
        // These calls affect the calling thread, which is the only one.
        set_thread_groups(groups)?;
        set_thread_res_gid(*gid, *gid, *gid)?;
        set_thread_res_uid(*uid, *uid, *uid)?;
    }
    umask(Mode::from_raw_mode(0o022));
    // This call must follow the change of user, which resets the setting. If the parent has ended
    // before the call, the kernel sends no signal, so the child must check.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(parent) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    if !workdir.is_empty() {
        rustix::process::chdir(workdir.as_c_str())?;
    }
    Ok(())
}

/// Blocks SIGCHLD, and returns a signalfd(2) that becomes readable when children have ended.
/// Programs that are executed do not inherit it.
pub(crate) fn child_ends() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialized before it is used, and its address is valid throughout.
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
        // The descriptor has no other owner.
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}
