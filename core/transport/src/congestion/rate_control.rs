//! Rate control of a source's multicast, from the receivers' reports on each round: its loss, its
//! arrival rate, and its queueing delay.
//!
//! Loss alone is no sign of congestion here, because a bad cable loses at any rate. A queue is. So
//! the source first measures the rate of the path, by the spacing of a *packet train* and then by
//! *slow start*, as fast as reports permit. Then it *increases* its rate in small steps until a
//! queue of a few packets forms, and *drains* the queue by a rate slightly below the arrival rate.
//! Sources that share a path see the same queue. A source that sends more drains at a shorter
//! queue, so that shares become equal, as in Copa (Arun and Balakrishnan, NSDI 2018). A queue that
//! does not drain belongs to other traffic, which fills it until it overflows. Then the source
//! *competes* like TCP (Copa's competitive mode), by the losses while the queue is long.
//!
//! A *background* stream yields instead (a less-than-best-effort service, RFC 6297, by delay as in
//! LEDBAT, RFC 6817): it starts slowly, accepts a quarter of the queue, and slows down as long as a
//! queue remains.
//!
//! Where queues are too short to be measured, rising loss is answered by a trial at a slower rate.
//! If this does not cure the loss, the path loses that much at any rate, and the old rate is
//! restored.
//!
//! Receivers may be slower than the path. So at any rate, only a window of chunks is sent ahead of
//! the reports, which the socket buffers of receivers hold; then the source waits for reports.

use crate::congestion::queueing_delay::SHORTEST_QUEUE;
use crate::congestion::token_bucket::{bytes_in, time_of};
use crate::spec::RateSpec;
use crate::stats::RatePhase;
use cool_machine::{Duration, Time};

/// Loss in 65534ths of the chunks of a round, or [`UNREPORTED`].
pub(crate) type Loss = u16;
/// Marks a loss that was not measured.
pub(crate) const UNREPORTED: Loss = Loss::MAX;

/// The scale of losses. A receiver reports at most `FULL_LOSS` - 1; the value itself means
/// [`UNREPORTED`].
const FULL_LOSS: u64 = Loss::MAX as u64;
/// Maximum rate, in bytes per second, of chunks that are sent ahead of the reports
/// ([`RateControl::is_ahead`]).
const AHEAD_RATE_MAX: u64 = 1_500_000;
/// Bytes per second of the first packets without a ceiling. Their spacing at the receivers shows
/// the rate of the path.
const TRAIN_RATE: u64 = 5_000_000_000;
/// Packets of the train. For each reported chunk, two more may be sent at the rate under test.
const TRAIN_PACKETS: u32 = 16;
/// Fewest and most bytes, and fewest full rounds, that may be sent ahead of the reports. Between
/// them, the window is twice the bytes that the path holds. The buffer of a receiver's socket has
/// room for the fewest.
const WINDOW_BYTES_MIN: u64 = 512 << 10;
const WINDOW_BYTES_MAX: u64 = 4 << 20;
const WINDOW_ROUNDS: u32 = 3;
/// Slowest rate, in bytes per second.
const RATE_MIN: u64 = 64 * 1024;
/// Packets of this stream that may wait in queues.
const QUEUED_PACKETS: u64 = 16;
/// A queue counts as empty when it is shorter than one part in this many of the permitted queue.
const EMPTY_QUEUE_PART: u32 = 4;
/// The rate changes by one part in this many, or by up to eight times as much while no queue
/// exists.
const STEP_PART: u64 = 16;
/// Rounds in which draining may fail; and the same for background streams. If one more fails, the
/// queue counts as that of other traffic.
const DRAIN_ROUNDS: u32 = 6;
const BACKGROUND_DRAIN_ROUNDS: u32 = 1;
/// A background stream starts at one part in this many of the rate, and falls back to it when other
/// traffic keeps a queue.
const BACKGROUND_PART: u64 = 4;
/// A background stream may queue one part in this many of the packets.
const BACKGROUND_QUEUE_PART: u64 = 4;
/// Loss beyond the baseline that may be congestion: without a queue, and with a long queue.
const CONGESTED: u64 = FULL_LOSS / 16;
const OVERFLOW: u64 = FULL_LOSS / 64;
/// Rounds before the first trial if the path is verified to carry the rate, because loss is then
/// probably random.
const VERIFIED_PAUSE_ROUNDS: u32 = 8;
/// Most rounds between trials.
const PAUSE_ROUNDS_MAX: u32 = 64;
/// Number of consecutive rounds of which every receiver lost more than half, after which the tree
/// is useless. Each of these rounds halves the rate, which it first limits to
/// 2 * `AHEAD_RATE_MAX`.
const USELESS_ROUNDS: u32 = 6;

