//! Metrics of a running controller, for Prometheus.

use crate::pages::standby::LEADS;
use crate::pages::status::{Status, SwitchStatus};
use cool_fabric::{Histogram, NotAdmitted, PortLoad};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::fmt::{self, Error};
use std::sync::Arc;

type LabelSet = Vec<(&'static str, String)>;
/// Name, help text and value of a metric.
type SwitchMetric<T> = (&'static str, &'static str, fn(&SwitchStatus) -> T);
type PortMetric = (&'static str, &'static str, fn(&PortLoad) -> u64);

const SWITCH_GAUGES: [SwitchMetric<usize>; 2] = [
    ("cool_switch_flows", "Flows installed in the switch", |s| s.flows),
    ("cool_switch_groups", "Group table entries installed in the switch", |s| s.groups),
];
const SWITCH_COUNTERS: [SwitchMetric<u64>; 3] = [
    (
        "cool_switch_outsider_packets",
        "Dropped packets to multicast groups from senders that are not members",
        |s| s.outsiders,
    ),
    ("cool_switch_packet_ins", "Packet-ins sent to the controller", |s| s.packet_ins),
    ("cool_switch_packet_ins_dropped", "Packet-ins dropped because a port exceeded its limit", |s| {
        s.packet_ins_dropped
    }),
];
const PORT_COUNTERS: [PortMetric; 5] = [
    ("cool_port_receive_bytes", "Bytes received on the port", |p| p.counters.rx_bytes),
    ("cool_port_receive_packets", "Packets received on the port", |p| p.counters.rx_packets),
    ("cool_port_transmit_bytes", "Bytes sent on the port", |p| p.counters.tx_bytes),
    ("cool_port_transmit_packets", "Packets sent on the port", |p| p.counters.tx_packets),
    ("cool_port_lost_packets", "Packets dropped or corrupted at the port", |p| p.counters.lost),
];

/// Returns a registry with the metrics of a status.
pub fn registry(status: Arc<Status>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(StatusMetrics(status)));
    registry
}

#[derive(Debug)]
struct StatusMetrics(Arc<Status>);

impl Collector for StatusMetrics {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut families = MetricEncoder(encoder);
        self.totals(&mut families)?;
        self.switches(&mut families)?;
        self.links(&mut families)?;
        let refused = self.0.refused_lldp;
        let causes = [
            ("unreadable", refused.unreadable),
            ("forged", refused.forged),
            ("replayed", refused.replayed),
            ("relayed", refused.relayed),
        ];
        let causes = causes.map(|(cause, count)| (vec![("cause", cause.to_owned())], count));
        families.counter("cool_lldp_refused", "Rejected LLDP frames", causes)?;
        let causes = NotAdmitted::CAUSES.map(|cause| {
            (vec![("cause", cause.to_owned())], self.0.not_admitted.get(cause).copied().unwrap_or(0))
        });
        families.counter("cool_switch_refused", "Rejected connections of switches", causes)?;
        let ends = self.0.certificates.iter();
        let ends = ends.map(|(of, until)| (vec![("of", (*of).to_owned())], *until as f64));
        families.gauge(
            "cool_certificate_expires_seconds",
            "Expiry of the first certificate of each kind, in Unix time",
            ends,
        )?;
        families.histogram(
            "cool_installation_seconds",
            "Time from a change until the switch has confirmed it",
            &self.0.installation,
        )?;
        families.histogram(
            "cool_discovery_seconds",
            "Time from when both ends are present until a link or node is discovered",
            &self.0.discovery,
        )
    }
}

impl StatusMetrics {
    fn totals(&self, families: &mut MetricEncoder<'_>) -> fmt::Result {
        let status = &self.0;
        // Groups of the same nodes share their trees.
        let trees = status.groups.iter().flat_map(|group| group.trees.iter().map(|tree| &tree.address));
        let trees = trees.collect::<BTreeSet<_>>().len();
        let located = status.nodes.iter().filter(|node| node.link.is_some()).count();
        let away = status.nodes.iter().filter(|node| node.away_seconds.is_some()).count();
        let totals = [
            (LEADS.0, LEADS.1, 1),
            ("cool_switches", "Switches", status.switches.len()),
            ("cool_links", "Links between switches", status.links.len()),
            ("cool_nodes", "Nodes whose agents have joined", status.nodes.len()),
            ("cool_nodes_located", "Nodes located in the network", located),
            ("cool_nodes_away", "Nodes whose agents are disconnected", away),
            ("cool_hosts", "Hosts without an agent that have forwarding rules", status.hosts.len()),
            ("cool_groups", "Groups in use", status.groups.len()),
            ("cool_trees", "Multicast trees installed", trees),
            ("cool_jobs", "Running jobs", status.jobs.len()),
            (
                "cool_flooding_listeners",
                "Nodes that have examined whether multicasts reach nodes that have not joined",
                status.flooded.listeners,
            ),
            (
                "cool_flooded_nodes",
                "Those of them that multicasts reach: see `cool doctor`",
                status.flooded.reached.len(),
            ),
            ("cool_warnings", "Warnings for the operator: see `cool topology`", status.warnings.len()),
        ];
        totals.into_iter().try_for_each(|(name, help, value)| families.total(name, help, value))
    }

