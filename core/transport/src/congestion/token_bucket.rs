//! Pacing by a token bucket. It returns when a packet may be sent, and never waits.

use cool_machine::{Duration, Time};

/// The bucket holds the bytes of this time at the current rate, so a driver that wakes up late by
/// less loses no throughput. It must not hold more, because the bursts of many sources meet in one
/// shallow queue.
const BURST_TIME: Duration = Duration::from_millis(6);

/// Limits the bytes that are sent to a rate.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// Bytes per second, or `None` for no limit.
    rate: Option<u64>,
    /// Bytes that may be sent at `at`. A packet may be sent while this is not negative.
    tokens: i64,
    at: Time,
}

impl TokenBucket {
    /// Returns an empty bucket, which lets one packet leave at once, because a stream may directly
    /// follow another.
    pub(crate) fn new(now: Time, rate: Option<u64>) -> TokenBucket {
        TokenBucket { rate, tokens: 0, at: now }
    }

    /// Sets the rate from now on.
    pub(crate) fn set_rate(&mut self, now: Time, rate: Option<u64>) {
        self.refill(now);
        self.rate = rate.map(|rate| rate.max(1));
        self.tokens = self.tokens.min(self.depth());
    }

    /// Returns when the next packet may be sent: now or later.
    pub(crate) fn ready_at(&mut self, now: Time) -> Time {
        self.refill(now);
        match self.rate {
            Some(rate) if self.tokens < 0 => now + time_of(self.tokens.unsigned_abs(), rate),
            _ => now,
        }
    }

    /// Records that `bytes` bytes have been sent.
    pub(crate) fn spend(&mut self, bytes: u64) {
        if self.rate.is_some() {
            self.tokens = self.tokens.saturating_sub_unsigned(bytes);
        }
    }

    fn depth(&self) -> i64 {
        let grain = self.rate.map_or(0, |rate| bytes_in(BURST_TIME, rate));
        i64::try_from(grain).unwrap_or(i64::MAX)
    }

    fn refill(&mut self, now: Time) {
        let Some(rate) = self.rate else {
            self.at = now;
            return;
        };
        let earned = bytes_in(now - self.at, rate);
        self.tokens = self.tokens.saturating_add_unsigned(earned).min(self.depth());
        // Keeps the time that did not earn a whole byte for the next call.
        self.at += time_of(earned, rate);
    }
}

/// Returns how many whole bytes are sent in `time` at `rate`.
pub(crate) fn bytes_in(time: Duration, rate: u64) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(rate) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// Returns how long `bytes` take at `rate`, rounded up.
pub(crate) fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanos = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sending_is_bounded_by_the_rate_and_one_burst(
            rate in 1_000u64..2_000_000_000, size in 60u64..9_100, packets in 1usize..400,
        ) {
            let start = Time::from_nanos(17);
            let mut bucket = TokenBucket::new(start, Some(rate));
            let (mut now, mut sent) = (start, 0);
            for _ in 0..packets {
                now = bucket.ready_at(now);
                prop_assert_eq!(bucket.ready_at(now), now);
                bucket.spend(size);
                sent += size;
            }
            let allowed = bytes_in(now - start, rate) + size;
            prop_assert!(sent <= allowed, "{} of {} allowed", sent, allowed);
            // The bucket must not be slower than the rate either.
            let needed = time_of(sent, rate) + Duration::from_nanos(packets as u64);
            prop_assert!(now - start <= needed + time_of(packets as u64, rate));
        }
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut bucket = TokenBucket::new(Time::ZERO, None);
        bucket.spend(1 << 40);
        assert_eq!(bucket.ready_at(Time::ZERO), Time::ZERO);
        bucket.set_rate(Time::ZERO, Some(1000));
        bucket.spend(1000);
        assert!(bucket.ready_at(Time::ZERO) > Time::ZERO);
    }
}
