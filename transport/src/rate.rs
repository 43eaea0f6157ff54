//! How fast a source multicasts, from what receivers report of each round.
//!
//! Loss alone is no sign of congestion here: a bad cable loses at any rate. What counts is whether more comes
//! through when more is sent, as in BBR (Cardwell et al., ACM Queue 2016), and loss above what the path has
//! shown to lose anyway.

use crate::spec::RateSpec;

/// Loss in 65535ths.
pub(crate) type Loss = u16;
/// Reported when no receiver heard half of a round, so that none could say how much.
pub(crate) const DEAF: Loss = Loss::MAX;

const ALL: u64 = Loss::MAX as u64;
/// Bytes per second without a ceiling and before any report: ten packets in ten milliseconds.
const MODEST: u64 = 1_500_000;
const SLOWEST: u64 = 64 * 1024;
/// Loss beyond what the path loses anyway that is taken for congestion: a sixteenth.
const CONGESTED: u64 = ALL / 16;
/// Rounds over which the path's own loss is the least seen.
const MEMORY: usize = 16;

/// The rate of a source.
#[derive(Debug)]
pub(crate) struct Rate {
    ceiling: Option<u64>,
    current: u64,
    /// While doubling: what came through in the round before, in bytes per second.
    doubling: Option<u64>,
    /// With a ceiling: loss, smoothed.
    smoothed: u64,
    recent: [Loss; MEMORY],
    rounds: usize,
    /// Rounds that began before this chunk were sent at another rate and tell nothing of this one.
    since: u32,
}

impl Rate {
    /// The rate to begin with.
    pub(crate) fn new(spec: RateSpec) -> Rate {
        let current = spec.ceiling.unwrap_or(MODEST).max(1);
        Rate {
            ceiling: spec.ceiling,
            current,
            doubling: Some(0),
            smoothed: 0,
            recent: [0; MEMORY],
            rounds: 0,
            since: 0,
        }
    }

    /// Bytes per second to send at.
    pub(crate) fn current(&self) -> u64 {
        self.current
    }

    /// The driver allows another rate.
    pub(crate) fn set_ceiling(&mut self, ceiling: Option<u64>) {
        self.ceiling = ceiling;
        self.current = match ceiling {
            Some(ceiling) => with_room_for_repair(ceiling, self.smoothed),
            None => self.current,
        };
    }

    /// A round that began with chunk `first` lost so much at the worst receiver that counts; `next` is the
    /// chunk to be sent next.
    pub(crate) fn on_round(&mut self, first: u32, next: u32, loss: Loss) {
        if let Some(ceiling) = self.ceiling {
            // Those who hear less than half are left to the chain.
            let counted = u64::from(loss).min(ALL / 2);
            self.smoothed = (self.smoothed * 7 + counted) / 8;
            self.current = with_room_for_repair(ceiling, self.smoothed);
            return;
        }
        if first < self.since {
            return;
        }
        self.recent[self.rounds % MEMORY] = loss;
        self.rounds += 1;
        let before = self.current;
        self.search(u64::from(loss));
        if self.current != before {
            self.since = next;
        }
    }

    /// One step of the search for the rate that comes through.
    fn search(&mut self, loss: u64) {
        let usual = self.usual_loss();
        let through = self.current * (ALL - loss) / ALL;
        // What would have to be sent for that much to come through a path that is not congested.
        let carried = (through * ALL / (ALL - usual).max(1)).max(self.current / 2);
        match self.doubling {
            Some(previous) if loss <= ALL / 2 && through > previous + previous / 4 => {
                self.doubling = Some(through);
                self.current *= 2;
            }
            Some(_) => {
                self.doubling = None;
                self.current = carried;
            }
            None if loss > usual + CONGESTED => self.current = carried,
            None => self.current += self.current / 32,
        }
        self.current = self.current.max(SLOWEST);
    }

    /// What the path loses anyway: the least seen of late, unless that is more than half.
    fn usual_loss(&self) -> u64 {
        let seen = &self.recent[..self.rounds.min(MEMORY)];
        seen.iter().copied().map(u64::from).min().filter(|least| *least <= ALL / 2).unwrap_or(0)
    }
}

/// Repairs cross the same links, so the multicast leaves them room.
fn with_room_for_repair(ceiling: u64, loss: u64) -> u64 {
    (u128::from(ceiling) * u128::from(ALL - loss) / u128::from(ALL)).max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate after `rounds` rounds over a path that carries `capacity` and loses `own` 65535ths anyway.
    fn after(rounds: u32, capacity: u64, own: u64) -> u64 {
        let mut rate = Rate::new(RateSpec { ceiling: None });
        for round in 0..rounds {
            let through = rate.current().min(capacity) * (ALL - own) / ALL;
            let loss = ALL - through * ALL / rate.current();
            rate.on_round(round * 100, round * 100 + 50, loss as Loss);
        }
        rate.current()
    }

    #[test]
    fn it_finds_what_the_path_carries_and_stays_near_it() {
        for capacity in [200_000, 2_500_000, 125_000_000, 1_250_000_000] {
            for rounds in 30..60 {
                let found = after(rounds, capacity, 0);
                assert!(found > capacity * 3 / 4 && found < capacity * 5 / 4, "{found} of {capacity}");
            }
        }
    }

    #[test]
    fn loss_that_does_not_come_from_sending_does_not_slow_it() {
        let clean = after(60, 125_000_000, 0);
        let lossy = after(60, 125_000_000, ALL / 5);
        assert!(lossy > clean * 3 / 4, "{lossy} against {clean}");
    }

    #[test]
    fn a_ceiling_is_kept_and_leaves_room_for_repair() {
        let mut rate = Rate::new(RateSpec { ceiling: Some(1_000_000) });
        assert_eq!(rate.current(), 1_000_000);
        for round in 0..100 {
            rate.on_round(round, round, (ALL / 10) as Loss);
        }
        assert!(rate.current() > 890_000 && rate.current() < 910_000, "{}", rate.current());
        rate.set_ceiling(Some(500_000));
        assert!(rate.current() > 445_000 && rate.current() < 455_000);
    }

    #[test]
    fn when_nobody_hears_half_it_slows_to_a_floor() {
        let mut rate = Rate::new(RateSpec { ceiling: None });
        for round in 0..100 {
            rate.on_round(round * 10, round * 10, DEAF);
        }
        assert_eq!(rate.current(), SLOWEST);
    }
}
