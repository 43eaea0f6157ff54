//! The cost model that a group gets, by which its agents pick plans: rates that the operator has given, else what
//! probes have found, else what the switches' ports say. Who is probed when is [`crate::costs::prober`]'s matter.

pub mod prober;

use cool_collective::CostModel;
use cool_collective::planner::LinkCost;
use cool_proto::control::{Measured, Probed};
use std::time::Duration;

/// What a probe may have found at most: beyond it, something is wrong with its clock.
const LONGEST_LATENCY: Duration = Duration::from_secs(10);
const HIGHEST_RATE: u64 = 1_250_000_000_000;

/// What a probe has found of the way from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// One way, of a small message.
    pub latency: Duration,
    /// On the wire.
    pub bytes_per_second: u64,
    /// Bytes that pass at once when the links have been idle.
    pub burst: u64,
}

impl Found {
    /// Of each figure the median, so that a few probes that were disturbed do not count; none of none.
    pub fn median(found: &[Found]) -> Option<Found> {
        let middle = |of: fn(&Found) -> u64| {
            let mut all: Vec<u64> = found.iter().map(of).collect();
            all.sort_unstable();
            all.get(all.len() / 2).copied()
        };
        Some(Found {
            latency: Duration::from_nanos(middle(|f| nanos(f.latency))?),
            bytes_per_second: middle(|f| f.bytes_per_second)?,
            burst: middle(|f| f.burst)?,
        })
    }
}

/// What the model takes of it.
impl Found {
    fn rate(self) -> u64 {
        // As people say it, in bits.
        preferred(self.bytes_per_second.saturating_mul(8), FINE) / 8
    }

    fn round_latency(self) -> Duration {
        Duration::from_nanos(preferred(nanos(self.latency), COARSE))
    }

    fn round_burst(self) -> u64 {
        if self.burst == 0 { 0 } else { preferred(self.burst, COARSE) }
    }
}

impl TryFrom<&Probed> for Found {
    type Error = String;

    fn try_from(probed: &Probed) -> Result<Found, String> {
        let Probed { latency_ns, bytes_per_second, burst, failure, .. } = probed;
        if !failure.is_empty() {
            return Err(failure.clone());
        }
        let latency = Duration::from_nanos(*latency_ns);
        if latency > LONGEST_LATENCY || !(1..=HIGHEST_RATE).contains(bytes_per_second) {
            return Err(format!("it reports {latency:?} and {bytes_per_second} bytes per second"));
        }
        Ok(Found { latency, bytes_per_second: *bytes_per_second, burst: *burst })
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The nearest of the numbers that engineers prefer (IEC 60063), `steps` to a factor of ten: another measurement of
/// the same network then most likely gives the same model, and so the same plans and the same bits in every sum.
fn preferred(number: u64, steps: f64) -> u64 {
    let step = ((number.max(1) as f64).log10() * steps).round();
    let value = 10f64.powf(step / steps);
    let digits = 10f64.powf(value.log10().floor() - 1.0);
    ((value / digits).round() * digits).round() as u64
}

/// Steps to a factor of ten, for what is measured to about 15 % and to about 4 %.
const COARSE: f64 = 6.0;
const FINE: f64 = 24.0;

/// Rates that the operator has given, of each link; they count, whatever is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Between a node and its switch, bytes per second.
    pub host: Option<u64>,
    /// Between two switches, bytes per second.
    pub uplink: Option<u64>,
}

/// What is known of the links of some nodes, but for probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    /// Of the slowest link of a node, as its port says; 0: unknown.
    pub host: u64,
    /// Of the slowest link of a rack to other switches; 0: unknown.
    pub uplink: u64,
    /// The least number of such links of a rack.
    pub ecmp_paths: u32,
    /// The least of the nodes', bytes.
    pub mtu: u32,
}

/// What is known beside links: rates given, and the medians of the probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measurements {
    /// By the operator.
    pub given: Given,
    /// Between nodes of one rack, with the number of probes.
    pub rack: Option<(Found, usize)>,
    /// Between racks.
    pub core: Option<(Found, usize)>,
}