/// The receivers' reports on a round: the worst value of each field among the receivers that
/// received at least half of the round or have a queue; if there are none, the smallest value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateSample {
    pub(crate) loss: Loss,
    /// Bytes per second at which the round arrived at the slowest receiver, if measured.
    pub(crate) carried: Option<u64>,
    /// The queueing delay of the quickest chunk.
    pub(crate) queue: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlPhase {
    /// The spacing of the first packets is measured.
    PacketTrain,
    /// The rate of the path is sought. Holds the bytes per second that arrived in the round before.
    SlowStart(u64),
    /// The rate increases. Holds the consecutive rounds without a queue.
    Increasing(u32),
    /// The queue drains that formed at the rate `before`. Counts the rounds in which this was not
    /// enough.
    Draining { before: u64, times: u32 },
    /// Other traffic keeps a queue.
    Competing,
    /// Like `Competing` for a background stream, which yields, from the rate `before`.
    Yielding { before: u64 },
}

/// The rate of a source.
#[derive(Debug)]
pub(crate) struct RateControl {
    /// Bytes of a packet.
    frame_bytes: u64,
    ceiling: Option<u64>,
    background: bool,
    current: u64,
    phase: ControlPhase,
    /// One past the last chunk that was reported.
    reported: u32,
    /// Chunks that may be sent ahead of the reports once slow start is over, and the fewest.
    window: u32,
    window_min: u32,
    /// Rounds that began before this chunk were sent at another rate, so their reports do not
    /// describe the current rate.
    rate_since_chunk: u32,
    /// When the last report that describes the current rate was handled.
    last_report_at: Time,
    /// The queue that was reported last.
    queue: Duration,
    /// The longest queue that was reported.
    longest: Duration,
    /// Smoothed loss, because in a short round chance weighs more than congestion.
    loss: u64,
    /// The loss of the path at any rate.
    baseline_loss: u64,
    /// During a trial of a slower rate: the rate and the loss before.
    trial: Option<(u64, u64)>,
    /// The rate before the last trial that reduced the loss.
    last_congested_rate: u64,
    /// Rounds since the last trial, and the rounds until the next. The pause grows with each trial
    /// that does not help.
    untried: u32,
    pause: u32,
    /// Number of consecutive rounds of which every receiver lost more than half.
    lossy_rounds: u32,
}

impl RateControl {
    /// Returns the rate control of a stream with packets of `frame_bytes` bytes and full rounds of
    /// `round` chunks, at its initial rate.
    pub(crate) fn new(spec: RateSpec, frame_bytes: u64, round: u32) -> RateControl {
        let verified = spec.verified && spec.ceiling.is_some();
        let most = spec.ceiling.unwrap_or(TRAIN_RATE).max(1);
        let known = if verified { Some(most) } else { spec.found.map(|found| found.clamp(1, most)) };
        let (phase, current) = match (known, spec.background) {
            (None, _) => (ControlPhase::PacketTrain, most),
            (Some(known), false) => (ControlPhase::Increasing(0), known),
            (Some(known), true) => {
                (ControlPhase::Yielding { before: known }, (known / BACKGROUND_PART).max(1))
            }
        };
        let window_min = (WINDOW_ROUNDS * round).max(chunks_in(WINDOW_BYTES_MIN, frame_bytes));
        RateControl {
            frame_bytes,
            ceiling: spec.ceiling,
            background: spec.background,
            current,
            phase,
            reported: 0,
            window: window_min,
            window_min,
            rate_since_chunk: 0,
            last_report_at: Time::ZERO,
            queue: Duration::ZERO,
            longest: Duration::ZERO,
            loss: 0,
            baseline_loss: 0,
            trial: None,
            last_congested_rate: u64::MAX,
            untried: 0,
            pause: if verified { VERIFIED_PAUSE_ROUNDS } else { 1 },
            lossy_rounds: 0,
        }
    }

