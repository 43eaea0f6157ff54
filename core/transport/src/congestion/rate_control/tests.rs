//! Tests a source's rate under simulated reports: how it reaches the rate of the path, with queues
//! and losses.

use super::*;

const FRAME: u64 = 1514;
const MS: Duration = Duration::from_millis(1);

/// A path with a queue, shared by sources that send rounds of 64 chunks and receive their reports
/// at once.
struct Path {
    carries: u64,
    /// Bytes that fit into the queue, and bytes that are in it.
    queue: f64,
    waiting: f64,
    /// Loss of the path at any rate, as a [`Loss`].
    loses: u64,
    /// Bytes per second that other traffic keeps on the path until the queue overflows.
    others: f64,
    /// Steps so far.
    steps: u32,
}

impl Path {
    fn new(carries: u64) -> Path {
        Path { carries, queue: carries as f64 / 10.0, waiting: 0.0, loses: 0, others: 0.0, steps: 0 }
    }

    /// Runs the sources for this many steps of 10 ms. Returns the mean rates of the second half.
    fn run(&mut self, rates: &mut [RateControl], steps: u32) -> Vec<u64> {
        let mut sent = vec![0; rates.len()];
        for step in self.steps..self.steps + steps {
            // The first packets alone are no load.
            let of = |rate: &RateControl| {
                if rate.phase == ControlPhase::PacketTrain { AHEAD_RATE_MAX } else { rate.current }
            };
            let offered = rates.iter().map(of).sum::<u64>() as f64 + self.others;
            let waiting = self.waiting + (offered - self.carries as f64) / 100.0;
            self.waiting = waiting.clamp(0.0, self.queue);
            let lost = (waiting - self.queue).max(0.0) * 100.0 / offered;
            let share = if self.waiting > 0.0 { (self.carries as f64 / offered).min(1.0) } else { 1.0 };
            let sample = RateSample {
                loss: (FULL_LOSS as f64 * lost) as Loss + self.loses as Loss,
                carried: None,
                queue: Duration::from_secs_f64(self.waiting / self.carries as f64),
            };
            let now = Time::ZERO + 10 * MS * step;
            for (rate, sent) in rates.iter_mut().zip(&mut sent) {
                *sent += if step - self.steps >= steps / 2 { rate.current } else { 0 };
                let carried = if rate.phase == ControlPhase::PacketTrain {
                    self.carries.min(rate.current)
                } else {
                    rate.current
                };
                let sample = RateSample { carried: Some((carried as f64 * share) as u64), ..sample };
                rate.on_round(now, step * 64..step * 64 + 64, step * 64, sample, MS);
            }
        }
        self.steps += steps;
        sent.into_iter().map(|sent| sent / u64::from(steps - steps / 2)).collect()
    }
}

fn rate(ceiling: Option<u64>) -> RateControl {
    RateControl::new(RateSpec { ceiling, verified: true, found: None, background: false }, FRAME, 64)
}

/// Returns a rate whose ceiling may belong to a port in front of a slower path.
fn unverified(ceiling: Option<u64>, found: Option<u64>) -> RateControl {
    RateControl::new(RateSpec { ceiling, verified: false, found, background: false }, FRAME, 64)
}

/// Returns a report on a round that arrived all at once.
fn at_once() -> RateSample {
    RateSample { loss: 0, carried: None, queue: Duration::ZERO }
}

fn in_background(ceiling: Option<u64>) -> RateControl {
    RateControl::new(RateSpec { ceiling, verified: true, found: None, background: true }, FRAME, 64)
}

#[test]
fn it_finds_the_rate_of_the_path_and_keeps_its_queue_short() {
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
    assert!(rates[0].rate_for(0) > 100_000_000, "{}", rates[0].rate_for(0));
}

