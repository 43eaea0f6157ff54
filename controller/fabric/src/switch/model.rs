//! A switch as data, for tests. It executes flow-mods and group-mods as strictly as the standard
//! permits, and computes by which ports a packet leaves. A network of such switches computes at
//! which hosts a packet arrives.

use crate::intent::retained::RetainedEntries;
use crate::intent::tables::SwitchTables;
use crate::switch::table_change;
use cool_topology::{DatapathId, Graph, Link, MacAddr, Port};
use core::net::IpAddr;
use rs_openflow::{
    Action, Body, Bucket, ErrorMessage, ErrorType, EtherType, FlowCommand, FlowMod, FlowStats, GroupCommand,
    GroupDesc, GroupMod, GroupType, Instruction, Match, Message, MultipartReply, MultipartRequest, Oxm,
    PortNo, VlanId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The fields of a packet that a switch can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelPacket {
    pub(crate) eth_dst: MacAddr,
    pub(crate) vlan: VlanId,
    pub(crate) eth_type: EtherType,
    pub(crate) ip_src: IpAddr,
    pub(crate) ip_dst: IpAddr,
}

impl ModelPacket {
    /// Returns an untagged packet with the EtherType of its destination's IP version.
    pub(crate) fn from_ips(eth_dst: MacAddr, (ip_src, ip_dst): (IpAddr, IpAddr)) -> ModelPacket {
        let eth_type = if ip_dst.is_ipv6() { EtherType::IPV6 } else { EtherType::IPV4 };
        ModelPacket { eth_dst, vlan: VlanId::NONE, eth_type, ip_src, ip_dst }
    }
}

/// Type and code of an error.
pub(crate) type ModelRefusal = (ErrorType, u16);

/// A switch with one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelSwitch {
    pub(crate) flows: Vec<FlowMod>,
    pub(crate) groups: BTreeMap<u32, GroupMod>,
    /// Maximum number of flows.
    pub(crate) capacity: Option<usize>,
    /// Type of groups that the switch refuses.
    pub(crate) refuses: Option<GroupType>,
    /// Ports that are down.
    pub(crate) down: BTreeSet<u32>,
    /// Turns matches into the form in which the switch stores and reports them.
    pub(crate) form: Option<fn(Match) -> Match>,
}

impl ModelSwitch {
    /// Executes a message.
    ///
    /// # Errors
    /// Returns the error with which the standard lets a switch refuse it.
    pub(crate) fn obey(&mut self, body: &Body) -> Result<(), ModelRefusal> {
        match body {
            Body::FlowMod(flow) => self.flow(flow),
            Body::GroupMod(group) => self.group(group),
            _ => Ok(()),
        }
    }

    fn flow(&mut self, flow: &FlowMod) -> Result<(), ModelRefusal> {
        let form =
            |flow: &FlowMod| self.form.map_or(flow.matching.clone(), |form| form(flow.matching.clone()));
        let matching = form(flow);
        let same = |other: &FlowMod| other.priority == flow.priority && form(other) == matching;
        if flow.command == FlowCommand::DELETE_STRICT {
            let ours = |other: &FlowMod| (other.cookie ^ flow.cookie) & flow.cookie_mask == 0;
            self.flows.retain(|other| !(same(other) && ours(other)));
            return Ok(());
        }
        let unknown = |action: &Action| matches!(action, Action::Group(g) if !self.groups.contains_key(&g.0));
        if actions(flow).any(unknown) {
            return Err((ErrorType::BAD_ACTION, 9));
        }
        self.flows.retain(|other| !same(other));
        if self.capacity.is_some_and(|capacity| self.flows.len() >= capacity) {
            return Err((ErrorType::FLOW_MOD_FAILED, 1));
        }
        self.flows.push(flow.clone());
        Ok(())
    }

    fn group(&mut self, group: &GroupMod) -> Result<(), ModelRefusal> {
        let known = self.groups.contains_key(&group.group.0);
        match group.command {
            GroupCommand::ADD if self.refuses == Some(group.kind) => {
                return Err((ErrorType::GROUP_MOD_FAILED, 5));
            }
            GroupCommand::ADD if known => return Err((ErrorType::GROUP_MOD_FAILED, 0)),
            GroupCommand::MODIFY if !known => return Err((ErrorType::GROUP_MOD_FAILED, 8)),
            GroupCommand::DELETE => {
                self.groups.remove(&group.group.0);
                self.flows.retain(|flow| !actions(flow).any(|a| *a == Action::Group(group.group)));
            }
            _ => {
                self.groups.insert(group.group.0, group.clone());
            }
        }
        Ok(())
    }

