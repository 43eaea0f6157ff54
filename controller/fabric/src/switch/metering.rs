//! Limits packet-ins: in the switch by a meter for each port (OpenFlow 1.3.5, 5.7), if it has
//! meters, and in the controller by a token bucket for each port. A host that floods therefore
//! affects only the frames of its own port.
//!
//! No other code uses the meters. They are added to flows to the controller when these are sent,
//! and removed when they are read back. Meters are numbered downward from the highest number of the
//! switch: one for each port by its number, and the highest for all other ports. The lowest two are
//! for broadcasts of nodes and for reports of memberships. Ports of links need no meter.

use crate::intent::cookies::{self, COOKIE, COOKIE_MASK};
use cool_machine::{Duration, Time};
use rs_openflow::{
    Action, Band, BandEffect, BandType, Body, Instruction, Match, MeterCommand, MeterFeatures, MeterFlags,
    MeterId, MeterMod, MultipartReply, Oxm, PortNo,
};
use std::collections::{BTreeMap, BTreeSet};

/// Burst that a port may send, in seconds of its rate.
pub(crate) const BURST_SECONDS: u32 = 2;
/// Numbers of the meters for broadcasts of nodes, and for reports of memberships.
const BROADCASTS: u32 = 1;
const MEMBERSHIPS: u32 = 2;
/// Highest number of a meter in the standard.
const LAST_METER: u32 = 0xffff_0000;
/// Code of METER_MOD_FAILED: the meter exists.
pub(crate) const METER_EXISTS: u16 = 1;

/// The meters of one switch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortMeters {
    /// Packets per second of each port.
    rate: u32,
    /// Highest number of a meter. `None` if the switch has no suitable meters.
    highest: Option<u32>,
    /// Maximum number of meters that may be used.
    most: Option<u32>,
}

impl PortMeters {
    /// Returns meters of which the switch has none yet. `rate` is in packets per second, and `most`
    /// is the maximum number of meters.
    pub(crate) fn new(rate: u32, most: Option<u32>) -> PortMeters {
        PortMeters { rate, highest: None, most }
    }

    /// Records the features of meters that the switch reports.
    pub(crate) fn learn(&mut self, features: &MeterFeatures) {
        let drops = features.band_types & (1 << BandType::DROP.0) != 0;
        let counts = features.capabilities & u32::from(MeterFlags::PKTPS.0) != 0;
        let usable = drops && counts && self.most != Some(0);
        self.highest = Some(features.max_meters).filter(|max| usable && *max > 1 && *max <= LAST_METER);
    }

    /// Returns whether the switch has meters.
    pub(crate) fn in_switch(&self) -> bool {
        self.highest.is_some()
    }

    /// Returns the number of meters for these ports, and the highest number of a meter; `None` if
    /// the switch has no suitable meters.
    pub(crate) fn needed(&self, ports: &[u32]) -> Option<(u32, u32)> {
        let highest = self.highest?;
        let shared = [BROADCASTS, MEMBERSHIPS].into_iter().filter_map(|number| self.shared(number));
        let of_ports = ports.iter().map(|port| Some(*port)).chain([None]);
        let meters: BTreeSet<MeterId> = of_ports.filter_map(|port| self.meter(port)).chain(shared).collect();
        Some((u32::try_from(meters.len()).unwrap_or(u32::MAX), highest))
    }

    /// Stops using meters after the switch has refused one.
    pub(crate) fn give_up(&mut self) {
        self.highest = None;
    }

    /// Returns the messages that make the meter of a port, or with `None` that of all other ports,
    /// whether or not it exists.
    pub(crate) fn make(&self, port: Option<u32>) -> Vec<Body> {
        let shared = [BROADCASTS, MEMBERSHIPS].into_iter().filter(|_| port.is_none());
        let shared = shared.filter_map(|number| self.shared(number));
        let meters: BTreeSet<MeterId> = self.meter(port).into_iter().chain(shared).collect();
        let burst = self.rate.saturating_mul(BURST_SECONDS);
        let flags = MeterFlags::PKTPS | MeterFlags::BURST | MeterFlags::STATS;
        let bands = vec![Band { rate: self.rate, burst, effect: BandEffect::Drop }];
        let commands = [MeterCommand::ADD, MeterCommand::MODIFY];
        let all = meters.into_iter().flat_map(|meter| commands.map(|command| (meter, command)));
        let meter_mod = |(meter, command)| MeterMod { command, flags, meter, bands: bands.clone() };
        all.map(meter_mod).map(Body::MeterMod).collect()
    }