#[test]
fn only_a_few_packets_leave_before_the_first_report() {
    let mut rate = rate(None);
    assert_eq!((rate.rate_for(15), rate.rate_for(16)), (TRAIN_RATE, AHEAD_RATE_MAX));
    let sample = RateSample { loss: 0, carried: Some(20_000_000), queue: Duration::ZERO };
    rate.on_round(Time::ZERO, 0..16, 20, sample, MS);
    assert_eq!((rate.rate_for(47), rate.rate_for(48)), (20_000_000, AHEAD_RATE_MAX));
    // A round of which some packets were held back does not count.
    rate.on_sent(50);
    rate.on_round(Time::ZERO, 16..48, 51, RateSample { carried: Some(2_000_000), ..sample }, MS);
    assert_eq!(rate.rate_for(111), 20_000_000);
}

#[test]
fn a_ceiling_that_is_not_verified_is_not_where_it_starts() {
    let unverified = || unverified(Some(1_250_000_000), None);
    let mut rate = unverified();
    assert_eq!((rate.rate_for(15), rate.rate_for(16)), (1_250_000_000, AHEAD_RATE_MAX));
    let sample = RateSample { loss: 0, carried: Some(7_000_000), queue: 20 * MS };
    rate.on_round(Time::ZERO, 0..16, 20, sample, MS);
    assert_eq!((rate.rate_for(47), rate.rate_for(48)), (7_000_000, AHEAD_RATE_MAX));
    rate.set_ceiling(Some(625_000_000));
    assert_eq!(rate.rate_for(47), 7_000_000);

    let found = Path::new(2_500_000).run(&mut [unverified()], 200)[0];
    assert!((2_200_000..2_700_000).contains(&found), "{found}");
    let found = Path::new(2_500_000_000).run(&mut [unverified()], 20)[0];
    assert_eq!(found, 1_250_000_000);
}

#[test]
fn packets_that_arrive_all_at_once_show_a_fast_path() {
    let mut rate = unverified(Some(1_250_000_000), None);
    rate.on_round(Time::ZERO, 0..16, 20, at_once(), MS);
    assert_eq!((rate.phase, rate.rate_for(17)), (ControlPhase::Increasing(0), 1_250_000_000));
}

#[test]
fn a_stream_starts_at_the_rate_that_an_earlier_one_found() {
    let start = |ceiling| unverified(ceiling, Some(70_000_000));
    assert_eq!(
        [None, Some(50_000_000)].map(|ceiling| start(ceiling).rate_for(100)),
        [70_000_000, 50_000_000]
    );
    assert_eq!((start(None).found(), rate(None).found()), (None, None));
    let mut rate = start(None);
    rate.on_round(Time::ZERO, 0..16, 20, at_once(), MS);
    assert_eq!(rate.found(), Some(rate.current));
}

#[test]
fn no_more_than_a_window_is_sent_ahead_of_the_reports() {
    let mut rate = rate(Some(1_250_000_000));
    let window = u32::try_from(WINDOW_BYTES_MIN / FRAME).unwrap();
    assert_eq!((rate.rate_for(window - 1), rate.rate_for(window)), (1_250_000_000, AHEAD_RATE_MAX));
    // A path of 1 ms holds 1.25 MB.
    rate.on_round(Time::ZERO, 0..64, 70, at_once(), MS);
    let window = 64 + u32::try_from(2_500_000 / FRAME).unwrap();
    assert_eq!((rate.rate_for(window - 1), rate.rate_for(window)), (1_250_000_000, AHEAD_RATE_MAX));
}

#[test]
fn a_queue_ends_slow_start_although_packets_were_held_back() {
    let mut rate = rate(None);
    rate.on_round(Time::ZERO, 0..16, 20, RateSample { loss: 0, carried: Some(6_600_000), queue: MS }, MS);
    // Only the first two rounds were sent at that rate.
    (20..200).for_each(|chunk| rate.on_sent(chunk));
    rate.on_round(Time::ZERO, 48..112, 200, RateSample { loss: 0, carried: Some(2_500_000), queue: MS }, MS);
    assert_eq!(rate.phase, ControlPhase::SlowStart(0));
    rate.on_round(
        Time::ZERO,
        112..176,
        200,
        RateSample { loss: 0, carried: Some(2_500_000), queue: 20 * MS },
        MS,
    );
    assert_eq!(rate.rate_for(200), 2_500_000);
}