    /// Returns the bytes per second, the queue that was reported last, and the phase.
    pub(crate) fn state(&self) -> (u64, Duration, RatePhase) {
        let phase = match self.phase {
            ControlPhase::PacketTrain => RatePhase::PacketTrain,
            ControlPhase::SlowStart(_) => RatePhase::SlowStart,
            ControlPhase::Increasing(_) => RatePhase::Increasing,
            ControlPhase::Draining { .. } => RatePhase::Draining,
            ControlPhase::Competing => RatePhase::Competing,
            ControlPhase::Yielding { .. } => RatePhase::Yielding,
        };
        (self.current, self.queue, phase)
    }

    /// Returns the bytes per second at which a chunk must be sent.
    pub(crate) fn rate_for(&self, chunk: u32) -> u64 {
        if self.is_ahead(chunk) { self.current.min(AHEAD_RATE_MAX) } else { self.current }
    }

    /// Records a chunk that was sent. A round with a chunk that was held back does not show the
    /// rate of the path.
    pub(crate) fn on_sent(&mut self, chunk: u32) {
        if self.is_ahead(chunk) && self.phase != ControlPhase::PacketTrain {
            self.rate_since_chunk = chunk + 1;
        }
    }

    fn is_ahead(&self, chunk: u32) -> bool {
        match self.phase {
            ControlPhase::PacketTrain => chunk >= TRAIN_PACKETS,
            ControlPhase::SlowStart(_) => {
                chunk >= self.reported.saturating_mul(2).saturating_add(TRAIN_PACKETS)
            }
            _ => chunk >= self.reported.saturating_add(self.window),
        }
    }

    /// Returns the rate that the stream has found, for [`RateSpec::found`] of the next stream, or
    /// `None` if no receiver has reported yet.
    pub(crate) fn found(&self) -> Option<u64> {
        (self.phase != ControlPhase::PacketTrain && self.reported > 0).then_some(self.current)
    }

    /// Returns whether the tree delivers too little at any rate.
    pub(crate) fn is_useless(&self) -> bool {
        self.lossy_rounds >= USELESS_ROUNDS
    }

    /// Sets the ceiling.
    pub(crate) fn set_ceiling(&mut self, ceiling: Option<u64>) {
        let before = core::mem::replace(&mut self.ceiling, ceiling);
        let Some(ceiling) = ceiling else { return };
        if self.background {
            self.current = self.current.min(ceiling.max(1));
            return;
        }
        if before.is_none_or(|before| self.current >= before) || self.current > ceiling {
            self.current = ceiling.max(1);
            self.trial = None;
            if self.phase != ControlPhase::PacketTrain {
                self.phase = ControlPhase::Increasing(0);
            }
        }
    }

