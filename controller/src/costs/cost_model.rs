//! The cost model by which a group's agents select plans.
//!
//! A rate configured by the operator takes precedence, then the results of probes, then the rates
//! of the switches' ports. [`crate::costs::prober`] schedules the probes.

use cool_collective::CostModel;
use cool_collective::planner::LinkCost;
use cool_collective::timing::nanos;
use cool_proto::control::{Measured, Probed};
use std::time::Duration;

/// Maximum plausible latency. A probe with a longer one most likely had a wrong clock.
const MAX_LATENCY: Duration = Duration::from_secs(10);
const MAX_BYTES_PER_SECOND: u64 = 1_250_000_000_000;

/// Result of a probe between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    /// One-way latency of a small message.
    pub latency: Duration,
    /// Rate on the wire.
    pub bytes_per_second: u64,
    /// Bytes that pass at once after the links have been idle.
    pub burst: u64,
}

impl ProbeResult {
    /// Returns the median of each value, so that a few disturbed probes have no effect. Returns
    /// `None` if there are no results.
    pub fn median(found: &[ProbeResult]) -> Option<ProbeResult> {
        let middle = |value: fn(&ProbeResult) -> u64| median(found.iter().map(value));
        Some(ProbeResult {
            latency: Duration::from_nanos(middle(|f| nanos(f.latency))?),
            bytes_per_second: middle(|f| f.bytes_per_second)?,
            burst: middle(|f| f.burst)?,
        })
    }
}

/// Rounded values for the cost model.
impl ProbeResult {
    fn rate(self) -> u64 {
        // Round the rate in bits, because links have round rates in bits.
        round_in_steps(self.bytes_per_second.saturating_mul(8), FINE) / 8
    }

    fn round_latency(self) -> Duration {
        Duration::from_nanos(round_to_preferred_number(nanos(self.latency)))
    }

    fn round_burst(self) -> u64 {
        if self.burst == 0 { 0 } else { round_to_preferred_number(self.burst) }
    }
}

impl TryFrom<&Probed> for ProbeResult {
    type Error = String;

    fn try_from(probed: &Probed) -> Result<ProbeResult, String> {
        let Probed { latency_ns, bytes_per_second, burst, failure, .. } = probed;
        if !failure.is_empty() {
            return Err(failure.clone());
        }
        let latency = Duration::from_nanos(*latency_ns);
        if latency > MAX_LATENCY || !(1..=MAX_BYTES_PER_SECOND).contains(bytes_per_second) {
            return Err(format!("implausible result: {latency:?} and {bytes_per_second} bytes per second"));
        }
        Ok(ProbeResult { latency, bytes_per_second: *bytes_per_second, burst: *burst })
    }
}

/// Returns the median, or `None` if there are no values.
pub(super) fn median(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// Rounds to the nearest preferred number (IEC 60063) of the series E6. Another measurement of the
/// same network then most likely yields the same cost model, and so the same plans and bitwise
/// equal sums.
pub(super) fn round_to_preferred_number(number: u64) -> u64 {
    round_in_steps(number, COARSE)
}

/// Rounds to the nearest preferred number with `steps` numbers per decade.
fn round_in_steps(number: u64, steps: f64) -> u64 {
    let step = ((number.max(1) as f64).log10() * steps).round();
    let value = 10f64.powf(step / steps);
    let digits = 10f64.powf(value.log10().floor() - 1.0);
    ((value / digits).round() * digits).round() as u64
}

/// Preferred numbers per decade, for values that are measured with an accuracy of about 15 % and of
/// about 4 %.
const COARSE: f64 = 6.0;
const FINE: f64 = 24.0;

/// Link rates configured by the operator. They take precedence over measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfiguredRates {
    /// Rate between a node and its switch, in bytes per second.
    pub host: Option<u64>,
    /// Rate between two switches, in bytes per second.
    pub uplink: Option<u64>,
}

/// Properties of the links of a group's nodes, as reported by switches and agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRates {
    /// Rate of the slowest node's link, in bytes per second. 0 if unknown.
    pub host: u64,
    /// Rate of the slowest link between switches, in bytes per second. 0 if unknown.
    pub uplink: u64,
    /// Smallest number of uplinks of a rack.
    pub ecmp_paths: u32,
    /// Smallest MTU of the nodes, in bytes.
    pub mtu: u32,
}

/// Configured rates, and the medians of the probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredCosts {
    /// Rates configured by the operator.
    pub configured: ConfiguredRates,
    /// Result within racks, with the number of probes.
    pub rack: Option<(ProbeResult, usize)>,
    /// Result between racks, with the number of probes.
    pub core: Option<(ProbeResult, usize)>,
}

impl MeasuredCosts {
    /// Returns the rates of the nodes' links and of the links between racks, in bytes per second,
    /// as configured, measured or reported by ports. `None` if unknown.
    pub fn rates(&self, links: LinkRates) -> (Option<u64>, Option<u64>) {
        let known = |rate: u64| (rate > 0).then_some(rate);
        let [near, far] = [self.rack, self.core].map(|level| level.map(|(found, _)| found.rate()));
        let host = self.configured.host.or(near).or(known(links.host));
        // A probe between two nodes is limited by the nodes' links. Only the ports can show that an
        // uplink is faster.
        let as_fast = near.zip(far).is_some_and(|(near, far)| far >= near - near / 10);
        let far = far.map(|far| if as_fast { far.max(links.uplink) } else { far });
        (host, self.configured.uplink.or(far).or(known(links.uplink)))
    }