    /// Returns the meter with this number, which all ports share. The meters of nodes' ports must
    /// remain for the LLDP that keeps the nodes known.
    fn shared(&self, number: u32) -> Option<MeterId> {
        let highest = self.highest?;
        Some(MeterId(if self.most.is_none_or(|most| most > number) { number } else { highest }))
    }

    fn meter(&self, port: Option<u32>) -> Option<MeterId> {
        // If meters are few, the remaining ports share one.
        let highest = self.highest?;
        let port = port.filter(|port| self.most.is_none_or(|most| port.saturating_add(MEMBERSHIPS) < most));
        let number = port.and_then(|port| highest.checked_sub(port)).filter(|number| *number > MEMBERSHIPS);
        Some(MeterId(number.unwrap_or(highest)))
    }

    /// Returns the meter of a flow.
    fn meter_of(&self, cookie: u64, matching: &Match, instructions: &[Instruction]) -> Option<MeterId> {
        let to_controller = instructions.iter().any(|instruction| match instruction {
            Instruction::ApplyActions(actions) => {
                actions.iter().any(|a| matches!(a, Action::Output { port: PortNo::CONTROLLER, .. }))
            }
            _ => false,
        });
        if cookie & COOKIE_MASK != COOKIE || !to_controller || cookies::is_for_link(cookie) {
            return None;
        }
        if cookies::is_for_broadcasts(cookie) {
            return self.shared(BROADCASTS);
        }
        if cookies::is_for_memberships(cookie) {
            return self.shared(MEMBERSHIPS);
        }
        let port = matching.fields.iter().find_map(|field| match field {
            Oxm::InPort(port) => Some(port.value.0),
            _ => None,
        });
        self.meter(port)
    }

    /// Adds the meter to a flow that is sent.
    pub(crate) fn attach_meters(&self, body: &mut Body) {
        if let Body::FlowMod(flow) = body
            && let Some(meter) = self.meter_of(flow.cookie, &flow.matching, &flow.instructions)
        {
            flow.instructions.insert(0, Instruction::Meter(meter));
        }
    }

    /// Removes this controller's meter from flows that were read back. If the meter of a flow is
    /// wrong or missing, clears the instructions of the flow, so that the reconciler finds a
    /// difference and sends the flow again.
    pub(crate) fn strip_meters(&self, body: &mut Body) {
        let Body::MultipartReply(reply) = body else { return };
        let MultipartReply::Flow(flows) = &mut reply.body else { return };
        for flow in flows {
            // A switch may report instructions in any order.
            let mut has = None;
            flow.instructions.retain(|instruction| match instruction {
                Instruction::Meter(meter) => {
                    has = Some(*meter);
                    false
                }
                _ => true,
            });
            if has != self.meter_of(flow.cookie, &flow.matching, &flow.instructions) {
                flow.instructions.clear();
            }
        }
    }
}

/// Token buckets, one for each port.
#[derive(Debug)]
pub(crate) struct Policer<P> {
    /// Cost of a packet, as time at the permitted rate.
    cost: Duration,
    /// Tokens of each port, and when they were counted.
    ports: BTreeMap<P, (Duration, Time)>,
    dropped: u64,
}

impl<P: Copy + Ord> Policer<P> {
    pub(crate) fn new(rate: u32) -> Policer<P> {
        Policer { cost: Duration::from_secs(1) / rate.max(1), ports: BTreeMap::new(), dropped: 0 }
    }

    /// Takes a token. Returns whether the packet is admitted.
    pub(crate) fn admit(&mut self, now: Time, port: P) -> bool {
        let admitted = self.has_room(now, port, 1);
        match admitted {
            true => self.take(port, 1),
            false => self.dropped += 1,
        }
        admitted
    }

    /// Returns whether this number of packets would be admitted at once.
    pub(crate) fn has_room(&mut self, now: Time, port: P, packets: u32) -> bool {
        let most = Duration::from_secs(BURST_SECONDS.into());
        let (left, then) = self.ports.entry(port).or_insert((most, now));
        *left = (*left + (now - *then)).min(most);
        *then = now;
        *left >= self.cost * packets
    }