    /// Handles a report on a round of chunks. `next` is the next chunk to be sent, and `rtt` is the
    /// round trip without queues.
    pub(crate) fn on_round(
        &mut self,
        now: Time,
        round: core::ops::Range<u32>,
        next: u32,
        sample: RateSample,
        rtt: Duration,
    ) {
        self.reported = round.end;
        self.queue = sample.queue;
        let window_bytes = bytes_in(rtt, self.current).saturating_mul(2).min(WINDOW_BYTES_MAX);
        self.window = chunks_in(window_bytes, self.frame_bytes).max(self.window_min);
        // Rounds that were held back or sent at another rate do not show the rate of the path.
        // During slow start, a queue counts in any case.
        let found =
            matches!(self.phase, ControlPhase::SlowStart(_)) && sample.queue > self.queueing_delay_limit();
        if round.start < self.rate_since_chunk && !found {
            return;
        }
        let before = self.current;
        if u64::from(sample.loss) > FULL_LOSS / 2 && sample.queue < SHORTEST_QUEUE {
            self.lossy_rounds += 1;
            (self.phase, self.trial) = (ControlPhase::Increasing(0), None);
            self.current = self.current.min(2 * AHEAD_RATE_MAX) / 2;
        } else {
            self.lossy_rounds = 0;
            self.longest = self.longest.max(sample.queue);
            self.step(sample, now - self.last_report_at, rtt);
        }
        self.last_report_at = now;
        let slowest = RATE_MIN.min(self.ceiling.unwrap_or(u64::MAX));
        self.current = self.current.clamp(slowest, self.ceiling.unwrap_or(TRAIN_RATE));
        if self.current != before {
            self.rate_since_chunk = next;
        }
    }

    fn step(&mut self, sample: RateSample, elapsed: Duration, rtt: Duration) {
        let loss = u64::from(sample.loss);
        // Chunks that overflow a queue do not slow the chunks behind them.
        let arrived = (FULL_LOSS - loss.saturating_sub(self.baseline_loss)) as f64 / FULL_LOSS as f64;
        let carried = sample.carried.map_or(self.current, |carried| carried.min(self.current));
        let delivery_rate = (carried as f64 * arrived) as u64;
        let limit = self.queueing_delay_limit();
        let exceeds_queue_limit = sample.queue > limit;
        let is_empty = sample.queue < limit / EMPTY_QUEUE_PART;
        match self.phase {
            ControlPhase::PacketTrain => self.measure_train(sample.carried),
            ControlPhase::SlowStart(before) => {
                let arrived = carried / FULL_LOSS * (FULL_LOSS - loss);
                self.slow_start(before, carried, arrived, exceeds_queue_limit);
            }
            ControlPhase::Increasing(_) if exceeds_queue_limit => {
                self.trial = None;
                self.phase = self.draining();
                self.drain(delivery_rate, sample.queue > 4 * limit);
            }
            ControlPhase::Increasing(times) => self.increase(loss, if is_empty { times + 1 } else { 0 }),
            ControlPhase::Draining { before, .. } if is_empty => {
                self.phase = ControlPhase::Increasing(0);
                self.current = (before + self.current) / 2;
            }
            ControlPhase::Draining { before, times: BACKGROUND_DRAIN_ROUNDS.. } if self.background => {
                self.phase = ControlPhase::Yielding { before };
                self.current /= BACKGROUND_PART;
            }
            ControlPhase::Draining { times: DRAIN_ROUNDS.., .. } => self.phase = ControlPhase::Competing,
            ControlPhase::Draining { before, times } => {
                self.phase = ControlPhase::Draining { before, times: times + 1 };
                self.drain(delivery_rate, sample.queue > 4 * limit);
            }
            ControlPhase::Yielding { .. } if !is_empty => self.current /= 2,
            ControlPhase::Yielding { before } => {
                self.current = self.current.saturating_mul(2);
                if self.current > before / 2 {
                    self.phase = ControlPhase::Increasing(0);
                }
            }
            ControlPhase::Competing if is_empty => self.phase = ControlPhase::Increasing(0),
            ControlPhase::Competing
                if loss > self.baseline_loss + OVERFLOW && sample.queue > self.longest / 2 =>
            {
                self.current -= self.current / 3;
            }
            ControlPhase::Competing => {
                // The rate grows by one packet per round trip, in each round trip.
                let trip = (rtt + sample.queue).max(SHORTEST_QUEUE).as_secs_f64();
                let more = self.frame_bytes as f64 / trip * (elapsed.as_secs_f64() / trip);
                self.current += (more as u64).min(self.current / 2);
            }
        }
    }

