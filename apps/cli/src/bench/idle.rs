//! Idle time of this machine's CPUs, because on a busy machine a benchmark measures the CPUs
//! instead of the network.

/// CPU time since the machine started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuTicks {
    idle: u64,
    all: u64,
}

impl CpuTicks {
    /// Reads the current values.
    pub(crate) fn now() -> std::io::Result<CpuTicks> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        CpuTicks::parse(&stat)
            .ok_or_else(|| std::io::Error::other("/proc/stat does not start with CPU times"))
    }

    /// Parses the line `cpu user nice system idle iowait irq softirq steal guest guest_nice`
    /// (proc(5)), where user includes guest.
    fn parse(stat: &str) -> Option<CpuTicks> {
        let times = stat.lines().next()?.strip_prefix("cpu ")?;
        let times: Vec<u64> =
            times.split_whitespace().take(8).map(|t| t.parse().ok()).collect::<Option<_>>()?;
        let idle = times.get(3)? + times.get(4)?;
        Some(CpuTicks { idle, all: times.iter().sum() })
    }

    /// Returns the share of idle time until `later`; `None` if no tick has passed.
    pub(crate) fn idle_share(self, later: CpuTicks) -> Option<f64> {
        let (idle, all) = (later.idle.checked_sub(self.idle)?, later.all.checked_sub(self.all)?);
        (all > 0).then(|| idle as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_includes_waiting_for_disks() {
        let first = CpuTicks::parse("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3 4\n").unwrap();
        let later = CpuTicks::parse("cpu  150 0 50 840 60 0 0 0 9 0\n").unwrap();
        assert_eq!(first.idle_share(later), Some(0.5));
        assert_eq!(first.idle_share(first), None);
        assert_eq!(CpuTicks::parse("intr 5"), None);
        assert_eq!(CpuTicks::parse("cpu  1 2 x 4 5"), None);
    }

    #[test]
    fn this_machine_has_cpu_times() {
        assert!(CpuTicks::now().is_ok());
    }
}