    /// Takes tokens, which must be available.
    pub(crate) fn take(&mut self, port: P, packets: u32) {
        if let Some((left, _)) = self.ports.get_mut(&port) {
            *left = left.saturating_sub(self.cost * packets);
        }
    }

    /// Removes a port.
    pub(crate) fn forget(&mut self, port: P) {
        self.ports.remove(&port);
    }

    /// Returns the number of packets that were not admitted.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Unicast;
    use crate::intent::flows::always;
    use rs_openflow::{FlowMod, FlowStats};

    fn metering(max_meters: u32) -> PortMeters {
        let mut metering = PortMeters::new(100, None);
        let capabilities = (MeterFlags::PKTPS | MeterFlags::BURST).0.into();
        let features = MeterFeatures { max_meters, band_types: 2, capabilities, max_bands: 1, max_color: 0 };
        metering.learn(&features);
        metering
    }

    fn reported(flow: FlowMod) -> Body {
        Body::MultipartReply(MultipartReply::Flow(vec![FlowStats::from(flow)]).into())
    }

    /// Returns a flow as it is sent with the meters of `by`, and as `reader` reads it back.
    fn sent_and_read(
        by: &PortMeters,
        reader: &PortMeters,
        flow: &FlowMod,
    ) -> (Vec<Instruction>, Vec<Instruction>) {
        let mut body = Body::FlowMod(flow.clone());
        by.attach_meters(&mut body);
        let Body::FlowMod(sent) = body else { unreachable!() };
        let mut body = reported(sent.clone());
        reader.strip_meters(&mut body);
        let Body::MultipartReply(reply) = body else { unreachable!() };
        let MultipartReply::Flow(flows) = reply.body else { unreachable!() };
        (sent.instructions, flows[0].instructions.clone())
    }

    #[test]
    fn flows_to_the_controller_have_meters_in_the_switch_only() {
        let (with, without) = (metering(1000), PortMeters::new(100, None));
        let mut metered = 0;
        for (key, flow) in &always(Unicast::Routed, true).flows {
            let flow = FlowMod {
                cookie: flow.cookie,
                matching: (*key.matching).clone(),
                instructions: flow.instructions.to_vec(),
                ..FlowMod::default()
            };
            let (sent, read) = sent_and_read(&with, &with, &flow);
            assert_eq!(read, flow.instructions);
            if sent != flow.instructions {
                metered += 1;
                let number = match flow.cookie {
                    cookie if cookies::is_for_broadcasts(cookie) => 1,
                    cookie if cookies::is_for_memberships(cookie) => 2,
                    _ => 1000,
                };
                assert_eq!(sent[0], Instruction::Meter(MeterId(number)));
                // A reader with other meters must notice that the flow is not as desired.
                assert_ne!(sent_and_read(&with, &without, &flow).1, flow.instructions);
                assert_ne!(sent_and_read(&without, &with, &flow).1, flow.instructions);
            }
        }
        assert_eq!(metered, 12);
    }

    #[test]
    fn each_port_has_a_meter_as_long_as_there_are_meters() {
        let with = metering(4);
        assert_eq!(
            [None, Some(1), Some(2), Some(3), Some(u32::MAX)].map(|port| with.meter(port).unwrap().0),
            [4, 3, 4, 4, 4]
        );
        assert_eq!((with.make(Some(1)).len(), with.make(None).len()), (2, 6));
        assert_eq!(metering(0).make(Some(1)), []);
        let few = PortMeters { most: Some(4), ..metering(100) };
        assert_eq!(
            [None, Some(1), Some(2), Some(3)].map(|port| few.meter(port).unwrap().0),
            [100, 99, 100, 100]
        );
        let one = PortMeters { most: Some(1), ..few };
        assert_eq!((one.shared(BROADCASTS), one.make(None).len()), (one.meter(Some(1)), 2));
    }

    #[test]
    fn a_port_that_floods_is_held_to_its_rate_and_others_are_not() {
        let mut policer = Policer::new(10);
        let at = |ms: u64| Time::ZERO + Duration::from_millis(ms);
        assert_eq!((0..1000).filter(|_| policer.admit(at(0), 1)).count(), 20);
        assert!(policer.admit(at(0), 2));
        assert_eq!((0..5000).filter(|ms| policer.admit(at(*ms), 1)).count(), 49);
        assert_eq!(policer.dropped(), 980 + 4951);
    }
}
