//! Distributions drawn from a seed: shapes, codes, orders, losses, late nodes and crashes.

use super::{Liar, SwarmScenario};
use cool_machine::Duration;
use cool_swarm::{Code, Division, Order};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

impl SwarmScenario {
    /// Returns the distribution of a seed, with real bytes.
    pub fn of(seed: u64) -> SwarmScenario {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let racks: Vec<u32> = (0..rng.random_range(1..5)).map(|_| rng.random_range(1..7)).collect();
        let generation = rng.random_range(1..17);
        let division = Division { blocks: rng.random_range(1..70), generation };
        let nodes = racks.iter().sum::<u32>() as usize;
        let mut what = SwarmScenario { payload: 12, seed, ..SwarmScenario::clean(racks, division) };
        what.keeps_racks_together = rng.random_bool(0.7);
        what.code = match rng.random_range(0..5) {
            0 => Code::RandomBlock,
            1 => Code::RarestBlock,
            _ => Code::Linear,
        };
        what.order = match rng.random_range(0..4) {
            0 => Order::Overlap1,
            1 => Order::Overlap2 { margin: rng.random_range(0..4) },
            _ => Order::LowestRank { window: rng.random_range(1..9) },
        };
        what.sources = (0..nodes).filter(|node| *node == 0 || rng.random_bool(0.1)).collect();
        if rng.random_bool(0.5) {
            what.uplink = Some(what.host * rng.random_range(1..8) / 2);
        }
        let slower = what.host / rng.random_range(2..5);
        what.slow = (0..nodes).filter(|_| rng.random_bool(0.15)).map(|node| (node, slower)).collect();
        what.end_notice = Duration::from_micros(rng.random_range(0..3000));
        if rng.random_bool(0.5) {
            what.loss = rng.random_range(0.0..0.3);
            what.duplicate = rng.random_range(0.0..0.3);
            what.block_loss = rng.random_range(0.0..0.2);
        }
        what.churn(&mut rng);
        what.lie(&mut rng);
        what
    }

    /// Draws the nodes that join late, crash and restart. Sources may be among them.
    fn churn(&mut self, rng: &mut ChaCha8Rng) {
        let (joins, crashes) = (rng.random_bool(0.4), rng.random_bool(0.5));
        let span = 2.0 * self.limit();
        for node in 0..self.nodes() {
            if joins && !self.sources.contains(&node) && rng.random_bool(0.2) {
                self.joins.push((node, Duration::from_secs_f64(rng.random_range(0.0..span))));
            }
            if crashes && rng.random_bool(0.2) {
                let at = Duration::from_secs_f64(rng.random_range(0.0..span));
                self.crashes.push((node, at));
                if rng.random_bool(0.3) {
                    // Other nodes have been notified of the crash by then.
                    let least = (self.notice + self.latency * 2).as_secs_f64();
                    self.restarts.push((
                        node,
                        at + Duration::from_secs_f64(rng.random_range(least..2.0 * span + 2.0 * least)),
                    ));
                }
            }
        }
    }

    /// Draws the nodes that lie. There are few, and the first source never lies.
    fn lie(&mut self, rng: &mut ChaCha8Rng) {
        if rng.random_bool(0.7) {
            return;
        }
        for node in 1..self.nodes() {
            if rng.random_bool(0.15) {
                let wrong = if rng.random_bool(0.5) { 1.0 } else { rng.random_range(0.01..1.0) };
                self.liars.push(Liar { node, wrong, boasts: rng.random_bool(0.5) });
            }
        }
    }
}
