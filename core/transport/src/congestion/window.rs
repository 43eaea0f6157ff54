//! The congestion window of a receiver: how many chunks it may have requested at a time.
//!
//! It grows by slow start, then by one chunk per round trip. After a loss it falls back to twice
//! the chunks that arrive in the shortest round trip, as in TCP Westwood (Mascolo et al., MobiCom
//! 2001), so that a lossy link without congestion keeps its throughput. The factor is two because
//! the loss itself reduces the arrivals.

use crate::rtt::Rtt;
use cool_machine::{Duration, Time};

/// Chunks in the initial window and in the smallest.
const INITIAL_CHUNKS: u32 = 16;
const CHUNKS_MIN: u32 = 16;
/// Bytes in the largest window: 10 Gbit/s over 100 microseconds, and half of a shallow switch
/// buffer.
const WINDOW_BYTES_MAX: u32 = 128 * 1024;
/// Chunks of this many bytes or more do not fit an Ethernet frame, so they occur only on loopback,
/// where no switch limits the window. There the largest window is [`LOOPBACK_WINDOW_CHUNKS`].
const LOOPBACK_CHUNK_BYTES: u32 = 16 * 1024;
/// Chunks in the largest window on loopback.
const LOOPBACK_WINDOW_CHUNKS: u32 = 48;
/// Round trips over which the highest delivery rate is remembered.
const TRIPS_REMEMBERED: usize = 8;

/// The limit on chunks that are requested and have not arrived.
#[derive(Debug)]
pub(crate) struct CongestionWindow {
    size: u32,
    largest: u32,
    threshold: u32,
    /// Chunks that arrived since the window last grew.
    credit: u32,
    /// Chunks that arrived since `since`.
    delivered: u32,
    since: Time,
    /// Nanoseconds per chunk in recent round trips. The shortest counts.
    recent: [u64; TRIPS_REMEMBERED],
    trips: usize,
    reduced: Option<Time>,
}

impl CongestionWindow {
    pub(crate) fn new(now: Time, chunk_bytes: u32) -> CongestionWindow {
        let largest = match chunk_bytes {
            ..LOOPBACK_CHUNK_BYTES => (WINDOW_BYTES_MAX / chunk_bytes).max(INITIAL_CHUNKS),
            _ => LOOPBACK_WINDOW_CHUNKS,
        };
        CongestionWindow {
            size: INITIAL_CHUNKS,
            largest,
            threshold: largest,
            credit: 0,
            delivered: 0,
            since: now,
            recent: [u64::MAX; TRIPS_REMEMBERED],
            trips: 0,
            reduced: None,
        }
    }

    /// Returns the number of chunks that may be outstanding.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Records a requested chunk that arrived. `full` is whether the window limited the requests.
    pub(crate) fn on_delivered(&mut self, now: Time, rtt: &Rtt, full: bool) {
        self.delivered += 1;
        let elapsed = now - self.since;
        if elapsed >= rtt.smoothed() {
            let each = elapsed.as_nanos() / u128::from(self.delivered);
            self.recent[self.trips % TRIPS_REMEMBERED] = u64::try_from(each).unwrap_or(u64::MAX);
            self.trips += 1;
            self.delivered = 0;
            self.since = now;
        }
        if full {
            self.credit += 1;
            let needed = if self.size < self.threshold { 1 } else { self.size };
            if self.credit >= needed {
                self.credit = 0;
                self.size = (self.size + 1).min(self.largest);
            }
        }
    }

    /// Records that a requested chunk was lost. Losses within one round trip count once.
    pub(crate) fn on_loss(&mut self, now: Time, rtt: &Rtt) {
        if self.reduced.is_some_and(|at| now - at < rtt.smoothed()) {
            return;
        }
        self.reduced = Some(now);
        let each = self.recent.iter().min().copied().unwrap_or(u64::MAX);
        let carried = 2 * in_time(rtt.shortest(), each);
        self.threshold = carried.clamp(CHUNKS_MIN, self.largest);
        self.size = self.size.min(self.threshold);
    }

    /// Records that nothing arrived for a whole retransmission timeout.
    pub(crate) fn on_silence(&mut self) {
        self.threshold = (self.size / 2).max(CHUNKS_MIN);
        self.size = CHUNKS_MIN;
    }
}

fn in_time(time: Duration, each: u64) -> u32 {
    let chunks = time.as_nanos() / u128::from(each.max(1));
    u32::try_from(chunks).unwrap_or(u32::MAX / 2).min(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rtt() -> Rtt {
        let mut rtt = Rtt::new(20 * MS);
        rtt.sample(MS);
        rtt
    }

    /// Runs ten round trips with `each` between chunks. Returns the time at the end.
    fn fed(window: &mut CongestionWindow, mut now: Time, each: Duration) -> Time {
        for _ in 0..(10 * MS).as_nanos() / each.as_nanos() {
            now += each;
            window.on_delivered(now, &rtt(), true);
        }
        now
    }

    #[test]
    fn the_window_grows_while_it_limits_and_is_bounded() {
        let mut window = CongestionWindow::new(Time::ZERO, 1424);
        window.on_delivered(Time::ZERO, &rtt(), false);
        assert_eq!(window.size(), INITIAL_CHUNKS);
        fed(&mut window, Time::ZERO, Duration::from_micros(2));
        assert_eq!(window.size(), WINDOW_BYTES_MAX / 1424);
    }

    #[test]
    fn a_loss_reduces_it_to_twice_the_delivery_rate() {
        let mut window = CongestionWindow::new(Time::ZERO, 1424);
        let now = fed(&mut window, Time::ZERO, Duration::from_micros(50));
        window.on_loss(now, &rtt());
        assert!((35..=45).contains(&window.size()), "{}", window.size());
        window.on_silence();
        assert_eq!(window.size(), CHUNKS_MIN);
    }
}
