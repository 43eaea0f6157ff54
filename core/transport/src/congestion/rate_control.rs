//! How fast a source multicasts, from what receivers report of each round: how much of it was lost, how fast it
//! came, and how long it waited in queues.
//!
//! Loss alone is no sign of congestion here: a bad cable loses at any rate. A queue is. So the source finds out at
//! first what the path carries: by the spacing of a *packet train*, then by *slow start*, as fast as reports let it.
//! Then it *increases* its rate, a little each time, until a queue of some packets waits, and *drains* that by a rate
//! a little below what came through. Sources that share a path see the same queue; who sends more drains at a shorter
//! one, so that shares become equal, as in Copa (Arun and Balakrishnan, NSDI 2018). A queue that does not go away is
//! others', who fill it until it overflows: then the source *competes* (Copa's competitive mode) as TCP does, by what
//! is lost while the queue is long.
//!
//! A stream in the *background* gives way instead (a less-than-best-effort service, RFC 6297, by delay as LEDBAT, RFC 6817): it begins
//! slowly, lets a quarter as much wait, and goes ever slower as long as a queue stays.
//!
//! Where queues are too short to be seen, loss that rises is answered by a trial: at a slower rate, is it cured?
//! If not, the path loses that much anyway and the old rate is taken up again.

use crate::congestion::queueing_delay::SHORTEST_QUEUE;
use crate::congestion::token_bucket::time_of;
use crate::spec::RateSpec;
use crate::stats::RatePhase;
use cool_machine::{Duration, Time};

/// Loss in 65535ths.
pub(crate) type Loss = u16;
/// Stands for a loss that was not measured.
pub(crate) const UNREPORTED: Loss = Loss::MAX;

/// Everything was lost.
const FULL_LOSS: u64 = Loss::MAX as u64;
/// Bytes per second without a ceiling while no report is in: ten packets in ten milliseconds.
const UNREPORTED_RATE: u64 = 1_500_000;
/// Bytes per second of the first packets without a ceiling. By their spacing they tell how fast the path is.
const TRAIN_RATE: u64 = 5_000_000_000;
/// Packets of the train. For each chunk that was reported on two more may go at the rate that is sought.
const TRAIN_PACKETS: u32 = 16;
/// The slowest rate, in bytes per second.
const RATE_MIN: u64 = 64 * 1024;
/// Packets of this stream that may wait in queues.
const QUEUED_PACKETS: u64 = 16;
/// A queue is gone when it is shorter than one part in this many of what may wait.
const EMPTY_QUEUE_PART: u32 = 4;
/// The rate is changed by one part in this many, or by up to eight times that when there is no queue.
const STEP_PART: u64 = 16;
/// Rounds of draining without curing the queue until it counts as others'; and in the background.
const DRAIN_ROUNDS: u32 = 6;
const BACKGROUND_DRAIN_ROUNDS: u32 = 1;
/// What a stream in the background begins with, and what it falls back to once a queue is others', is one part in as many.
const BACKGROUND_PART: u64 = 4;
/// As many times fewer packets may wait in the background.
const BACKGROUND_QUEUE_PART: u64 = 4;
/// Loss beyond the baseline, in 65535ths, that may be congestion: where there is no queue, and where it is long.
const CONGESTED: u64 = FULL_LOSS / 16;
const OVERFLOW: u64 = FULL_LOSS / 64;
/// Rounds before the first slow-down trial where the path is verified to carry the rate: there loss is probably random.
const VERIFIED_PAUSE_ROUNDS: u32 = 8;
/// The most rounds between slow-down trials.
const PAUSE_ROUNDS_MAX: u32 = 64;
/// Rounds in a row of which nobody heard half that make a tree useless; the rate is halved at each.
const USELESS_ROUNDS: u32 = 6;

/// What receivers reported of a round, the worst of each among those that count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateSample {
    pub(crate) loss: Loss,
    /// Bytes per second at which it came, where it was slowest, if that was measured.
    pub(crate) carried: Option<u64>,
    /// How long all of it waited in queues.
    pub(crate) queue: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlPhase {
    /// The first packets are to tell how fast the path is.
    PacketTrain,
    /// Looks for what the path carries; what arrived of the round before, in bytes per second.
    SlowStart(u64),
    /// Goes faster; the rounds in a row in which there was no queue.
    Increasing(u32),
    /// Lets the queue drain that came at the rate `before`; the times that this was not enough.
    Draining { before: u64, times: u32 },
    /// Others fill the queue.
    Competing,
    /// As `Competing`, in the background: gives way, from the rate `before`.
    Yielding { before: u64 },
}

