//! The descendants of this process, for systems without cgroups. This process is their subreaper
//! (prctl(2)), so that processes become its children when their parents have ended.

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process, wait, waitid,
};
use std::collections::BTreeSet;
use std::fs;
use std::io;

/// A process, as proc(5) describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    /// Whether it has ended and its parent has not waited for it yet.
    zombie: bool,
}

/// Parses a `stat` file of proc(5). The fields follow the program's name, which may contain any
/// characters.
fn read(stat: &str) -> Option<Process> {
    let pid = stat.split(' ').next()?.parse().ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    let zombie = rest.next()? == "Z";
    Some(Process { pid, parent: rest.next()?.parse().ok()?, zombie })
}

/// Returns all processes of the system. Processes that end meanwhile may be missing.
fn all() -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            let stat = fs::read_to_string(format!("/proc/{}/stat", name.display())).unwrap_or_default();
            found.extend(read(&stat));
        }
    }
    Ok(found)
}

/// Returns the descendants of `ancestor`.
fn below(ancestor: i32, processes: &[Process]) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut parents = vec![ancestor];
    while let Some(parent) = parents.pop() {
        let children = processes.iter().filter(|process| process.parent == parent && process.pid != parent);
        parents.extend(children.map(|child| child.pid).filter(|pid| found.insert(*pid)));
    }
    found
}

/// Reaps the zombies among the children of this process, except for those in `kept`.
pub(crate) fn reap(kept: &BTreeSet<i32>) -> io::Result<()> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let ended = all()?.into_iter().filter(|process| process.parent == own && process.zombie);
    for pid in ended.map(|process| process.pid).filter(|pid| !kept.contains(pid)).filter_map(Pid::from_raw) {
        // An error means that the child has been waited for already.
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
    Ok(())
}

/// Kills all descendants and waits until none is left. `ended` is called for each child of this
/// process, with its number and status. Processes that are forked meanwhile are found in the next
/// round, because each round ends only after a process has.
pub(crate) fn end(mut ended: impl FnMut(i32, WaitStatus)) -> io::Result<()> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    loop {
        for pid in below(own, &all()?).into_iter().filter_map(Pid::from_raw) {
            match kill_process(pid, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(e) => return Err(e.into()),
            }
        }
        match rustix::io::retry_on_intr(|| wait(WaitOptions::empty())) {
            Ok(Some((pid, status))) => ended(pid.as_raw_nonzero().get(), status),
            Ok(None) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_with_any_program_name() {
        let stat = "42 (a) S 1 (b)) Z 7 42 42 0 -1 4194304";
        assert_eq!(read(stat), Some(Process { pid: 42, parent: 7, zombie: true }));
        assert_eq!(read(""), None);
        assert_eq!(read("42 (sh"), None);
    }

    #[test]
    fn descendants_of_descendants_are_found_and_others_are_not() {
        let process = |pid, parent| Process { pid, parent, zombie: false };
        let all = [process(1, 0), process(5, 1), process(6, 5), process(7, 6), process(8, 1), process(9, 8)];
        assert_eq!(below(5, &all), [6, 7].into());
        assert_eq!(below(9, &all), [].into());
    }

    #[test]
    fn this_process_is_among_all() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        assert!(all().unwrap().iter().any(|process| process.pid == own && !process.zombie));
    }
}
