//! The signal mask of the library's threads.

#![allow(unsafe_code, reason = "no dependency of this crate offers the two functions of the C library")]

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The signal mask of this thread, which is restored when this is dropped.
struct SavedMask(libc::sigset_t);

impl SavedMask {
    /// Blocks all signals in this thread. Returns the mask before, or `None` if it cannot be
    /// changed.
    fn block_all() -> Option<SavedMask> {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: memory for two sets, of which the first call initializes one, and the second call
        // the other if it succeeds.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            let code = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            (code == 0).then(|| SavedMask(before.assume_init()))
        }
    }
}

impl Drop for SavedMask {
    fn drop(&mut self) {
        // SAFETY: a valid set; no memory for the current one.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Executes `start` while this thread blocks all signals. Threads that it starts inherit the mask,
/// so the system delivers the signals of the process to the program's threads only. A program may
/// therefore wait for a signal in one thread (`sigwait`), or jump out of a signal handler.
#[doc(hidden)]
pub fn with_signals_blocked<R>(start: impl FnOnce() -> R) -> R {
    let _saved = SavedMask::block_all();
    start()
}

/// Lets the process that a command starts receive all signals, although this thread may block them.
/// Otherwise the process and its children could only be killed.
pub(crate) fn unblock_signals(command: &mut Command) {
    let unblock = || {
        let mut none = MaybeUninit::uninit();
        // SAFETY: memory for a set, which the first call initializes.
        unsafe {
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: both functions may be called between fork and exec (signal-safety(7)).
    unsafe { command.pre_exec(unblock) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the blocked signals of this thread, of which signal n is bit n - 1.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }

    #[test]
    fn a_started_process_receives_signals_that_its_starter_blocks() {
        let mut command = Command::new("grep");
        command.args(["SigBlk", "/proc/self/status"]);
        unblock_signals(&mut command);
        let output = with_signals_blocked(|| command.output()).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "SigBlk:\t0000000000000000\n");
    }

    #[test]
    fn started_threads_block_signals_and_their_starter_does_not() {
        let before = blocked();
        let started = with_signals_blocked(|| std::thread::spawn(blocked)).join().unwrap();
        for signal in [libc::SIGUSR1, libc::SIGALRM, libc::SIGINT, libc::SIGTERM] {
            assert_ne!(started & 1 << (signal - 1), 0, "signal {signal}");
        }
        assert_eq!(blocked(), before);
    }
}
