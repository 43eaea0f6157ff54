//! How often a rank polls a condition before it sleeps.

use nix::unistd::{getpid, getsid};
use std::num::NonZero;

/// Number of polls before the rank sleeps, if there are enough CPUs for all ranks.
const SPINS: u32 = 20_000;

/// Number of polls if there are fewer CPUs than ranks, because a polling rank occupies a CPU that
/// another rank needs.
const SPINS_CROWDED: u32 = 20;
/// Number of further polls in that case. The rank yields its CPU before each of them.
const YIELDS: u32 = 200;

/// How a rank polls before it sleeps, because waking up takes longer than a few polls.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpinPolicy {
    spins: u32,
    yields: u32,
}

impl SpinPolicy {
    /// Returns the policy of a rank that shares a segment with `ranks` ranks.
    pub(super) fn among(ranks: usize) -> SpinPolicy {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        if ranks <= processors {
            return SpinPolicy { spins: SPINS, yields: 0 };
        }
        // Each rank may be a session of its own (setsid(2)), unless the ranks were started as one
        // job. Linux shares the CPUs among sessions (autogroups), so yielding has no effect, and
        // the rank would poll for its whole time slice. In a container the session leader may be an
        // outside process, whose number is 0 here; rustix's `getsid` cannot represent that.
        let apart = getsid(None) == Ok(getpid());
        SpinPolicy { spins: SPINS_CROWDED, yields: if apart { 0 } else { YIELDS } }
    }

    /// Polls the condition. Returns whether it holds before the rank should sleep.
    pub(super) fn poll(self, condition: &dyn Fn() -> bool) -> bool {
        let look = |_| {
            std::hint::spin_loop();
            condition()
        };
        let look_and_yield = |_| {
            std::thread::yield_now();
            condition()
        };
        condition() || (0..self.spins).any(look) || (0..self.yields).any(look_and_yield)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_rank_polls_until_the_condition_holds_or_the_limit() {
        let spins = SpinPolicy { spins: 3, yields: 4 };
        for (comes_after, found, looked) in [(0, true, 1), (2, true, 3), (7, true, 8), (8, false, 8)] {
            let count = Cell::new(0);
            let condition = || count.replace(count.get() + 1) >= comes_after;
            assert_eq!(
                (spins.poll(&condition), count.get()),
                (found, looked),
                "there after {comes_after} looks"
            );
        }
    }

    #[test]
    fn ranks_with_a_cpu_each_do_not_yield() {
        assert_eq!(SpinPolicy::among(1).yields, 0);
        assert!(SpinPolicy::among(1).spins > SpinPolicy::among(usize::MAX).spins);
    }
}
