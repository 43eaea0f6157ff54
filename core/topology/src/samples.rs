//! Networks for tests.

use crate::{DatapathId, Graph, Port};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Builds a graph, numbering the ports of each switch 1, 2, 3, ...
#[derive(Default)]
pub(crate) struct GraphBuilder {
    pub(crate) graph: Graph,
    used: BTreeMap<DatapathId, u32>,
}

impl GraphBuilder {
    fn port(&mut self, switch: u64) -> Port {
        let switch = DatapathId(switch);
        let used = self.used.entry(switch).or_default();
        *used += 1;
        Port { switch, number: *used }
    }

    pub(crate) fn link(&mut self, one: u64, other: u64) {
        let (one, other) = (self.port(one), self.port(other));
        self.graph.link(one, other);
    }

    pub(crate) fn host(&mut self, name: &str, switch: u64) {
        let port = self.port(switch);
        self.graph.place(name, port);
    }
}

/// Returns spines 1..=`spines` and leaves 101.. with hosts h1.. rack by rack. With one spine it is
/// a tree.
pub(crate) fn leaf_spine(leaves: u64, spines: u64, per_leaf: u64) -> Graph {
    let mut builder = GraphBuilder::default();
    for leaf in 0..leaves {
        for spine in 1..=spines {
            builder.link(spine, 101 + leaf);
        }
        for host in 1..=per_leaf {
            builder.host(&format!("h{}", leaf * per_leaf + host), 101 + leaf);
        }
    }
    builder.graph
}

/// Returns root switch 1 and racks 101.. with hosts h1.. rack by rack.
pub(crate) fn tree(racks: u64, per_rack: u64) -> Graph {
    leaf_spine(racks, 1, per_rack)
}

/// Generates any connected network of up to 12 switches, with parallel links and up to 20 hosts.
pub(crate) fn connected() -> impl Strategy<Value = Graph> {
    let parents = prop::collection::vec(any::<prop::sample::Index>(), 0..12);
    let extra = prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..10);
    let hosts = prop::collection::vec(any::<prop::sample::Index>(), 1..20);
    (parents, extra, hosts).prop_map(|(parents, extra, hosts)| {
        let mut builder = GraphBuilder::default();
        builder.graph.add_switch(DatapathId(0));
        for (switch, parent) in (1..).zip(&parents) {
            builder.link(switch, parent.index(switch as usize) as u64);
        }
        let switches = parents.len() + 1;
        for [one, other] in extra {
            builder.link(one.index(switches) as u64, other.index(switches) as u64);
        }
        for (number, switch) in hosts.into_iter().enumerate() {
            builder.host(&format!("h{number}"), switch.index(switches) as u64);
        }
        builder.graph
    })
}
