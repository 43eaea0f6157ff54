//! The network of `cool plan` and `cool simulate`: described by a text or a file, with the rates of
//! its links.

use crate::error::Error;
use crate::{size, units};
use cool_collective::{Call, Layout, Operation, Plan, Rank};
use cool_sim::schedule::{FabricModel, Placement};
use std::time::Duration;

/// Maximum number of expected events of a schedule that is compiled by `cool plan`, or simulated by
/// `cool simulate` without a request for its plan. Simulating this number takes about half a minute
/// and 1 GB.
pub(crate) const EVENTS_MAX: f64 = 5e6;

/// The options of a collective, except its operation.
#[derive(Debug, clap::Args)]
pub(crate) struct CollectiveOptions {
    /// Size of the message, the vector, or one rank's part, such as 8M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1M")]
    pub(crate) bytes: u64,

    #[command(flatten)]
    pub(crate) network: NetworkOptions,

    /// Only this plan: a name such as cool-p-p, or a composition such as rack:binomial,center:ring
    /// or flat:ring
    #[arg(long, value_name = "PLAN", env = "COOL_PLAN")]
    pub(crate) plan: Option<Plan>,

    /// Root of the collective
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
}

impl CollectiveOptions {
    /// Returns the call of an operation.
    pub(crate) fn call(&self, operation: Operation) -> Call {
        Call::new(operation, Rank(self.root), self.bytes, 1)
    }
}

/// A network without a controller.
#[derive(Debug, clap::Args)]
pub(crate) struct NetworkOptions {
    /// Network: tree:32x32x32 has 32 racks of 32 hosts with 32 ranks each; tree:3+5+2 has racks of
    /// different sizes; leafspine:4x2x16 has 4 racks and 2 spines; fattree:8 has switches with 8
    /// ports; otherwise a file of `cool topology --json` [default: for `cool plan` the network of
    /// the controller, for `cool simulate` tree:4x4]
    #[arg(long, value_name = "TOPOLOGY")]
    pub(crate) topology: Option<String>,

    /// Rate of a host's link in Mbit/s, unless a file has it; must be above 0
    #[arg(long, value_name = "MBIT", default_value_t = default_mbit(), value_parser = mbit)]
    host_mbit: u64,

    /// Rate of a link between switches in Mbit/s, unless a file has it; must be above 0
    #[arg(long, value_name = "MBIT", default_value_t = default_mbit(), value_parser = mbit)]
    uplink_mbit: u64,

    /// Latency of a link, including the switch
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 50)]
    latency_us: u64,

    /// Bytes that pass an idle link at once, as with the token buckets of the testbed; 0 for
    /// hardware
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = default_burst())]
    burst: u64,

    /// Place consecutive ranks in different racks
    #[arg(long)]
    interleaved: bool,
}

/// Returns whether this process runs in the testbed, which has slow links.
fn is_testbed() -> bool {
    std::env::var_os("COOL_TESTBED").is_some()
}

/// Returns the default rate of links in Mbit/s.
fn default_mbit() -> u64 {
    if is_testbed() { 20 } else { 10_000 }
}

fn default_burst() -> &'static str {
    if is_testbed() { "16000" } else { "0" }
}

fn mbit(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a whole number of Mbit/s, such as 10000"))
}

/// Describes the assumed rates of a network in one line, so that times are not mistaken for
/// measurements.
pub(crate) fn assumed_rates(fabric: &FabricModel) -> String {
    let rate = |bytes| units::rate(bytes).unwrap_or_else(|| "unknown rate".to_owned());
    let (host, uplink) = (rate(fabric.host), rate(fabric.uplink));
    format!("assumed links: hosts {host} (--host-mbit), uplinks {uplink} (--uplink-mbit)")
}

impl NetworkOptions {
    /// Returns the network, and the layout of its ranks.
    pub(crate) fn build(&self) -> Result<(FabricModel, Layout), Error> {
        let bytes = |mbit: u64| mbit.saturating_mul(125_000);
        let (host, uplink) = (bytes(self.host_mbit), bytes(self.uplink_mbit));
        let topology = self.topology.as_deref().unwrap_or("tree:4x4");
        let mut fabric = match std::fs::read_to_string(topology) {
            Ok(json) => FabricModel::from_json(topology, &json, host, uplink)?,
            // A text with a colon is not meant as a file, so its own error is returned, which lists
            // the valid forms.
            Err(_) if topology.contains(':') => topology.parse::<FabricModel>()?.with_rates(host, uplink)?,
            Err(reason) => return Err(Error::TopologyFile { path: topology.to_owned(), reason }),
        };
        fabric.delay = Duration::from_micros(self.latency_us);
        fabric.uplink_delay = fabric.delay;
        fabric.burst = self.burst;
        let placement = if self.interleaved { Placement::Interleaved } else { Placement::Packed };
        let layout = fabric.layout(placement)?;
        Ok((fabric, layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_plain_number_of_mbit_per_second() {
        assert_eq!(mbit("10000"), Ok(10_000));
        assert!(mbit("10G").unwrap_err().contains("such as 10000"));
    }

    #[test]
    fn assumed_rates_name_their_options() {
        let fabric = "tree:2x2".parse::<FabricModel>().unwrap().with_rates(2_500_000, 1_250_000_000).unwrap();
        let text = "assumed links: hosts 20 Mbit/s (--host-mbit), uplinks 10 Gbit/s (--uplink-mbit)";
        assert_eq!(assumed_rates(&fabric), text);
    }
}
