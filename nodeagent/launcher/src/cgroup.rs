//! A cgroup (version 2) of a job's own, below that of this process: what is started in it stays in it, whatever it forks, and ends
//! with it.

use rustix::event::{PollFd, PollFlags, poll};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A job's cgroup; its owner removes it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// Where processes say that they join.
    procs: File,
    kill: File,
    events: File,
}

impl Cgroup {
    /// Makes one for a job below the cgroup in which this process is.
    ///
    /// # Errors
    /// If this system has no cgroups of version 2 or they are not ours to make; or if they cannot be killed as one (Linux 5.14).
    pub fn make(job: u64) -> io::Result<Cgroup> {
        let here =
            own(&fs::read_to_string("/proc/self/mountinfo")?, &fs::read_to_string("/proc/self/cgroup")?)
                .ok_or_else(|| io::Error::other("this system mounts no cgroups of version 2"))?;
        // Unlike those of other agents below the same cgroup, as in an emulated network.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = here.join(format!("cool-job-{job}-{}-{now}", std::process::id()));
        fs::create_dir(&path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        let write = |name: &str| OpenOptions::new().write(true).open(path.join(name));
        let opened = (|| {
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A process that writes "0" here is in it, and all that it forks.
    pub(crate) fn procs(&self) -> &File {
        &self.procs
    }

    /// Ends all that is in it, waits until nothing is, and removes it.
    ///
    /// # Errors
    /// If the system does not let that happen.
    pub(crate) fn end(mut self) -> io::Result<()> {
        rustix::io::write(&self.kill, b"1")?;
        while self.is_populated()? {
            // The kernel tells of a change after the last read.
            rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&self.events, PollFlags::PRI)], None))?;
        }
        fs::remove_dir(&self.path)
    }

    fn is_populated(&mut self) -> io::Result<bool> {
        let mut text = String::new();
        self.events.rewind()?;
        self.events.read_to_string(&mut text)?;
        Ok(text.lines().any(|line| line == "populated 1"))
    }
}

/// The folder of the cgroup that a process is in, by its `mountinfo` and `cgroup` of proc(5).
fn own(mounts: &str, cgroups: &str) -> Option<PathBuf> {
    let within = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // The last that was mounted may hide others.
    mounts.lines().rev().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // What is mounted may be a part only; a process outside of it shows a path that leads up.
        let below = within.strip_prefix(root.trim_end_matches('/'))?;
        let outside = below.split('/').any(|part| part == "..");
        (!outside).then(|| Path::new(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn what_is_in_it_ends_with_it() {
        let Ok(cgroup) = Cgroup::make(7) else {
            // Not every machine lets tests make cgroups.
            return;
        };
        let path = cgroup.path().to_owned();
        let script = format!("echo 0 > {}/cgroup.procs; setsid sleep 1000 & exec sleep 1000", path.display());
        let mut child = Command::new("/bin/sh").args(["-c", &script]).process_group(0).spawn().unwrap();
        let events = File::open(path.join("cgroup.events")).unwrap();
        while !fs::read_to_string(path.join("cgroup.events")).unwrap().contains("populated 1") {
            poll(&mut [PollFd::new(&events, PollFlags::PRI)], None).unwrap();
        }
        cgroup.end().unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(!path.exists());
    }
}