    /// Returns the replies to a message.
    pub(crate) fn answer(&mut self, Message { xid, body }: &Message) -> Vec<Message> {
        let body = match body {
            Body::BarrierRequest => Body::BarrierReply,
            Body::MultipartRequest(request) => match &request.body {
                MultipartRequest::Flow(_) => {
                    Body::MultipartReply(MultipartReply::Flow(self.flow_stats()).into())
                }
                MultipartRequest::GroupDesc => {
                    Body::MultipartReply(MultipartReply::GroupDesc(self.group_descs()).into())
                }
                other => panic!("the model does not know {other:?}"),
            },
            other => match self.obey(other) {
                Ok(()) => return Vec::new(),
                Err((kind, code)) => Body::Error(ErrorMessage::new(kind, code, Vec::new())),
            },
        };
        vec![Message::new(*xid, body)]
    }

    /// Returns the flows as a multipart reply reports them.
    pub(crate) fn flow_stats(&self) -> Vec<FlowStats> {
        let reported = |flow: &FlowMod| {
            let mut stats = FlowStats::from(flow.clone());
            stats.matching = self.form.map_or(stats.matching.clone(), |form| form(stats.matching));
            // Reported in another order than they were sent.
            stats.matching.fields.reverse();
            stats
        };
        self.flows.iter().map(reported).collect()
    }

    /// Returns the groups as a multipart reply reports them.
    pub(crate) fn group_descs(&self) -> Vec<GroupDesc> {
        let desc = |g: &GroupMod| GroupDesc { kind: g.kind, group: g.group, buckets: g.buckets.clone() };
        self.groups.values().map(desc).collect()
    }

    /// Returns the entries of the controller.
    pub(crate) fn tables(&self) -> SwitchTables {
        let mut tables = SwitchTables::default();
        self.flow_stats().into_iter().for_each(|flow| table_change::record_flow(&mut tables, flow));
        self.group_descs().into_iter().for_each(|group| table_change::record_group(&mut tables, group));
        tables
    }

    /// Returns the ports by which a packet from `in_port` leaves, and the packet at each.
    pub(crate) fn forward(&self, in_port: u32, packet: ModelPacket) -> Vec<(PortNo, ModelPacket)> {
        let matching = self.flows.iter().filter(|flow| matches(&flow.matching, in_port, packet));
        let Some(best) = matching.max_by_key(|flow| flow.priority) else { return Vec::new() };
        let mut out = Vec::new();
        self.act(&actions(best).cloned().collect::<Vec<_>>(), packet, &mut out);
        // A packet returns to its ingress port only if an action names the reserved port for that.
        out.retain(|(port, _)| *port != PortNo(in_port) && !self.down.contains(&port.0));
        out
    }

    fn act(&self, actions: &[Action], mut packet: ModelPacket, out: &mut Vec<(PortNo, ModelPacket)>) {
        for action in actions {
            match action {
                Action::Output { port, .. } => out.push((*port, packet)),
                Action::SetField(Oxm::EthDst(dst)) => packet.eth_dst = dst.value,
                Action::Group(group) => {
                    let Some(group) = self.groups.get(&group.0) else { continue };
                    let alive = |bucket: &&Bucket| !self.down.contains(&bucket.watch_port.0);
                    let buckets: Vec<&Bucket> = match group.kind {
                        GroupType::FF => group.buckets.iter().find(alive).into_iter().collect(),
                        _ => group.buckets.iter().collect(),
                    };
                    buckets.iter().for_each(|bucket| self.act(&bucket.actions, packet, out));
                }
                other => panic!("the model does not know {other:?}"),
            }
        }
    }
}

fn actions(flow: &FlowMod) -> impl Iterator<Item = &Action> {
    flow.instructions.iter().flat_map(|instruction| match instruction {
        Instruction::ApplyActions(actions) => actions.as_slice(),
        other => panic!("the model does not know {other:?}"),
    })
}

