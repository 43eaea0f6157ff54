//! How often a rank polls a condition before it sleeps.

use nix::unistd::{getpid, getsid};
use std::num::NonZero;

/// What is waited for is looked at this often before the rank sleeps, if there are processors enough for all ranks.
const SPINS: u32 = 20_000;

/// If not, a rank that spins keeps another one from its work: it spins a few times, and yields the processor before each further look.
const SPINS_CROWDED: u32 = 20;
const YIELDS: u32 = 200;

/// How a rank spins for what others do before it sleeps: to be woken takes longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpinPolicy {
    spins: u32,
    yields: u32,
}

impl SpinPolicy {
    /// That of a rank of as many in a segment.
    pub(super) fn among(ranks: usize) -> SpinPolicy {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        if ranks <= processors {
            return SpinPolicy { spins: SPINS, yields: 0 };
        }
        // Ranks that were not started as one job may be sessions of their own, among which Linux shares the processors (autogroups):
        // who yields then yields to nobody, and spins on for its time slice. In a container the leader of the session may be a process
        // outside: it then has the number 0 here, which rustix's `getsid` has no place for.
        let apart = getsid(None) == Ok(getpid());
        SpinPolicy { spins: SPINS_CROWDED, yields: if apart { 0 } else { YIELDS } }
    }

    /// Whether what is looked for is there before it is time to sleep.
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
    fn a_rank_looks_as_often_as_it_may_and_no_longer_than_it_has_to() {
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
    fn ranks_with_a_processor_each_yield_it_to_nobody() {
        assert_eq!(SpinPolicy::among(1).yields, 0);
        assert!(SpinPolicy::among(1).spins > SpinPolicy::among(usize::MAX).spins);
    }
}
