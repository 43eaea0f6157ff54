//! Draws scenarios of groups with quick calls: the behavior of their ranks, in addition to the
//! contents of other scenarios.

use super::scenario::{
    CallScenario, CollectiveScenario, ELEMENT, Fault, GroupScenario, QuickScenario, ROOM, ScenarioGenerator,
};
use cool_machine::Duration;
use cool_quick::MESSAGE_BYTES_MAX;
use cool_types::Operation;

/// The longest pause of a rank in scenarios where a call times out.
const STILL: Duration = Duration::from_millis(300);

/// The highest loss for which losses occur in bursts.
const MUCH: f64 = 0.02;

impl CollectiveScenario {
    /// Returns the scenario of a seed, in which the groups have quick calls.
    pub fn with_quick_calls(seed: u64) -> CollectiveScenario {
        let mut draw = ScenarioGenerator::new(seed);
        let mut scenario = draw.quiet(seed);
        let shape = &mut scenario.cluster.shape;
        if shape.iter().sum::<u16>() < 2 {
            shape[0] += 1;
        }
        draw.links(&mut scenario);
        scatter(&mut scenario);
        let nodes: u16 = scenario.cluster.shape.iter().sum();
        let groups = draw.pick(&[(80, 1), (20, 2)]);
        scenario.groups = (0..groups).map(|_| draw.quick_group(nodes)).collect();
        draw.fault(&mut scenario, nodes);
        if let Fault::Absent { .. } = scenario.fault {
            let quick = scenario.groups.iter_mut().filter_map(|group| group.quick.as_mut());
            quick.flat_map(|quick| &mut quick.still).for_each(|(.., long)| *long = (*long).min(STILL));
        }
        scenario
    }
}

/// Removes bursts from links with high loss, because an agent that waits for long would sometimes
/// lose all pings within the peer timeout.
fn scatter(scenario: &mut CollectiveScenario) {
    let cluster = &mut scenario.cluster;
    let odd = scenario.odd_links.iter_mut().map(|(_, link)| link);
    let all = odd.chain([&mut cluster.host, &mut cluster.uplink]);
    all.filter(|link| link.loss > MUCH).for_each(|link| link.burst = 1.0);
}

impl ScenarioGenerator {
    fn quick_group(&mut self, nodes: u16) -> GroupScenario {
        let places = self.distinct(nodes);
        let size = places.len();
        // Programs repeat a few kinds of calls.
        let kinds = self.pick(&[(40, 2), (40, 4), (20, 8)]);
        let quick = self.quick_ranks(size);
        let is_long = quick.datagram_bytes > 0;
        let kinds: Vec<CallScenario> = (0..kinds).map(|_| self.quick_call(size, is_long)).collect();
        let calls = self.pick(&[(30, 2), (35, 5), (22, 12), (10, 40), (3, 160)]);
        let longest = Duration::from_micros(self.pick(&[(50, 0), (30, 1_000), (15, 60_000), (5, 1_000_000)]));
        let late = if calls > 12 { 0.05 } else { 0.5 };
        let calls = (0..calls).map(|_| {
            let kind = kinds[self.below(kinds.len())].clone();
            let longest = if self.chance(late) { longest } else { Duration::ZERO };
            CallScenario { after: (0..size).map(|_| self.moment(longest)).collect(), ..kind }
        });
        let calls = calls.collect();
        let messages = self.pick(&[(75, 0), (20, 2), (5, 8)]);
        GroupScenario {
            stripes: self.pick(&[(80, 1), (20, 2)]),
            deaf: if self.chance(0.05) { vec![places[self.below(size)]] } else { Vec::new() },
            chunk_bytes: 1424,
            open: self.pick(&[(50, 1), (50, 3)]),
            calls,
            messages: self.messages(messages, size as u32, 1424),
            quick: Some(quick),
            places,
        }
    }

    /// Returns two or more different nodes in random order.
    fn distinct(&mut self, nodes: u16) -> Vec<u16> {
        let mut all: Vec<u16> = (0..nodes).collect();
        let size = 2 + self.below(all.len() - 1);
        (0..size).map(|_| all.swap_remove(self.below(all.len()))).collect()
    }

    fn quick_ranks(&mut self, size: usize) -> QuickScenario {
        let longest = Duration::from_micros(self.pick(&[(60, 500), (30, 30_000), (10, 2_000_000)]));
        let still = self.pick(&[(60, 0), (30, 1), (10, 3)]);
        let still = (0..still).map(|_| {
            let longest = Duration::from_millis(self.pick(&[(60, 30), (30, 300), (10, 5_000)]));
            let from = self.moment(Duration::from_millis(40));
            (self.below(size) as u32, from, self.moment(longest))
        });
        QuickScenario {
            still: still.collect(),
            starts: (0..size).map(|_| self.moment(longest)).collect(),
            declines: if self.chance(0.07) { Some(self.below(size) as u32) } else { None },
            room: self.pick(&[(80, ROOM), (20, 20_000)]),
            datagram_bytes: self.pick(&[(60, 0), (40, 1472)]),
        }
    }

    /// Returns a call that is usually short enough to be quick. `is_long` states whether calls with
    /// long messages are.
    fn quick_call(&mut self, size: usize, is_long: bool) -> CallScenario {
        if self.chance(0.12) {
            let waits = self.chance(0.5);
            return CallScenario { waits, ..self.call(size, 1424) };
        }
        let operation = Operation::ALL[self.below(Operation::ALL.len())];
        let most = MESSAGE_BYTES_MAX / ELEMENT;
        let count = match self.below(20) {
            0 => 0,
            1..12 => 1 + self.below(16) as u64,
            12..15 => most + 2 - self.below(5) as u64,
            // Some calls are executed in pieces.
            16 | 17 if is_long => {
                let most = most << self.below(9);
                self.below(most as usize) as u64
            }
            15..17 => most / size as u64 + 1 - self.below(3) as u64,
            // Some operations remain quick if they need several messages.
            17 => self.below(4 * most as usize + 40) as u64,
            _ => self.below(most as usize) as u64,
        };
        let waits = !self.chance(0.1);
        let (counts, plan, after) = (None, String::new(), Vec::new());
        CallScenario { operation, root: self.below(size) as u32, count, counts, plan, after, waits }
    }
}