    /// Returns the cost model for a group with these links.
    pub fn cost_model(&self, links: LinkRates) -> CostModel {
        let default = CostModel::default();
        let (rack, core) = (self.rack.map(|(found, _)| found), self.core.map(|(found, _)| found));
        let (host, uplink) = self.rates(links);
        let host = host.unwrap_or(default.rack.bytes_per_second);
        let uplink = uplink.unwrap_or(host);
        let latency = rack.map_or(default.rack.latency, ProbeResult::round_latency);
        let farther = core.map_or(default.core.latency, ProbeResult::round_latency);
        let mut costs = default.costs;
        costs.mtu = u64::from(links.mtu);
        CostModel {
            costs,
            rack: LinkCost { latency, bytes_per_second: host },
            core: LinkCost { latency: farther.max(latency), bytes_per_second: uplink },
            ecmp_paths: links.ecmp_paths.max(1),
            burst: rack.or(core).map_or(default.burst, ProbeResult::round_burst),
            unicast_plans: default.unicast_plans,
        }
    }

    /// Encodes the result of one level for tools.
    pub fn message(level: Option<(ProbeResult, usize)>) -> Option<Measured> {
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

    /// A result as reported by a probe.
    fn found(micros: u64, bytes_per_second: u64) -> ProbeResult {
        ProbeResult { latency: Duration::from_micros(micros), bytes_per_second, burst: 16_000 }
    }

    const LINK_RATES: LinkRates = LinkRates { host: 1000, uplink: 4000, ecmp_paths: 2, mtu: 9000 };

    fn rates(measurements: MeasuredCosts) -> (u64, u64) {
        let model = measurements.cost_model(LINK_RATES);
        (model.rack.bytes_per_second, model.core.bytes_per_second)
    }

    #[test]
    fn a_few_disturbed_probes_do_not_count() {
        let results = [found(100, 50), found(9000, 2), found(110, 51), found(90, 52), found(120, 49)];
        assert_eq!(ProbeResult::median(&results), Some(found(110, 50)));
        assert_eq!(ProbeResult::median(&[]), None);
    }

    #[test]
    fn configured_rates_precede_measured_and_port_rates() {
        let nothing = MeasuredCosts::default();
        assert_eq!(rates(nothing), (1000, 4000));
        let level = |rate| Some((found(100, rate), 3));
        let measured = MeasuredCosts { rack: level(125), core: level(25), ..nothing };
        assert_eq!(rates(measured), (125, 25));
        let configured = ConfiguredRates { host: Some(70), uplink: Some(60) };
        assert_eq!(rates(MeasuredCosts { configured, ..measured }), (70, 60));
    }

    #[test]
    fn an_uplink_too_fast_to_measure_has_the_rate_of_its_ports() {
        let level = |rate| Some((found(100, rate), 1));
        let measured =
            |uplink| MeasuredCosts { rack: level(1000), core: level(uplink), ..Default::default() };
        // 8300 bits per second after rounding, and 6800.
        assert_eq!(rates(measured(950)), (1037, 4000));
        assert_eq!(rates(measured(850)), (1037, 850));
    }

    #[test]
    fn default_latencies_apply_before_measurements() {
        let (default, model) = (CostModel::default(), MeasuredCosts::default().cost_model(LINK_RATES));
        assert_eq!((model.rack.latency, model.core.latency), (default.rack.latency, default.core.latency));
        assert_eq!((model.burst, model.ecmp_paths, model.costs.mtu), (default.burst, 2, 9000));
        let near = MeasuredCosts { rack: Some((found(5000, 50), 1)), ..Default::default() };
        let model = near.cost_model(LINK_RATES);
        assert_eq!(model.core.latency, model.rack.latency, "racks are not nearer than nodes of one");
    }

    #[test]
    fn similar_measurements_yield_the_same_model() {
        assert_eq!(
            [96, 100, 110, 2_490_000, 150_000].map(round_to_preferred_number),
            [100, 100, 100, 2_200_000, 150_000]
        );
        assert_eq!([2_400_000, 2_500_000, 2_550_000].map(|rate| found(1, rate).rate()), [2_500_000; 3]);
        assert_eq!(round_in_steps(0, FINE), 1);
    }

    #[test]
    fn an_implausible_report_is_refused() {
        let probed = Probed { latency_ns: 1000, bytes_per_second: 5, ..Default::default() };
        assert!(ProbeResult::try_from(&probed).is_ok());
        assert!(ProbeResult::try_from(&Probed { bytes_per_second: 0, ..probed.clone() }).is_err());
        assert!(ProbeResult::try_from(&Probed { latency_ns: u64::MAX, ..probed.clone() }).is_err());
        let failed = Probed { failure: "h2 does not answer".into(), ..probed };
        assert_eq!(ProbeResult::try_from(&failed), Err("h2 does not answer".to_owned()));
    }
}
