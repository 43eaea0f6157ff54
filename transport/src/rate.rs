//! How fast a source multicasts, from what receivers report of each round.
//!
//! Loss alone is no sign of congestion here: a bad cable loses at any rate. What counts is whether more comes
//! through when more is sent, as in BBR (Cardwell et al., ACM Queue 2016). When loss rises the source tries a
//! slower rate; if that does not cure it, the path loses that much anyway and the old rate is taken up again.

use crate::spec::RateSpec;

/// Loss in 65535ths.
pub(crate) type Loss = u16;
/// Stands for a loss that was not measured.
pub(crate) const UNTOLD: Loss = Loss::MAX;

const ALL: u64 = Loss::MAX as u64;
/// Bytes per second without a ceiling and before any report: ten packets in ten milliseconds.
const MODEST: u64 = 1_500_000;
const SLOWEST: u64 = 64 * 1024;
/// Loss beyond what the path loses anyway that may be congestion: a sixteenth.
const CONGESTED: u64 = ALL / 16;
/// Rounds in a row of which nobody heard half that make a tree useless; the rate is halved at each.
const USELESS: u32 = 6;

/// The rate of a source.
#[derive(Debug)]
pub(crate) struct Rate {
    ceiling: Option<u64>,
    current: u64,
    /// While doubling: what came through in the round before, in bytes per second.
    doubling: Option<u64>,
    /// Loss, smoothed: in a short round chance weighs more than congestion.
    loss: u64,
    /// What the path loses at any rate.
    usual: u64,
    /// While a slower rate is tried: the rate and the loss before.
    trial: Option<(u64, u64)>,
    /// Rounds in a row of which nobody heard half.
    unheard: u32,
    /// Rounds that began before this chunk were sent at another rate and tell nothing of this one.
    since: u32,
}

impl Rate {
    /// The rate to begin with.
    pub(crate) fn new(spec: RateSpec) -> Rate {
        Rate {
            ceiling: spec.ceiling,
            current: spec.ceiling.unwrap_or(MODEST).max(1),
            doubling: spec.ceiling.is_none().then_some(0),
            loss: 0,
            usual: 0,
            trial: None,
            unheard: 0,
            since: 0,
        }
    }

    /// Bytes per second to send at.
    pub(crate) fn current(&self) -> u64 {
        self.current
    }

    /// Whether slowing down does not make the tree heard.
    pub(crate) fn is_useless(&self) -> bool {
        self.unheard >= USELESS
    }

    /// The driver allows another rate.
    pub(crate) fn set_ceiling(&mut self, ceiling: Option<u64>) {
        self.ceiling = ceiling;
        if let Some(ceiling) = ceiling {
            self.current = ceiling.max(1);
            (self.doubling, self.trial) = (None, None);
        }
    }

    /// A round that began with chunk `first` lost so much at the worst receiver that counts, and came at
    /// `carried` bytes per second where it was slowest; `next` is the chunk to be sent next.
    pub(crate) fn on_round(&mut self, first: u32, next: u32, loss: Loss, carried: Option<u64>) {
        if first < self.since {
            return;
        }
        let before = self.current;
        let loss = u64::from(loss);
        if loss > ALL / 2 {
            self.unheard += 1;
            (self.doubling, self.trial) = (None, None);
            self.current /= 2;
        } else {
            self.unheard = 0;
            self.search(loss, carried.unwrap_or(u64::MAX));
        }
        let slowest = SLOWEST.min(self.ceiling.unwrap_or(u64::MAX));
        self.current = self.current.clamp(slowest, self.ceiling.unwrap_or(u64::MAX));
        if self.current != before {
            self.since = next;
        }
    }

    /// One step of the search for the rate that comes through.
    fn search(&mut self, loss: u64, carried: u64) {
        // A queue grows before anything is lost. Later that is no sign: repairs share links with the stream.
        let through = self.current.min(carried) * (ALL - loss) / ALL;
        if let Some(previous) = self.doubling {
            self.doubling = (through > previous + previous / 4).then_some(through);
            self.current = if self.doubling.is_some() { 2 * self.current } else { through };
            return;
        }
        if let Some((rate, loss_then)) = self.trial.take() {
            if 2 * loss > loss_then + self.usual {
                (self.current, self.usual) = (rate, loss_then);
            } else {
                self.loss = self.usual;
            }
            return;
        }
        self.loss = (self.loss * 7 + loss) / 8;
        if self.loss > self.usual + CONGESTED {
            self.trial = Some((self.current, self.loss));
            // The latest loss is that of the latest rate, which the smoothed one lags behind.
            self.current = self.current * (ALL - self.loss.max(loss)) / (ALL - self.usual);
        } else {
            self.usual = self.usual.min(self.loss);
            self.current += self.current / 32;
        }
    }
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
            rate.on_round(round * 100, round * 100 + 50, loss as Loss, None);
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
    fn a_queue_that_grows_without_loss_ends_the_doubling() {
        let mut rate = Rate::new(RateSpec { ceiling: None });
        for round in 0..8 {
            let carried = rate.current().min(20_000_000);
            rate.on_round(round * 100, round * 100 + 50, 0, Some(carried));
        }
        assert!(rate.current() > 15_000_000 && rate.current() < 30_000_000, "{}", rate.current());
    }

    #[test]
    fn loss_that_does_not_come_from_sending_does_not_slow_it() {
        let clean = after(60, 125_000_000, 0);
        let lossy = after(60, 125_000_000, ALL / 5);
        assert!(lossy > clean * 3 / 4, "{lossy} against {clean}");
    }

    #[test]
    fn a_ceiling_is_where_it_starts_and_what_it_keeps() {
        let mut rate = Rate::new(RateSpec { ceiling: Some(1_000_000) });
        let mut slower = 0;
        for round in 0..100 {
            rate.on_round(round, round, (ALL / 10) as Loss, None);
            slower += u32::from(rate.current() < 1_000_000);
        }
        assert_eq!((slower, rate.current()), (1, 1_000_000));
        rate.set_ceiling(Some(500_000));
        assert_eq!(rate.current(), 500_000);
    }

    #[test]
    fn below_a_ceiling_that_is_too_high_it_finds_what_the_path_carries() {
        let mut rate = Rate::new(RateSpec { ceiling: Some(2_000_000) });
        for round in 0..60 {
            let loss = ALL - rate.current().min(1_200_000) * ALL / rate.current();
            rate.on_round(round * 100, round * 100 + 50, loss as Loss, None);
        }
        assert!(rate.current() > 1_000_000 && rate.current() < 1_500_000, "{}", rate.current());
    }

    #[test]
    fn when_nobody_hears_half_it_slows_to_a_floor() {
        let mut rate = Rate::new(RateSpec { ceiling: None });
        for round in 0..100 {
            rate.on_round(round * 10, round * 10, UNTOLD - 1, None);
        }
        assert_eq!(rate.current(), SLOWEST);
        assert!(rate.is_useless());
    }
}