fn matches(matching: &Match, in_port: u32, packet: ModelPacket) -> bool {
    matching.fields.iter().all(|field| match field {
        Oxm::InPort(port) => port.value == PortNo(in_port),
        Oxm::EthType(kind) => kind.value == packet.eth_type,
        Oxm::VlanVid(vlan) => vlan.value == packet.vlan,
        Oxm::EthDst(dst) => {
            let mask = dst.mask.unwrap_or(MacAddr::broadcast()).octets();
            let (wanted, found) = (dst.value.octets(), packet.eth_dst.octets());
            (0..6).all(|i| (wanted[i] ^ found[i]) & mask[i] == 0)
        }
        Oxm::Ipv4Src(ip) => packet.ip_src == IpAddr::V4(ip.value),
        Oxm::Ipv6Src(ip) => packet.ip_src == IpAddr::V6(ip.value),
        Oxm::Ipv4Dst(ip) => match packet.ip_dst {
            IpAddr::V4(to) => {
                (to.to_bits() ^ ip.value.to_bits()) & ip.mask.map_or(!0, |mask| mask.to_bits()) == 0
            }
            IpAddr::V6(_) => false,
        },
        Oxm::Ipv6Dst(ip) => match packet.ip_dst {
            IpAddr::V6(to) => {
                (to.to_bits() ^ ip.value.to_bits()) & ip.mask.map_or(!0, |mask| mask.to_bits()) == 0
            }
            IpAddr::V4(_) => false,
        },
        // The model has no packets of address resolution.
        Oxm::IpProto(_) => false,
        other => panic!("the model does not know {other:?}"),
    })
}

/// Switches cabled as in a graph.
pub(crate) struct ModelNetwork<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) switches: BTreeMap<DatapathId, ModelSwitch>,
}

/// Where the copies of a packet arrived.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelArrivals {
    /// Hosts, with the packet as it arrived. A host occurs twice if it received two copies.
    pub(crate) hosts: Vec<(String, ModelPacket)>,
    /// Switches that handed the packet to the controller.
    pub(crate) controller: Vec<DatapathId>,
    /// Number of links crossed, without the links of hosts.
    pub(crate) links: usize,
}

impl ModelNetwork<'_> {
    /// Returns switches that hold these tables.
    pub(crate) fn new(graph: &Graph, tables: BTreeMap<DatapathId, SwitchTables>) -> ModelNetwork<'_> {
        let switch = |tables: &SwitchTables| {
            let mut switch = ModelSwitch::default();
            let (none, keep) = (SwitchTables::default(), RetainedEntries::default());
            let scope = table_change::ChangeScope::all(&none, tables);
            for change in table_change::stages(&none, tables, scope, &keep).into_iter().flatten() {
                switch.obey(&change.message()).unwrap_or_else(|e| panic!("{change}: {e:?}"));
            }
            switch
        };
        ModelNetwork { graph, switches: tables.iter().map(|(s, t)| (*s, switch(t))).collect() }
    }

    /// Connects or disconnects a cable. Only the switches at its ends notice.
    pub(crate) fn cable(&mut self, link: Link, up: bool) {
        for end in [link.a, link.b] {
            let Some(switch) = self.switches.get_mut(&end.switch) else { continue };
            match up {
                true => switch.down.remove(&end.number),
                false => switch.down.insert(end.number),
            };
        }
    }

    /// Sends a packet into the network at a port.
    ///
    /// # Panics
    /// Panics if the packet loops.
    pub(crate) fn send(&self, at: Port, packet: ModelPacket) -> ModelArrivals {
        let mut arrivals = ModelArrivals::default();
        let mut under_way = vec![(at, packet, 0)];
        while let Some((at, packet, hops)) = under_way.pop() {
            assert!(hops <= self.switches.len(), "a loop through {at}");
            let Some(switch) = self.switches.get(&at.switch) else { continue };
            for (port, packet) in switch.forward(at.number, packet) {
                let out = Port { switch: at.switch, number: port.0 };
                if port == PortNo::CONTROLLER {
                    arrivals.controller.push(at.switch);
                } else if let Some(peer) = self.graph.peer(out) {
                    arrivals.links += 1;
                    under_way.push((peer, packet, hops + 1));
                } else if let Some((host, _)) = self.graph.hosts().find(|(_, place)| *place == out) {
                    arrivals.hosts.push((host.to_owned(), packet));
                }
            }
        }
        arrivals.hosts.sort();
        arrivals
    }
}
