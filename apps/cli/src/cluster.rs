//! Converts the controller's description of the network for the planner.

use crate::error::Error;
use crate::units;
use cool_collective::planner::LinkCost;
use cool_collective::timing::AgentCosts;
use cool_collective::{CostModel, Layout, RankPlace};
use cool_sim::schedule::FabricModelError;
use std::collections::BTreeMap;
use std::time::Duration;

/// Returns the layout of a group from the rack and the node's name of each rank.
pub(crate) fn layout<'a>(ranks: impl Iterator<Item = (u32, &'a str)>) -> Result<Layout, FabricModelError> {
    let mut nodes = BTreeMap::new();
    let places = ranks.map(|(rack, name)| {
        let next = nodes.len() as u32;
        RankPlace { rack, node: *nodes.entry(name).or_insert(next) }
    });
    Ok(Layout::new(&places.collect::<Vec<_>>())?)
}

/// Parses a cost model in a message of the controller.
pub(crate) fn cost_model(text: &str) -> Result<CostModel, Error> {
    serde_json::from_str(text).map_err(|e| Error::CostModel(e.to_string()))
}

/// Describes a cost model in one line.
pub(crate) fn describe(model: &CostModel) -> String {
    let level = |LinkCost { latency, bytes_per_second }| {
        let rate = units::rate(bytes_per_second).unwrap_or_else(|| "unknown rate".to_owned());
        format!("{}, {rate}", units::seconds(latency.as_secs_f64()))
    };
    let CostModel { rack, core, ecmp_paths, burst, .. } = *model;
    let ecmp_paths = if ecmp_paths > 1 { format!(" on each of {ecmp_paths} uplinks") } else { String::new() };
    let burst = if burst > 0 { format!("; bursts of {burst} bytes") } else { String::new() };
    let AgentCosts { send, packet, socket, .. } = model.costs;
    let seconds = |time: Duration| units::seconds(time.as_secs_f64());
    let work = if packet.is_zero() {
        String::new()
    } else {
        let rate = units::rate(socket).unwrap_or_default();
        format!("; CPUs {} per message, {} per packet, {rate}", seconds(send), seconds(packet))
    };
    format!("within racks {}; between racks {}{ecmp_paths}{burst}{work}", level(rack), level(core))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_described_in_one_line() {
        let model = CostModel::default();
        let text = "within racks 100 us, 20 Mbit/s; between racks 200 us, 20 Mbit/s";
        assert_eq!(describe(&CostModel { burst: 0, ..model }), text);
        let text = describe(&CostModel { ecmp_paths: 2, ..model });
        assert!(text.contains("20 Mbit/s on each of 2 uplinks; bursts of 16000 bytes"), "{text}");
        let costs = AgentCosts { packet: Duration::from_micros(3), ..model.costs };
        let text = describe(&CostModel { costs, ..model });
        assert!(text.ends_with("; CPUs 60.0 us per message, 3.00 us per packet, 8 Gbit/s"), "{text}");
    }

    #[test]
    fn ranks_of_one_name_are_on_one_node() {
        let layout = layout([(4, "h9"), (2, "h1"), (4, "h9")].into_iter()).unwrap();
        assert_eq!((layout.size(), layout.nodes(), layout.racks()), (3, 2, 2));
    }
}
