//! What `cool doctor` reports about switches that are only observed.

use cool_fabric::{Observation, TopologySnapshot};
use cool_proto::control::Finding;

/// Makes a snapshot contain no ports at which nothing is known. An observation states for each port
/// what is not known, and why.
pub(super) fn omit_unidentified_ports(network: &mut TopologySnapshot) {
    network.switches.iter_mut().for_each(|switch| switch.unidentified_ports.clear());
}

/// Returns a note that the controller only observes, and a finding for each reason why a switch
/// cannot carry everything.
pub(super) fn observed_findings(observation: &Observation) -> Vec<Finding> {
    let note = Finding {
        about: "network".to_owned(),
        wrong: "the controller only observes the switches (--observe), so all groups use chains".to_owned(),
        remedy: "`cool topology` shows what it would install and what it could not find out; start it without --observe to hand the switches \
                 over"
            .to_owned(),
        note: true,
    };
    let obstacle = |name: &str, obstacle: &String| Finding {
        about: format!("switch {name}"),
        wrong: obstacle.clone(),
        remedy: String::new(),
        note: false,
    };
    let switches = observation.switches.iter();
    let obstacles =
        switches.flat_map(|switch| switch.obstacles.iter().map(|text| obstacle(&switch.name, text)));
    [note].into_iter().chain(obstacles).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_fabric::{DatapathId, ObservedSwitch, RuleCounts, TableCapacity};

    #[test]
    fn obstacles_are_findings_and_observing_is_a_note() {
        let switch = ObservedSwitch {
            datapath_id: DatapathId(1),
            name: "leaf1".to_owned(),
            model: String::new(),
            tables: 1,
            table: 0,
            ports: Vec::new(),
            capacity: TableCapacity::default(),
            inventory: None,
            planned_flows: Vec::new(),
            planned_groups: 0,
            withheld: None,
            for_group: RuleCounts::default(),
            obstacles: vec!["it is full".to_owned()],
            unknown: vec!["its color".to_owned()],
        };
        let found = observed_findings(&Observation { switches: vec![switch], ..Observation::default() });
        let texts: Vec<_> = found
            .iter()
            .map(|finding| (finding.about.as_str(), finding.wrong.as_str(), finding.note))
            .collect();
        assert!(texts[0].2 && texts[0].1.contains("--observe"), "{texts:?}");
        assert_eq!(texts[1..], [("switch leaf1", "it is full", false)]);
    }
}
