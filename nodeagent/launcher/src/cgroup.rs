//! A cgroup (version 2) for one job, below the cgroup of this process. Processes that are started
//! in it stay in it, together with their children, and end with it.

use crate::job_limits::JobLimits;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The name of the cgroup in which the unit of cool-launcher starts it (`DelegateSubgroup=` in
/// deploy/cool-launcher.service). The kernel permits limits only for cgroups in a cgroup without
/// processes, so jobs have limits only if the launcher is in a cgroup of its own.
pub const LAUNCHER_SUBGROUP: &str = "launcher";

/// Permits limits for the cgroups of jobs.
///
/// # Errors
/// Returns an error if the launcher is not in a cgroup with the name [`LAUNCHER_SUBGROUP`], or if
/// the system refuses.
pub fn enable_limits(limits: &JobLimits) -> io::Result<()> {
    if limits.is_empty() {
        return Ok(());
    }
    match parent_of_jobs(&own_cgroup()?) {
        (parent, true) => limits.enable(parent),
        (_, false) => Err(io::Error::other(format!(
            "this process is not in a cgroup named {LAUNCHER_SUBGROUP}, because systemd is older than 254 or has not started it"
        ))),
    }
}

/// Returns the cgroup of this process.
fn own_cgroup() -> io::Result<PathBuf> {
    own(&fs::read_to_string("/proc/self/mountinfo")?, &fs::read_to_string("/proc/self/cgroup")?)
        .ok_or_else(|| io::Error::other("this system mounts no cgroups of version 2"))
}

/// Returns the cgroup in which those of jobs are made by a process in `here`, and whether it may
/// limit them.
fn parent_of_jobs(here: &Path) -> (&Path, bool) {
    match here.parent().filter(|_| here.file_name().is_some_and(|name| name == LAUNCHER_SUBGROUP)) {
        Some(unit) => (unit, true),
        None => (here, false),
    }
}

/// A job's cgroup. Its owner must kill its processes and remove it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// The file `cgroup.procs`, to which a process writes to join.
    procs: File,
    kill: File,
    events: File,
}

impl Cgroup {
    /// Makes a cgroup with these limits for a job, below the cgroup of this process, or beside it
    /// if that is the [`LAUNCHER_SUBGROUP`].
    ///
    /// # Errors
    /// Returns an error if this system has no cgroups of version 2, if this process may not make
    /// one with these limits, or if the kernel cannot kill a cgroup at once (before Linux 5.14).
    pub fn make(job: u64, limits: &JobLimits) -> io::Result<Cgroup> {
        let here = own_cgroup()?;
        let (parent, _) = parent_of_jobs(&here);
        // The name must be unique, because other agents may share the parent cgroup, for example in
        // an emulated network.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = parent.join(format!("cool-job-{job}-{}-{now}", std::process::id()));
        fs::create_dir(&path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        let write = |name: &str| OpenOptions::new().write(true).open(path.join(name));
        let opened = (|| {
            limits.apply(&path)?;
            Ok((write("cgroup.procs")?, write("cgroup.kill")?, File::open(path.join("cgroup.events"))?))
        })();
        match opened {
            Ok((procs, kill, events)) => Ok(Cgroup { path, procs, kill, events }),
            Err(e) => {
                fs::remove_dir(&path)?;
                Err(e)
            }
        }
    }

    /// Returns the path of the cgroup.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file to which a process must write "0" to join, together with all of its later
    /// children.
    pub(crate) fn procs(&self) -> &File {
        &self.procs
    }

    /// Kills all processes in the cgroup.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(rustix::io::write(&self.kill, b"1").map(drop)?)
    }

    /// Returns the file that reports a priority event when the cgroup may have become empty.
    pub(crate) fn events(&self) -> &File {
        &self.events
    }

    /// Returns whether a process is left in the cgroup.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    pub(crate) fn is_populated(&mut self) -> io::Result<bool> {
        let mut text = String::new();
        self.events.rewind()?;
        self.events.read_to_string(&mut text)?;
        Ok(text.lines().any(|line| line == "populated 1"))
    }

    /// Removes the cgroup, in which no process may be left.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    pub(crate) fn remove(self) -> io::Result<()> {
        fs::remove_dir(&self.path)
    }
}

/// Returns the directory of a process's cgroup, from the contents of its files `mountinfo` and
/// `cgroup` (proc(5)). Returns `None` if no mount shows a cgroup of version 2 that contains the
/// process.
fn own(mounts: &str, cgroups: &str) -> Option<PathBuf> {
    let within = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // The search begins with the last mount, because it may hide earlier ones.
    mounts.lines().rev().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // The mount may show only a part of the hierarchy. A process outside of it has a path that
        // leads upwards.
        let below = within.strip_prefix(root.trim_end_matches('/'))?;
        let outside = below.split('/').any(|part| part == "..");
        (!outside).then(|| Path::new(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn the_own_cgroup_is_found_on_pure_and_hybrid_systems() {
        let pure = "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let unit = "0::/system.slice/cool-launcher.service\n";
        assert_eq!(own(pure, unit).unwrap(), Path::new("/sys/fs/cgroup/system.slice/cool-launcher.service"));
        let hybrid = "33 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(own(hybrid, "8:pids:/\n0::/\n").unwrap(), Path::new("/sys/fs/cgroup/unified"));
        let part = "35 24 0:30 /docker/7 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(own(part, "0::/docker/7/a\n").unwrap(), Path::new("/sys/fs/cgroup/a"));
        assert_eq!(own(pure, "0::/../outside\n"), None);
        assert_eq!(own(part, unit), None);
        assert_eq!(own("", unit), None);
    }

    #[test]
    fn jobs_are_beside_the_launcher_if_it_has_a_subgroup() {
        let unit = Path::new("/sys/fs/cgroup/system.slice/cool-launcher.service");
        assert_eq!(parent_of_jobs(&unit.join(LAUNCHER_SUBGROUP)), (unit, true));
        assert_eq!(parent_of_jobs(unit), (unit, false));
        assert_eq!(parent_of_jobs(Path::new("/")), (Path::new("/"), false));
    }

    #[test]
    fn processes_in_a_cgroup_end_with_it() {
        let Ok(mut cgroup) = Cgroup::make(7, &JobLimits::default()) else {
            // Some machines do not let tests make cgroups.
            return;
        };
        let path = cgroup.path().to_owned();
        let script = format!("echo 0 > {}/cgroup.procs; setsid sleep 1000 & exec sleep 1000", path.display());
        let mut child = Command::new("/bin/sh").args(["-c", &script]).process_group(0).spawn().unwrap();
        let changed = |cgroup: &Cgroup| poll(&mut [PollFd::new(cgroup.events(), PollFlags::PRI)], None);
        while !cgroup.is_populated().unwrap() {
            changed(&cgroup).unwrap();
        }
        cgroup.kill().unwrap();
        while cgroup.is_populated().unwrap() {
            changed(&cgroup).unwrap();
        }
        cgroup.remove().unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(!path.exists());
    }
}