impl Measurements {
    /// The model for a group whose nodes have such links.
    pub fn cost_model(&self, links: Links) -> CostModel {
        let default = CostModel::default();
        let said = |rate: u64| (rate > 0).then_some(rate);
        let (rack, core) = (self.rack.map(|(found, _)| found), self.core.map(|(found, _)| found));
        let (near, far) = (rack.map(Found::rate), core.map(Found::rate));
        let host = self.given.host.or(near).or(said(links.host)).unwrap_or(default.rack.bytes_per_second);
        // Probes run between two nodes: that uplinks are faster than nodes' links, only their ports can say.
        let as_fast = near.zip(far).is_some_and(|(near, far)| far >= near - near / 10);
        let far = far.map(|far| if as_fast { far.max(links.uplink) } else { far });
        let uplink = self.given.uplink.or(far).or(said(links.uplink)).unwrap_or(host);
        let latency = rack.map_or(default.rack.latency, Found::round_latency);
        let farther = core.map_or(default.core.latency, Found::round_latency);
        let mut costs = default.costs;
        costs.mtu = u64::from(links.mtu);
        CostModel {
            costs,
            rack: LinkCost { latency, bytes_per_second: host },
            core: LinkCost { latency: farther.max(latency), bytes_per_second: uplink },
            ecmp_paths: links.ecmp_paths.max(1),
            burst: rack.or(core).map_or(default.burst, Found::round_burst),
        }
    }

    /// What was measured at one level, for a tool.
    pub fn message(level: Option<(Found, usize)>) -> Option<Measured> {
        level.map(|(found, probes)| Measured {
            probes: u32::try_from(probes).unwrap_or(u32::MAX),
            latency_ns: nanos(found.latency),
            bytes_per_second: found.bytes_per_second,
            burst: found.burst,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a probe reports it.
    fn found(micros: u64, bytes_per_second: u64) -> Found {
        Found { latency: Duration::from_micros(micros), bytes_per_second, burst: 16_000 }
    }

    const LINKS: Links = Links { host: 1000, uplink: 4000, ecmp_paths: 2, mtu: 9000 };

    fn rates(measurements: Measurements) -> (u64, u64) {
        let model = measurements.cost_model(LINKS);
        (model.rack.bytes_per_second, model.core.bytes_per_second)
    }

    #[test]
    fn a_few_disturbed_probes_do_not_count() {
        let of = [found(100, 50), found(9000, 2), found(110, 51), found(90, 52), found(120, 49)];
        assert_eq!(Found::median(&of), Some(found(110, 50)));
        assert_eq!(Found::median(&[]), None);
    }

    #[test]
    fn given_rates_count_more_than_measured_ones_and_those_more_than_what_ports_say() {
        let nothing = Measurements::default();
        assert_eq!(rates(nothing), (1000, 4000));
        let level = |rate| Some((found(100, rate), 3));
        let measured = Measurements { rack: level(125), core: level(25), ..nothing };
        assert_eq!(rates(measured), (125, 25));
        let given = Given { host: Some(70), uplink: Some(60) };
        assert_eq!(rates(Measurements { given, ..measured }), (70, 60));
    }

    #[test]
    fn an_uplink_as_fast_as_probes_can_see_is_as_fast_as_its_ports_say() {
        let level = |rate| Some((found(100, rate), 1));
        let measured = |uplink| Measurements { rack: level(1000), core: level(uplink), ..Default::default() };
        // 8300 bits per second, rounded, and 6800.
        assert_eq!(rates(measured(950)), (1037, 4000));
        assert_eq!(rates(measured(850)), (1037, 850));
    }

    #[test]
    fn before_anything_is_measured_the_default_latencies_count() {
        let (default, model) = (CostModel::default(), Measurements::default().cost_model(LINKS));
        assert_eq!((model.rack.latency, model.core.latency), (default.rack.latency, default.core.latency));
        assert_eq!((model.burst, model.ecmp_paths, model.costs.mtu), (default.burst, 2, 9000));
        let near = Measurements { rack: Some((found(5000, 50), 1)), ..Default::default() };
        let model = near.cost_model(LINKS);
        assert_eq!(model.core.latency, model.rack.latency, "racks are not nearer than nodes of one");
    }

    #[test]
    fn measurements_that_hardly_differ_give_one_model() {
        assert_eq!(
            [96, 100, 110, 2_490_000, 150_000].map(|n| preferred(n, COARSE)),
            [100, 100, 100, 2_200_000, 150_000]
        );
        assert_eq!([2_400_000, 2_500_000, 2_550_000].map(|rate| found(1, rate).rate()), [2_500_000; 3]);
        assert_eq!(preferred(0, FINE), 1);
    }

    #[test]
    fn a_report_that_cannot_be_is_refused() {
        let probed = Probed { latency_ns: 1000, bytes_per_second: 5, ..Default::default() };
        assert!(Found::try_from(&probed).is_ok());
        assert!(Found::try_from(&Probed { bytes_per_second: 0, ..probed.clone() }).is_err());
        assert!(Found::try_from(&Probed { latency_ns: u64::MAX, ..probed.clone() }).is_err());
        let failed = Probed { failure: "h2 does not answer".into(), ..probed };
        assert_eq!(Found::try_from(&failed), Err("h2 does not answer".to_owned()));
    }
}
