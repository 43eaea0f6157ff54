//! How idle this machine's processors are: a timing on a busy machine says nothing of the network.

/// Processor time since the machine started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    /// Now.
    pub(crate) fn now() -> std::io::Result<Ticks> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        Ticks::parse(&stat)
            .ok_or_else(|| std::io::Error::other("/proc/stat does not start with processor times"))
    }

    /// From the line `cpu user nice system idle iowait irq softirq steal guest guest_nice` (proc(5)); user
    /// includes guest.
    fn parse(stat: &str) -> Option<Ticks> {
        let times = stat.lines().next()?.strip_prefix("cpu ")?;
        let times: Vec<u64> =
            times.split_whitespace().take(8).map(|t| t.parse().ok()).collect::<Option<_>>()?;
        let idle = times.get(3)? + times.get(4)?;
        Some(Ticks { idle, all: times.iter().sum() })
    }

    /// The share that was idle between two times; `None` if no tick has passed.
    pub(crate) fn idle_share(self, later: Ticks) -> Option<f64> {
        let (idle, all) = (later.idle.checked_sub(self.idle)?, later.all.checked_sub(self.all)?);
        (all > 0).then(|| idle as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_what_neither_computes_nor_interrupts() {
        let first = Ticks::parse("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3 4\n").unwrap();
        let later = Ticks::parse("cpu  150 0 50 840 60 0 0 0 9 0\n").unwrap();
        assert_eq!(first.idle_share(later), Some(0.5));
        assert_eq!(first.idle_share(first), None);
        assert_eq!(Ticks::parse("intr 5"), None);
        assert_eq!(Ticks::parse("cpu  1 2 x 4 5"), None);
    }

    #[test]
    fn this_machine_tells() {
        assert!(Ticks::now().is_ok());
    }
}
