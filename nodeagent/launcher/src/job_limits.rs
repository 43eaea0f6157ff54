//! Limits for all processes of a job on this node together, so that the job of one user leaves
//! memory and process numbers to the jobs of others.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;

/// A limit as an operator specifies it: `max`, a part of what the machine has, or an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfiguredLimit {
    /// No limit.
    Max,
    /// This many percent of what the machine has.
    Percent(u64),
    /// This amount.
    Amount(u64),
}

/// The text is not a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write max, a part such as 90%, or an amount such as 4096 or 64G (K, M, G and T are powers of 1024)")]
pub struct LimitError;

impl FromStr for ConfiguredLimit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<ConfiguredLimit, LimitError> {
        if text == "max" {
            return Ok(ConfiguredLimit::Max);
        }
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: u64 = digits.parse().map_err(|_| LimitError)?;
        let shift = match &text[digits.len()..] {
            "%" if (1..=100).contains(&number) => return Ok(ConfiguredLimit::Percent(number)),
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(LimitError),
        };
        let amount = number.checked_mul(1 << shift).filter(|amount| *amount > 0);
        amount.map(ConfiguredLimit::Amount).ok_or(LimitError)
    }
}

impl ConfiguredLimit {
    /// Returns the limit on a machine that has this much. `None` means that there is no limit.
    fn of(self, whole: u64) -> Option<u64> {
        match self {
            ConfiguredLimit::Max => None,
            ConfiguredLimit::Percent(percent) => {
                // The result fits, because there are at most 100 percent.
                Some((u128::from(whole) * u128::from(percent) / 100) as u64)
            }
            ConfiguredLimit::Amount(amount) => Some(amount),
        }
    }
}

/// The limits of each job. `None` means that there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobLimits {
    /// Maximum number of processes and threads.
    pub pids: Option<u64>,
    /// Maximum memory in bytes, including files in memory.
    pub memory: Option<u64>,
}

impl JobLimits {
    /// Returns the limits on this machine.
    ///
    /// # Errors
    /// Returns an error if the system does not report the maximum number of its processes.
    pub fn on_this_machine(pids: ConfiguredLimit, memory: ConfiguredLimit) -> io::Result<JobLimits> {
        let read = |name: &str| -> io::Result<u64> {
            let text = fs::read_to_string(Path::new("/proc/sys/kernel").join(name))?;
            text.trim().parse().map_err(io::Error::other)
        };
        let processes = read("pid_max")?.min(read("threads-max")?);
        let system = rustix::system::sysinfo();
        let bytes = system.totalram.saturating_mul(system.mem_unit.into());
        Ok(JobLimits { pids: pids.of(processes), memory: memory.of(bytes) })
    }

    /// Returns whether there are no limits.
    pub fn is_empty(&self) -> bool {
        *self == JobLimits::default()
    }

    /// Permits the limits of cgroups within this one, which must contain no processes itself.
    pub(crate) fn enable(&self, parent: &Path) -> io::Result<()> {
        let controllers = [("+pids", self.pids), ("+memory", self.memory)];
        let enabled: Vec<&str> =
            controllers.into_iter().filter(|(_, limit)| limit.is_some()).map(|(name, _)| name).collect();
        write(parent, "cgroup.subtree_control", &enabled.join(" "))
    }

    /// Sets the limits of a job's cgroup.
    pub(crate) fn apply(&self, cgroup: &Path) -> io::Result<()> {
        for (name, limit) in [("pids.max", self.pids), ("memory.max", self.memory)] {
            if let Some(limit) = limit {
                write(cgroup, name, &limit.to_string())?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for JobLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |limit: Option<u64>| limit.map_or("max".to_owned(), |limit| limit.to_string());
        write!(f, "{} processes, {} bytes", text(self.pids), text(self.memory))
    }
}

/// Writes to a file of a cgroup, which must exist.
fn write(cgroup: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = cgroup.join(name);
    let written = fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
    written.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_amounts_or_parts_of_the_machine() {
        let limit = |text: &str| ConfiguredLimit::from_str(text).map(|limit| limit.of(1000));
        assert_eq!(limit("max"), Ok(None));
        assert_eq!([limit("90%"), limit("100%"), limit("7")], [Ok(Some(900)), Ok(Some(1000)), Ok(Some(7))]);
        assert_eq!([limit("2K"), limit("1T")], [Ok(Some(2048)), Ok(Some(1 << 40))]);
        for text in ["", "%", "0", "0%", "101%", "-1", "1.5G", "4 G", "4GiB", "99999999T", "G"] {
            assert_eq!(limit(text), Err(LimitError), "{text}");
        }
    }

    #[test]
    fn a_job_gets_the_limits_that_are_set() {
        let cgroup = tempfile::tempdir().unwrap();
        let file = |name: &str| cgroup.path().join(name);
        let limits = JobLimits { pids: Some(100), memory: None };
        assert!(limits.apply(cgroup.path()).unwrap_err().to_string().contains("pids.max: "));
        for name in ["cgroup.subtree_control", "pids.max", "memory.max"] {
            fs::write(file(name), "").unwrap();
        }
        limits.enable(cgroup.path()).unwrap();
        limits.apply(cgroup.path()).unwrap();
        let content = |name: &str| fs::read_to_string(file(name)).unwrap();
        let written = ["cgroup.subtree_control", "pids.max", "memory.max"].map(content);
        assert_eq!(written, ["+pids", "100", ""]);
    }
}
