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
//! Where queues are too short to be seen, loss that rises is answered by a trial: at a slower rate, is it cured?
//! If not, the path loses that much anyway and the old rate is taken up again.

use crate::congestion::pacing::time_of;
use crate::congestion::queueing_delay::SHORTEST_QUEUE;
use crate::spec::RateSpec;
use crate::stats::RatePhase;
use cool_machine::{Duration, Time};

/// Loss in 65535ths.
pub(crate) type Loss = u16;
/// Stands for a loss that was not measured.
pub(crate) const UNREPORTED: Loss = Loss::MAX;

/// Everything was lost.
const ALL: u64 = Loss::MAX as u64;
/// Bytes per second without a ceiling while no report is in: ten packets in ten milliseconds.
const MODEST: u64 = 1_500_000;
/// Bytes per second of the first packets without a ceiling. By their spacing they tell how fast the path is.
const AT_ONCE: u64 = 5_000_000_000;
/// Packets of the train. For each chunk that was reported on two more may go at the rate that is sought.
const TRAIN: u32 = 16;
/// The slowest rate, in bytes per second.
const SLOWEST: u64 = 64 * 1024;
/// Packets of this stream that may wait in queues.
const QUEUED_PACKETS: u64 = 16;
/// A queue is gone when it is shorter than one part in this many of what may wait.
const GONE: u32 = 4;
/// The rate is changed by one part in this many, or by up to eight times that when there is no queue.
const STEP: u64 = 16;
/// Rounds of draining without curing the queue until it counts as others'.
const DRAIN_ROUNDS: u32 = 6;
/// Loss beyond the baseline, in 65535ths, that may be congestion: where there is no queue, and where it is long.
const CONGESTED: u64 = ALL / 16;
const OVERFLOW: u64 = ALL / 64;
/// Rounds before the first slow-down trial where the path is verified to carry the rate: there loss is probably random.
const VERIFIED_PAUSE: u32 = 8;
/// The most rounds between slow-down trials.
const MOST_PAUSE: u32 = 64;
/// Rounds in a row of which nobody heard half that make a tree useless; the rate is halved at each.
const USELESS: u32 = 6;

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
enum Phase {
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
}

/// The rate of a source.
#[derive(Debug)]
pub(crate) struct Rate {
    /// Bytes of a packet.
    frame: u64,
    ceiling: Option<u64>,
    current: u64,
    phase: Phase,
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
    unheard: u32,
}

impl Rate {
    /// The rate to begin with, of packets of `frame` bytes each.
    pub(crate) fn new(spec: RateSpec, frame: u64) -> Rate {
        let verified = spec.verified && spec.ceiling.is_some();
        Rate {
            frame,
            ceiling: spec.ceiling,
            current: spec.ceiling.unwrap_or(AT_ONCE).max(1),
            phase: if verified { Phase::Increasing(0) } else { Phase::PacketTrain },
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
            pause: if verified { VERIFIED_PAUSE } else { 1 },
            unheard: 0,
        }
    }

    /// Bytes per second, the queue that receivers last reported, and what is done about it.
    pub(crate) fn state(&self) -> (u64, Duration, RatePhase) {
        let phase = match self.phase {
            Phase::PacketTrain => RatePhase::PacketTrain,
            Phase::SlowStart(_) => RatePhase::SlowStart,
            Phase::Increasing(_) => RatePhase::Increasing,
            Phase::Draining { .. } => RatePhase::Draining,
            Phase::Competing => RatePhase::Competing,
        };
        (self.current, self.queue, phase)
    }

    /// Bytes per second at which to send a chunk.
    pub(crate) fn of(&self, chunk: u32) -> u64 {
        if self.is_ahead(chunk) { self.current.min(MODEST) } else { self.current }
    }

    /// A chunk was sent. A round of which one was held back does not tell what the path carries.
    pub(crate) fn on_sent(&mut self, chunk: u32) {
        if self.is_ahead(chunk) && self.phase != Phase::PacketTrain {
            self.since = chunk + 1;
        }
    }

    fn is_ahead(&self, chunk: u32) -> bool {
        match self.phase {
            Phase::PacketTrain => chunk >= TRAIN,
            Phase::SlowStart(_) => chunk >= self.reported.saturating_mul(2).saturating_add(TRAIN),
            _ => false,
        }
    }

    /// Whether slowing down does not make the tree heard.
    pub(crate) fn is_useless(&self) -> bool {
        self.unheard >= USELESS
    }