/// The rate of a source.
#[derive(Debug)]
pub(crate) struct RateControl {
    /// Bytes of a packet.
    frame: u64,
    ceiling: Option<u64>,
    background: bool,
    current: u64,
    phase: ControlPhase,
    /// One past the last chunk that has been reported on.
    reported: u32,
    /// Rounds that began before this chunk were sent at another rate and tell nothing of this one.
    since: u32,
    /// When the rate was last looked at.
    at: Time,
    /// The queue that was reported last.
    queue: Duration,
    /// The longest queue that was reported.
    longest: Duration,
    /// Loss, smoothed: in a short round chance weighs more than congestion.
    loss: u64,
    /// What the path loses at any rate.
    baseline_loss: u64,
    /// While a slower rate is tried: the rate and the loss before.
    trial: Option<(u64, u64)>,
    /// The rate that had been too fast when a trial last cured the loss.
    last_congested_rate: u64,
    /// Rounds since the last trial, and how many there are to be: ever more while trials are in vain.
    untried: u32,
    pause: u32,
    /// Rounds in a row of which nobody heard half.
    lossy_rounds: u32,
}

impl RateControl {
    /// The rate to begin with, of packets of `frame` bytes each.
    pub(crate) fn new(spec: RateSpec, frame: u64) -> RateControl {
        let verified = spec.verified && spec.ceiling.is_some();
        let most = spec.ceiling.unwrap_or(TRAIN_RATE).max(1);
        let (phase, current) = match (verified, spec.background) {
            (false, _) => (ControlPhase::PacketTrain, most),
            (true, false) => (ControlPhase::Increasing(0), most),
            (true, true) => (ControlPhase::Yielding { before: most }, (most / BACKGROUND_PART).max(1)),
        };
        RateControl {
            frame,
            ceiling: spec.ceiling,
            background: spec.background,
            current,
            phase,
            reported: 0,
            since: 0,
            at: Time::ZERO,
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

    /// Bytes per second, the queue that receivers last reported, and what is done about it.
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

    /// Bytes per second at which to send a chunk.
    pub(crate) fn rate_for(&self, chunk: u32) -> u64 {
        if self.is_ahead(chunk) { self.current.min(UNREPORTED_RATE) } else { self.current }
    }

    /// A chunk was sent. A round of which one was held back does not tell what the path carries.
    pub(crate) fn on_sent(&mut self, chunk: u32) {
        if self.is_ahead(chunk) && self.phase != ControlPhase::PacketTrain {
            self.since = chunk + 1;
        }
    }

    fn is_ahead(&self, chunk: u32) -> bool {
        match self.phase {
            ControlPhase::PacketTrain => chunk >= TRAIN_PACKETS,
            ControlPhase::SlowStart(_) => {
                chunk >= self.reported.saturating_mul(2).saturating_add(TRAIN_PACKETS)
            }
            _ => false,
        }
    }

    /// Whether slowing down does not make the tree heard.
    pub(crate) fn is_useless(&self) -> bool {
        self.lossy_rounds >= USELESS_ROUNDS
    }

    /// The driver allows another rate.
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

    /// These chunks, a round, were reported on; `next` is to be sent next, and an answer takes `rtt` without queues.
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
        // What was held back or sent at another rate does not tell what the path carries. A queue is a queue.
        let found = matches!(self.phase, ControlPhase::SlowStart(_)) && sample.queue > self.long();
        if round.start < self.since && !found {
            return;
        }
        let before = self.current;
        if u64::from(sample.loss) > FULL_LOSS / 2 && sample.queue < SHORTEST_QUEUE {
            self.lossy_rounds += 1;
            (self.phase, self.trial) = (ControlPhase::Increasing(0), None);
            self.current = self.current.min(2 * UNREPORTED_RATE) / 2;
        } else {
            self.lossy_rounds = 0;
            self.longest = self.longest.max(sample.queue);
            self.step(sample, now - self.at, rtt);
        }
        self.at = now;
        let slowest = RATE_MIN.min(self.ceiling.unwrap_or(u64::MAX));
        self.current = self.current.clamp(slowest, self.ceiling.unwrap_or(TRAIN_RATE));
        if self.current != before {
            self.since = next;
        }
    }

    fn step(&mut self, sample: RateSample, elapsed: Duration, rtt: Duration) {
        let loss = u64::from(sample.loss);
        // What overflows a queue does not slow what is behind it.
        let arrived = (FULL_LOSS - loss.saturating_sub(self.baseline_loss)) as f64 / FULL_LOSS as f64;
        let carried = sample.carried.map_or(self.current, |carried| carried.min(self.current));
        let through = (carried as f64 * arrived) as u64;
        let long = self.long();
        let (waits, is_empty) = (sample.queue > long, sample.queue < long / EMPTY_QUEUE_PART);
        match self.phase {
            ControlPhase::PacketTrain => self.measure_train(sample.carried),
            ControlPhase::SlowStart(before) => {
                self.slow_start(before, carried, carried / FULL_LOSS * (FULL_LOSS - loss), waits)
            }
            ControlPhase::Increasing(_) if waits => {
                self.trial = None;
                self.phase = self.draining();
                self.drain(through, sample.queue > 4 * long);
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
                self.drain(through, sample.queue > 4 * long);
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
                // One packet more in each round trip, in each round trip.
                let trip = (rtt + sample.queue).max(SHORTEST_QUEUE).as_secs_f64();
                let more = self.frame as f64 / trip * (elapsed.as_secs_f64() / trip);
                self.current += (more as u64).min(self.current / 2);
            }
        }
    }

    /// Takes the rate at which the first packets came, unless it is near the ceiling.
    fn measure_train(&mut self, carried: Option<u64>) {
        let Some(carried) = carried else { return };
        if self.ceiling.is_some() && self.keeps_up(carried) {
            self.phase = ControlPhase::Increasing(0);
        } else {
            (self.phase, self.current) = (ControlPhase::SlowStart(0), carried.min(self.current));
        }
    }

    /// Goes twice as fast if that may bring more through.
    fn slow_start(&mut self, before: u64, carried: u64, arrived: u64, waits: bool) {
        let keeps_up = self.keeps_up(carried) && !waits;
        if keeps_up && self.ceiling.is_some_and(|ceiling| self.current >= ceiling) {
            self.phase = ControlPhase::Increasing(0);
        } else if keeps_up && arrived > before + before / 4 {
            self.phase = ControlPhase::SlowStart(arrived);
            self.current *= 2;
        } else {
            self.current = carried.min(self.current - self.current / 4);
            self.phase = if waits { self.draining() } else { ControlPhase::Increasing(0) };
        }
    }

    /// The longest that packets are to wait in queues.
    fn long(&self) -> Duration {
        let packets = if self.background { QUEUED_PACKETS / BACKGROUND_QUEUE_PART } else { QUEUED_PACKETS };
        // A stream that has given way is far slower than the path.
        let rate = if let ControlPhase::Yielding { before } = self.phase { before } else { self.current };
        SHORTEST_QUEUE.max(time_of(packets * self.frame, rate))
    }

    /// Whether the path carries what is sent, as far as a single round tells.
    fn keeps_up(&self, carried: u64) -> bool {
        carried >= self.current - self.current / 4
    }

    /// From the rate as it is now.
    fn draining(&self) -> ControlPhase {
        ControlPhase::Draining { before: self.current, times: 0 }
    }

    /// A little slower than what came through; but a single round may have been slow by chance.
    fn drain(&mut self, through: u64, full: bool) {
        let most = self.current / if full { 4 } else { 8 };
        self.current = (through - through / STEP_PART).max(self.current - most);
    }

    /// Goes faster, unless that is what makes the path lose.
    fn increase(&mut self, loss: u64, times: u32) {
        self.phase = ControlPhase::Increasing(times);
        if let Some((rate, loss_then)) = self.trial.take() {
            // What would be lost if nothing were but what is too fast.
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
            // The latest loss is that of the latest rate, which the smoothed one lags behind.
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

#[cfg(test)]
mod tests;
