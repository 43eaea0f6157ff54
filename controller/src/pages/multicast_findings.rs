//! The findings of `cool doctor` about multicast: nodes that multicasts do not reach, and nodes
//! that they reach although these have not joined the group.

use super::doctor::finding;
use crate::flooding::FloodedNodes;
use cool_proto::control::Finding;
use cool_types::name_list;

/// Returns a finding for each node that has lately not received multicasts, given with the senders.
pub(super) fn unreached_findings(unreached: Vec<(String, String)>) -> impl Iterator<Item = Finding> {
    unreached.into_iter().map(|(receiver, senders)| {
        let problem = format!(
            "it does not receive multicasts of {senders}, so groups with these nodes use chains, which are slower"
        );
        let remedy = "allow UDP to 239.192.0.0/14 (IPv6: ff18::/16; with --multicast ssm 232.192.0.0/14 and ff38::/16) between \
                      the nodes, and enable IGMP and MLD snooping with a querier on their switches (or give agents CAP_NET_RAW, \
                      so that one of them becomes the querier); or start the controller with --network plain";
        finding(format!("node {receiver}"), problem, remedy)
    })
}

/// Returns a note if multicasts reach nodes that have not joined their address. It is no problem,
/// because calls return right results, and small networks have switches that cannot do better.
pub(super) fn flooding_finding(flooded: &FloodedNodes) -> Option<Finding> {
    let FloodedNodes { listeners, reached } = flooded;
    (!reached.is_empty()).then(|| {
        let problem = format!(
            "it floods: multicasts reach {} of {listeners} nodes that listened without having joined ({}), so the streams of each job \
             load the links of nodes that do not take part",
            reached.len(),
            name_list(reached)
        );
        let remedy = "enable IGMP and MLD snooping with a querier on the switches, and switch off the flooding of unregistered multicast; \
                      a node at the port of a multicast router receives everything for good reason; multicast works also without that";
        Finding { note: true, ..finding("network", problem, remedy) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flooding_is_noted_with_the_share_of_nodes() {
        let flooded = |reached: &[&str]| FloodedNodes {
            listeners: 3,
            reached: reached.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(flooding_finding(&flooded(&[])), None);
        let found = flooding_finding(&flooded(&["h3", "h4"])).unwrap();
        assert!(
            found.note && found.wrong.contains("multicasts reach 2 of 3 nodes that listened"),
            "{found:?}"
        );
        assert!(found.wrong.contains("(h3, h4)") && found.remedy.contains("snooping"), "{found:?}");
    }

    #[test]
    fn unreached_nodes_are_named_with_the_senders() {
        let found = Vec::from_iter(unreached_findings(vec![("h4".to_owned(), "h1, h2".to_owned())]));
        assert_eq!((found.len(), found[0].about.as_str(), found[0].note), (1, "node h4", false));
        assert!(found[0].wrong.contains("multicasts of h1, h2"));
    }
}