#[test]
fn early_and_late_sources_get_equal_shares() {
    let mut rates = [rate(Some(2_500_000)), rate(Some(2_500_000))];
    rates[1].current = 300_000;
    let shares = Path::new(2_500_000).run(&mut rates, 600);
    assert!(shares.iter().all(|share| (1_000_000..1_500_000).contains(share)), "{shares:?}");
}

#[test]
fn loss_that_is_not_congestion_does_not_slow_it() {
    let mut path = Path { loses: FULL_LOSS / 5, ..Path::new(125_000_000) };
    let found = path.run(&mut [rate(None)], 200)[0];
    assert!(found > 110_000_000, "{found}");
}

#[test]
fn without_a_visible_queue_it_still_finds_the_rate_of_the_path() {
    let mut path = Path { queue: 1.0, ..Path::new(1_200_000) };
    let found = path.run(&mut [rate(Some(2_000_000))], 400)[0];
    assert!(found > 1_000_000 && found < 1_400_000, "{found}");
}

#[test]
fn it_starts_at_the_ceiling_and_never_exceeds_it() {
    let mut rate = rate(Some(1_000_000));
    let sample = RateSample { loss: (FULL_LOSS / 10) as Loss, carried: None, queue: Duration::ZERO };
    let mut slower = 0;
    for round in 0..100 {
        rate.on_round(Time::ZERO, round..round + 1, round, sample, MS);
        slower += u32::from(rate.rate_for(round) < 1_000_000);
    }
    assert_eq!((slower, rate.rate_for(100)), (1, 1_000_000));
    rate.set_ceiling(Some(500_000));
    assert_eq!(rate.rate_for(100), 500_000);
}

#[test]
fn a_queue_that_others_keep_does_not_starve_it() {
    let mut path = Path { waiting: 250_000.0, others: 2_000_000.0, ..Path::new(2_500_000) };
    let mut rates = [rate(None)];
    path.run(&mut rates, 200);
    assert_eq!(rates[0].phase, ControlPhase::Competing);
    assert!(rates[0].rate_for(0) > 400_000, "{}", rates[0].rate_for(0));
}

#[test]
fn when_no_receiver_gets_half_it_slows_to_a_floor() {
    let mut rate = rate(None);
    let sample = RateSample { loss: UNREPORTED - 1, carried: None, queue: Duration::ZERO };
    for round in 0..100 {
        rate.on_round(Time::ZERO, round * 10..round * 10 + 10, round * 10, sample, MS);
    }
    assert_eq!(rate.rate_for(2000), RATE_MIN);
    assert!(rate.is_useless());
}

#[test]
fn background_traffic_fills_a_free_path_and_yields_a_used_one() {
    for ceiling in [None, Some(2_500_000)] {
        let mut path = Path::new(2_500_000);
        let mut rates = [in_background(ceiling)];
        let alone = path.run(&mut rates, 200)[0];
        assert!(alone > 2_100_000, "{alone}");
        path.others = 2_400_000.0;
        let beside = path.run(&mut rates, 400)[0];
        assert!(beside < 120_000, "{beside}");
        path.others = 0.0;
        path.run(&mut rates, 30);
        assert!(rates[0].current > 2_000_000, "{}", rates[0].current);
    }
}

#[test]
fn foreground_traffic_gets_nearly_all_of_a_shared_path() {
    let mut rates = [rate(Some(2_500_000)), in_background(Some(2_500_000))];
    let shares = Path::new(2_500_000).run(&mut rates, 600);
    assert!(shares[0] > 2_200_000, "{shares:?}");
}