    /// The driver allows another rate.
    pub(crate) fn set_ceiling(&mut self, ceiling: Option<u64>) {
        let before = core::mem::replace(&mut self.ceiling, ceiling);
        let Some(ceiling) = ceiling else { return };
        if before.is_none_or(|before| self.current >= before) || self.current > ceiling {
            self.current = ceiling.max(1);
            self.trial = None;
            if self.phase != Phase::PacketTrain {
                self.phase = Phase::Increasing(0);
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
        let found = matches!(self.phase, Phase::SlowStart(_)) && sample.queue > self.long();
        if round.start < self.since && !found {
            return;
        }
        let before = self.current;
        if u64::from(sample.loss) > ALL / 2 && sample.queue < SHORTEST_QUEUE {
            self.unheard += 1;
            (self.phase, self.trial) = (Phase::Increasing(0), None);
            self.current = self.current.min(2 * MODEST) / 2;
        } else {
            self.unheard = 0;
            self.longest = self.longest.max(sample.queue);
            self.step(sample, now - self.at, rtt);
        }
        self.at = now;
        let slowest = SLOWEST.min(self.ceiling.unwrap_or(u64::MAX));
        self.current = self.current.clamp(slowest, self.ceiling.unwrap_or(AT_ONCE));
        if self.current != before {
            self.since = next;
        }
    }

    fn step(&mut self, sample: RateSample, elapsed: Duration, rtt: Duration) {
        let loss = u64::from(sample.loss);
        // What overflows a queue does not slow what is behind it.
        let arrived = (ALL - loss.saturating_sub(self.baseline_loss)) as f64 / ALL as f64;
        let carried = sample.carried.map_or(self.current, |carried| carried.min(self.current));
        let through = (carried as f64 * arrived) as u64;
        let long = self.long();
        let (waits, gone) = (sample.queue > long, sample.queue < long / GONE);
        match self.phase {
            Phase::PacketTrain => self.measure_train(sample.carried),
            Phase::SlowStart(before) => self.slow_start(before, carried, carried / ALL * (ALL - loss), waits),
            Phase::Increasing(_) if waits => {
                self.trial = None;
                self.phase = self.draining();
                self.drain(through, sample.queue > 4 * long);
            }
            Phase::Increasing(times) => self.increase(loss, if gone { times + 1 } else { 0 }),
            Phase::Draining { before, .. } if gone => {
                self.phase = Phase::Increasing(0);
                self.current = (before + self.current) / 2;
            }
            Phase::Draining { times: DRAIN_ROUNDS.., .. } => self.phase = Phase::Competing,
            Phase::Draining { before, times } => {
                self.phase = Phase::Draining { before, times: times + 1 };
                self.drain(through, sample.queue > 4 * long);
            }
            Phase::Competing if gone => self.phase = Phase::Increasing(0),
            Phase::Competing if loss > self.baseline_loss + OVERFLOW && sample.queue > self.longest / 2 => {
                self.current -= self.current / 3;
            }
            Phase::Competing => {
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
            self.phase = Phase::Increasing(0);
        } else {
            (self.phase, self.current) = (Phase::SlowStart(0), carried.min(self.current));
        }
    }

    /// Goes twice as fast if that may bring more through.
    fn slow_start(&mut self, before: u64, carried: u64, arrived: u64, waits: bool) {
        let keeps_up = self.keeps_up(carried) && !waits;
        if keeps_up && self.ceiling.is_some_and(|ceiling| self.current >= ceiling) {
            self.phase = Phase::Increasing(0);
        } else if keeps_up && arrived > before + before / 4 {
            self.phase = Phase::SlowStart(arrived);
            self.current *= 2;
        } else {
            self.current = carried.min(self.current - self.current / 4);
            self.phase = if waits { self.draining() } else { Phase::Increasing(0) };
        }
    }

    /// The longest that packets are to wait in queues.
    fn long(&self) -> Duration {
        SHORTEST_QUEUE.max(time_of(QUEUED_PACKETS * self.frame, self.current))
    }

    /// Whether the path carries what is sent, as far as a single round tells.
    fn keeps_up(&self, carried: u64) -> bool {
        carried >= self.current - self.current / 4
    }

    /// From the rate as it is now.
    fn draining(&self) -> Phase {
        Phase::Draining { before: self.current, times: 0 }
    }

    /// A little slower than what came through; but a single round may have been slow by chance.
    fn drain(&mut self, through: u64, full: bool) {
        let most = self.current / if full { 4 } else { 8 };
        self.current = (through - through / STEP).max(self.current - most);
    }

    /// Goes faster, unless that is what makes the path lose.
    fn increase(&mut self, loss: u64, times: u32) {
        self.phase = Phase::Increasing(times);
        if let Some((rate, loss_then)) = self.trial.take() {
            // What would be lost if nothing were but what is too fast.
            let least = ALL - ((ALL - loss_then) * rate / self.current).min(ALL);
            if 2 * loss <= loss_then + least {
                (self.loss, self.pause, self.last_congested_rate) = (loss, 1, rate);
            } else {
                (self.current, self.baseline_loss) = (rate, loss_then);
                self.pause = (2 * self.pause).min(MOST_PAUSE);
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
            let slower = self.current * (ALL - loss) / (ALL - self.baseline_loss);
            self.current = slower.max(self.current - self.current / 4);
        } else {
            self.baseline_loss = self.baseline_loss.min((self.baseline_loss * 15 + self.loss) / 16);
            let near = self.current > self.last_congested_rate - self.last_congested_rate / 4;
            self.current += self.current * (1 << if near { 0 } else { (times / 2).min(3) }) / STEP;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 1514;
    const MS: Duration = Duration::from_millis(1);

    /// A path with a queue, and sources that send over it in rounds of 64 chunks and hear of them at once.
    struct Path {
        carries: u64,
        /// Bytes that fit its queue, and that are in it.
        queue: f64,
        waiting: f64,
        /// What it loses anyway, in 65535ths.
        loses: u64,
        /// Bytes per second that others keep on it unless it overflows.
        others: f64,
    }

    impl Path {
        fn new(carries: u64) -> Path {
            Path { carries, queue: carries as f64 / 10.0, waiting: 0.0, loses: 0, others: 0.0 }
        }

        /// Lets the sources send for so many steps of 10 ms; returns the mean rates of the second half.
        fn run(&mut self, rates: &mut [Rate], steps: u32) -> Vec<u64> {
            let mut sent = vec![0; rates.len()];
            for step in 0..steps {
                // The first packets alone are no load.
                let of = |rate: &Rate| if rate.phase == Phase::PacketTrain { MODEST } else { rate.current };
                let offered = rates.iter().map(of).sum::<u64>() as f64 + self.others;
                let waiting = self.waiting + (offered - self.carries as f64) / 100.0;
                self.waiting = waiting.clamp(0.0, self.queue);
                let lost = (waiting - self.queue).max(0.0) * 100.0 / offered;
                let share = if self.waiting > 0.0 { (self.carries as f64 / offered).min(1.0) } else { 1.0 };
                let sample = RateSample {
                    loss: (ALL as f64 * lost) as Loss + self.loses as Loss,
                    carried: None,
                    queue: Duration::from_secs_f64(self.waiting / self.carries as f64),
                };
                let now = Time::ZERO + 10 * MS * step;
                for (rate, sent) in rates.iter_mut().zip(&mut sent) {
                    *sent += if step >= steps / 2 { rate.current } else { 0 };
                    let carried = if rate.phase == Phase::PacketTrain {
                        self.carries.min(rate.current)
                    } else {
                        rate.current
                    };
                    let sample = RateSample { carried: Some((carried as f64 * share) as u64), ..sample };
                    rate.on_round(now, step * 64..step * 64 + 64, step * 64, sample, MS);
                }
            }
            sent.into_iter().map(|sent| sent / u64::from(steps - steps / 2)).collect()
        }
    }

    fn rate(ceiling: Option<u64>) -> Rate {
        Rate::new(RateSpec { ceiling, verified: true }, FRAME)
    }

    #[test]
    fn it_finds_what_the_path_carries_and_keeps_its_queue_short() {
        for carries in [200_000, 2_500_000, 125_000_000, 1_250_000_000] {
            let mut path = Path::new(carries);
            let found = path.run(&mut [rate(None)], 200)[0];
            assert!(found > carries * 9 / 10 && found < carries * 21 / 20, "{found} of {carries}");
        }
    }

    #[test]
    fn a_fast_path_is_filled_within_a_few_reports() {
        let mut rates = [rate(None)];
        Path::new(125_000_000).run(&mut rates, 5);
        assert!(rates[0].of(0) > 100_000_000, "{}", rates[0].of(0));
    }

    #[test]
    fn until_reports_come_only_a_few_packets_leave_at_once() {
        let mut rate = rate(None);
        assert_eq!((rate.of(15), rate.of(16)), (AT_ONCE, MODEST));
        let sample = RateSample { loss: 0, carried: Some(20_000_000), queue: Duration::ZERO };
        rate.on_round(Time::ZERO, 0..16, 20, sample, MS);
        assert_eq!((rate.of(47), rate.of(48)), (20_000_000, MODEST));
        // A round of which some was held back does not count.
        rate.on_sent(50);
        rate.on_round(Time::ZERO, 16..48, 51, RateSample { carried: Some(2_000_000), ..sample }, MS);
        assert_eq!(rate.of(111), 20_000_000);
    }

    #[test]
    fn a_ceiling_that_is_not_verified_is_not_where_it_starts() {
        let unverified = || Rate::new(RateSpec { ceiling: Some(1_250_000_000), verified: false }, FRAME);
        let mut rate = unverified();
        assert_eq!((rate.of(15), rate.of(16)), (1_250_000_000, MODEST));
        let sample = RateSample { loss: 0, carried: Some(7_000_000), queue: 20 * MS };
        rate.on_round(Time::ZERO, 0..16, 20, sample, MS);
        assert_eq!((rate.of(47), rate.of(48)), (7_000_000, MODEST));
        rate.set_ceiling(Some(625_000_000));
        assert_eq!(rate.of(47), 7_000_000);

        let found = Path::new(2_500_000).run(&mut [unverified()], 200)[0];
        assert!((2_200_000..2_700_000).contains(&found), "{found}");
        let found = Path::new(2_500_000_000).run(&mut [unverified()], 20)[0];
        assert_eq!(found, 1_250_000_000);
    }

    #[test]
    fn a_queue_that_is_found_while_seeking_ends_that_although_packets_were_held_back() {
        let mut rate = rate(None);
        rate.on_round(Time::ZERO, 0..16, 20, RateSample { loss: 0, carried: Some(6_600_000), queue: MS }, MS);
        // Nothing but the first two rounds was sent at that rate.
        (20..200).for_each(|chunk| rate.on_sent(chunk));
        rate.on_round(
            Time::ZERO,
            48..112,
            200,
            RateSample { loss: 0, carried: Some(2_500_000), queue: MS },
            MS,
        );
        assert_eq!(rate.phase, Phase::SlowStart(0));
        rate.on_round(
            Time::ZERO,
            112..176,
            200,
            RateSample { loss: 0, carried: Some(2_500_000), queue: 20 * MS },
            MS,
        );
        assert_eq!(rate.of(200), 2_500_000);
    }

    #[test]
    fn who_came_first_and_who_came_later_get_equal_shares() {
        let mut rates = [rate(Some(2_500_000)), rate(Some(2_500_000))];
        rates[1].current = 300_000;
        let shares = Path::new(2_500_000).run(&mut rates, 600);
        assert!(shares.iter().all(|share| (1_000_000..1_500_000).contains(share)), "{shares:?}");
    }

    #[test]
    fn loss_that_does_not_come_from_sending_does_not_slow_it() {
        let mut path = Path { loses: ALL / 5, ..Path::new(125_000_000) };
        let found = path.run(&mut [rate(None)], 200)[0];
        assert!(found > 110_000_000, "{found}");
    }

    #[test]
    fn where_no_queue_is_seen_it_still_finds_what_the_path_carries() {
        let mut path = Path { queue: 1.0, ..Path::new(1_200_000) };
        let found = path.run(&mut [rate(Some(2_000_000))], 400)[0];
        assert!(found > 1_000_000 && found < 1_400_000, "{found}");
    }

    #[test]
    fn a_ceiling_is_where_it_starts_and_what_it_keeps() {
        let mut rate = rate(Some(1_000_000));
        let sample = RateSample { loss: (ALL / 10) as Loss, carried: None, queue: Duration::ZERO };
        let mut slower = 0;
        for round in 0..100 {
            rate.on_round(Time::ZERO, round..round + 1, round, sample, MS);
            slower += u32::from(rate.of(round) < 1_000_000);
        }
        assert_eq!((slower, rate.of(100)), (1, 1_000_000));
        rate.set_ceiling(Some(500_000));
        assert_eq!(rate.of(100), 500_000);
    }

    #[test]
    fn a_queue_that_others_keep_does_not_starve_it() {
        let mut path = Path { waiting: 250_000.0, others: 2_000_000.0, ..Path::new(2_500_000) };
        let mut rates = [rate(None)];
        path.run(&mut rates, 200);
        assert_eq!(rates[0].phase, Phase::Competing);
        assert!(rates[0].of(0) > 400_000, "{}", rates[0].of(0));
    }

    #[test]
    fn when_nobody_hears_half_it_slows_to_a_floor() {
        let mut rate = rate(None);
        let sample = RateSample { loss: UNREPORTED - 1, carried: None, queue: Duration::ZERO };
        for round in 0..100 {
            rate.on_round(Time::ZERO, round * 10..round * 10 + 10, round * 10, sample, MS);
        }
        assert_eq!(rate.of(2000), SLOWEST);
        assert!(rate.is_useless());
    }
}