    fn switches(&self, families: &mut MetricEncoder<'_>) -> fmt::Result {
        let switches = &self.0.switches;
        let label = |switch: &SwitchStatus| vec![("switch", switch.name.clone())];
        for (name, help, value) in SWITCH_GAUGES {
            families.gauge(name, help, switches.iter().map(|s| (label(s), value(s) as f64)))?;
        }
        for (name, help, value) in SWITCH_COUNTERS {
            families.counter(name, help, switches.iter().map(|s| (label(s), value(s))))?;
        }
        let port = |(switch, number): (&SwitchStatus, &u32)| {
            vec![("switch", switch.name.clone()), ("port", number.to_string())]
        };
        for (name, help, value) in PORT_COUNTERS {
            let ports =
                switches.iter().flat_map(|s| s.ports.iter().map(move |(number, load)| (s, number, load)));
            families.counter(name, help, ports.map(|(s, number, load)| (port((s, number)), value(load))))?;
        }
        Ok(())
    }

    fn links(&self, families: &mut MetricEncoder<'_>) -> fmt::Result {
        let of_nodes = self.0.nodes.iter().filter_map(|node| node.link.as_ref());
        let links: Vec<_> = self.0.links.iter().chain(of_nodes).collect();
        let label = |name: &str, direction: &str| {
            vec![("link", name.to_owned()), ("direction", direction.to_owned())]
        };
        let both =
            links.iter().flat_map(|l| [(label(&l.name, "forth"), l.forth), (label(&l.name, "back"), l.back)]);
        families.gauge("cool_link_bytes_per_second", "Current load of the link", both)?;
        let known =
            links.iter().filter_map(|l| Some((vec![("link", l.name.clone())], l.bytes_per_second? as f64)));
        families.gauge("cool_link_capacity_bytes_per_second", "Capacity of the link, if known", known)
    }
}

struct MetricEncoder<'a>(DescriptorEncoder<'a>);

impl MetricEncoder<'_> {
    fn total(&mut self, name: &str, help: &str, value: usize) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric)
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (LabelSet, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (LabelSet, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        // The last bucket has no upper bound.
        let bounds = Histogram::BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(histogram.counts).collect();
        family.encode_histogram::<NoLabelSet>(histogram.sum, histogram.counts.iter().sum(), &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flooding::FloodedNodes;
    use crate::pages::status::{LinkStatus, NodeStatus};
    use cool_fabric::PortCounters;
    use cool_topology::discovery::RefusedFrames;
    use prometheus_client::encoding::text::encode;

    fn text(status: Status) -> String {
        let mut text = String::new();
        encode(&mut text, &registry(Arc::new(status))).unwrap();
        text
    }

    #[test]
    fn every_metric_is_reported_once_with_its_labels() {
        let counters = PortCounters { rx_bytes: 11, ..PortCounters::default() };
        let switch = SwitchStatus {
            datapath_id: "0000000000000001".into(),
            name: "s\"1".into(),
            rack: None,
            flows: 9,
            groups: 2,
            meters: true,
            outsiders: 3,
            packet_ins: 5,
            packet_ins_dropped: 4,
            ports: [(7, PortLoad { counters, ..PortLoad::default() })].into(),
        };
        let link = LinkStatus { name: "s1:7-h1".into(), bytes_per_second: Some(100), forth: 1.5, back: 2.5 };
        let node = NodeStatus {
            name: "h1".into(),
            ip: String::new(),
            rack: Some(0),
            slots: 1,
            away_seconds: None,
            link: Some(link),
        };
        let mut installation = Histogram::default();
        (installation.counts[0], installation.counts[12], installation.sum) = (2, 1, 9.5);
        let refused_lldp = RefusedFrames { forged: 6, ..RefusedFrames::default() };
        let status = Status {
            switches: vec![switch],
            nodes: vec![node],
            installation,
            refused_lldp,
            flooded: FloodedNodes { listeners: 3, reached: vec!["h1".into()] },
            not_admitted: [("impostor", 8)].into(),
            certificates: [("ca", 2_000_000_000)].into(),
            ..Status::default()
        };
        let text = text(status);
        for line in [
            "cool_switches 1",
            "cool_flooding_listeners 3",
            "cool_flooded_nodes 1",
            "cool_nodes_located 1",
            "cool_switch_flows{switch=\"s\\\"1\"} 9.0",
            "cool_switch_outsider_packets_total{switch=\"s\\\"1\"} 3",
            "cool_port_receive_bytes_total{switch=\"s\\\"1\",port=\"7\"} 11",
            "cool_link_bytes_per_second{link=\"s1:7-h1\",direction=\"back\"} 2.5",
            "cool_link_capacity_bytes_per_second{link=\"s1:7-h1\"} 100.0",
            "cool_lldp_refused_total{cause=\"forged\"} 6",
            "cool_switch_refused_total{cause=\"impostor\"} 8",
            "cool_switch_refused_total{cause=\"unbound\"} 0",
            "cool_certificate_expires_seconds{of=\"ca\"} 2000000000.0",
            "cool_installation_seconds_sum 9.5",
            "cool_installation_seconds_count 3",
            "cool_installation_seconds_bucket{le=\"5.0\"} 2",
            "cool_installation_seconds_bucket{le=\"+Inf\"} 3",
        ] {
            assert_eq!(
                text.lines().filter(|l| *l == line || *l == format!("{line}.0")).count(),
                1,
                "{line} in {text}"
            );
        }
    }

    #[test]
    fn an_empty_status_has_totals_only() {
        let text = text(Status::default());
        assert!(text.contains("cool_switches 0") && text.ends_with("# EOF\n"), "{text}");
    }
}