    /// Sets the rate to that at which the first packets arrived, and begins slow start. If they
    /// arrived almost at the ceiling, keeps the ceiling. Without a measured rate, they arrived all
    /// at once, as one packet that the system had joined (GRO).
    fn measure_train(&mut self, carried: Option<u64>) {
        let carried = carried.unwrap_or(self.current);
        if self.ceiling.is_some() && self.keeps_up(carried) {
            self.phase = ControlPhase::Increasing(0);
        } else {
            (self.phase, self.current) = (ControlPhase::SlowStart(0), carried.min(self.current));
        }
    }

    /// Doubles the rate if more may arrive. Otherwise ends slow start at no more than the arrival
    /// rate.
    fn slow_start(&mut self, before: u64, carried: u64, arrived: u64, exceeds_queue_limit: bool) {
        let keeps_up = self.keeps_up(carried) && !exceeds_queue_limit;
        if keeps_up && self.ceiling.is_some_and(|ceiling| self.current >= ceiling) {
            self.phase = ControlPhase::Increasing(0);
        } else if keeps_up && arrived > before + before / 4 {
            self.phase = ControlPhase::SlowStart(arrived);
            self.current *= 2;
        } else {
            self.current = carried.min(self.current - self.current / 4);
            self.phase = if exceeds_queue_limit { self.draining() } else { ControlPhase::Increasing(0) };
        }
    }

    /// Returns the longest permitted queueing delay.
    fn queueing_delay_limit(&self) -> Duration {
        let packets = if self.background { QUEUED_PACKETS / BACKGROUND_QUEUE_PART } else { QUEUED_PACKETS };
        // A stream that has yielded is far slower than the path.
        let rate = if let ControlPhase::Yielding { before } = self.phase { before } else { self.current };
        SHORTEST_QUEUE.max(time_of(packets * self.frame_bytes, rate))
    }

    /// Returns whether the path carries the current rate, as far as a single round can show.
    fn keeps_up(&self, carried: u64) -> bool {
        carried >= self.current - self.current / 4
    }

    /// Returns the draining phase, which starts from the current rate.
    fn draining(&self) -> ControlPhase {
        ControlPhase::Draining { before: self.current, times: 0 }
    }

    /// Sets a rate slightly below the arrival rate, but limits the change, because a single round
    /// may have been slow by chance.
    fn drain(&mut self, delivery_rate: u64, full: bool) {
        let most = self.current / if full { 4 } else { 8 };
        self.current = (delivery_rate - delivery_rate / STEP_PART).max(self.current - most);
    }

    /// Increases the rate, unless a trial shows that this causes the loss.
    fn increase(&mut self, loss: u64, times: u32) {
        self.phase = ControlPhase::Increasing(times);
        if let Some((rate, loss_then)) = self.trial.take() {
            // The loss that would remain if all loss were congestion.
            let least = FULL_LOSS - ((FULL_LOSS - loss_then) * rate / self.current).min(FULL_LOSS);
            if 2 * loss <= loss_then + least {
                (self.loss, self.pause, self.last_congested_rate) = (loss, 1, rate);
            } else {
                (self.current, self.baseline_loss) = (rate, loss_then);
                self.pause = (2 * self.pause).min(PAUSE_ROUNDS_MAX);
            }
            self.untried = 0;
            return;
        }
        self.untried += 1;
        self.loss = (self.loss * 3 + loss) / 4;
        if self.loss > self.baseline_loss + CONGESTED && self.untried >= self.pause {
            // The latest loss belongs to the latest rate, which the smoothed loss lags behind.
            let loss = self.loss.max(loss);
            self.trial = Some((self.current, loss));
            let slower = self.current * (FULL_LOSS - loss) / (FULL_LOSS - self.baseline_loss);
            self.current = slower.max(self.current - self.current / 4);
        } else {
            self.baseline_loss = self.baseline_loss.min((self.baseline_loss * 15 + self.loss) / 16);
            let near = self.current > self.last_congested_rate - self.last_congested_rate / 4;
            self.current += self.current * (1 << if near { 0 } else { (times / 2).min(3) }) / STEP_PART;
        }
    }
}

/// Returns how many chunks with frames of `frame_bytes` bytes these bytes are.
fn chunks_in(bytes: u64, frame_bytes: u64) -> u32 {
    u32::try_from(bytes / frame_bytes.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
