//! The network that `cool plan` and `cool simulate` think of: as a text or a file says it, with the rates of its links.

use crate::error::Error;
use crate::size;
use cool_collective::{Call, Layout, Operation, Plan, Rank};
use cool_sim::schedule::{FabricModel, Placement};
use std::time::Duration;

/// A schedule that is expected to take more events than this is not made unless it is asked for: half a minute and
/// 1 GB, about.
pub(crate) const MOST_EVENTS: f64 = 5e6;

/// What is asked of a collective besides its operation.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// Bytes of the message, the vector, or one rank's part, as in 8M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1M")]
    pub(crate) bytes: u64,

    #[command(flatten)]
    pub(crate) network: Network,

    /// Only this plan, by name, as cool-p-p, or composed, as rack:binomial,center:ring or flat:ring
    #[arg(long, value_name = "PLAN", env = "COOL_PLAN")]
    pub(crate) plan: Option<Plan>,

    /// The rank at the root
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
}

impl Asked {
    /// A call of an operation, of bytes.
    pub(crate) fn call(&self, operation: Operation) -> Call {
        Call::new(operation, Rank(self.root), self.bytes, 1)
    }
}

/// A network without a controller.
#[derive(Debug, clap::Args)]
pub(crate) struct Network {
    /// tree:32x32x32 is 32 racks of 32 hosts with 32 ranks each; tree:3+5+2 is uneven; leafspine:4x2x16 has 4 racks and 2
    /// spines; fattree:8 has switches with 8 ports; else a file, as `cool topology --json` prints it [default: for a
    /// plan what the controller has found, else tree:4x4]
    #[arg(long, value_name = "TOPOLOGY")]
    pub(crate) topology: Option<String>,

    /// Rate of a host's link, if no file says it
    #[arg(long, value_name = "MBIT", default_value_t = 20)]
    host_mbit: u64,

    /// Rate of a link between switches, if no file says it
    #[arg(long, value_name = "MBIT", default_value_t = 20)]
    uplink_mbit: u64,

    /// Time from one end of a link to the other, a switch's work included
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 50)]
    latency_us: u64,

    /// Bytes that pass an idle link at once: the test bed's token buckets; 0 for hardware
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "16000")]
    burst: u64,

    /// Ranks that follow each other are in other racks
    #[arg(long)]
    interleaved: bool,
}

impl Network {
    /// It, and where its ranks are.
    pub(crate) fn build(&self) -> Result<(FabricModel, Layout), Error> {
        let bytes = |mbit: u64| mbit.saturating_mul(125_000);
        let (host, uplink) = (bytes(self.host_mbit), bytes(self.uplink_mbit));
        let topology = self.topology.as_deref().unwrap_or("tree:4x4");
        let mut fabric = match std::fs::read_to_string(topology) {
            Ok(json) => FabricModel::from_json(topology, &json, host, uplink)?,
            // What has a colon is meant as a text; its error says what else there is.
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
