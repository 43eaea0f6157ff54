//! Recognizes flows that a switch reports in another form than it was given.
//!
//! A switch need not report a match as it was sent. Some report a mask of ones for an exact value,
//! or add fields that restrict nothing. If such a flow were taken for another one, the reconciler
//! would send the flow again and delete the reported one, which is the same entry of the switch.

use crate::intent::tables::{FlowEntry, FlowKey, SwitchTables};
use crate::switch::table_change::ChangeScope;
use core::net::{Ipv4Addr, Ipv6Addr};
use rs_openflow::{
    Action, EtherType, FlowStats, Instruction, IpProtocol, MacAddr, Masked, Match, Oxm, PortNo, VlanId,
};
use std::collections::BTreeMap;

/// A value of a field, as bits.
trait FieldBits: Copy {
    fn bits(self) -> u128;
    fn from_bits(bits: u128) -> Self;
    /// All bits of the field.
    const ONES: u128;
}

macro_rules! field_bits {
    ($($field:ty: $ones:expr, $to:expr, $from:expr;)*) => {
        $(impl FieldBits for $field {
            fn bits(self) -> u128 {
                let to: fn($field) -> u128 = $to;
                to(self)
            }

            fn from_bits(bits: u128) -> $field {
                let from: fn(u128) -> $field = $from;
                from(bits)
            }

            const ONES: u128 = $ones;
        })*
    };
}

// Conversions from bits drop those that the field does not have.
field_bits! {
    u8: u8::MAX as u128, |value| value.into(), |bits| bits as u8;
    PortNo: u32::MAX as u128, |port| port.0.into(), |bits| PortNo(bits as u32);
    EtherType: u16::MAX as u128, |kind| kind.0.into(), |bits| EtherType(bits as u16);
    IpProtocol: u8::MAX as u128, |protocol| protocol.0.into(), |bits| IpProtocol(bits as u8);
    VlanId: 0x1fff, |vlan| vlan.0.into(), |bits| VlanId(bits as u16);
    Ipv4Addr: u32::MAX as u128, |ip| ip.to_bits().into(), |bits| Ipv4Addr::from_bits(bits as u32);
    Ipv6Addr: u128::MAX, Ipv6Addr::to_bits, Ipv6Addr::from_bits;
    MacAddr: 0xffff_ffff_ffff,
        |mac| mac.octets().into_iter().fold(0, |bits, octet| bits << 8 | u128::from(octet)),
        |bits| {
            let [.., a, b, c, d, e, f] = bits.to_be_bytes();
            MacAddr(a, b, c, d, e, f)
        };
}

/// Returns a value without bits that do not count, and without a mask if all bits count. Returns
/// `None` if no bit counts.
fn normal_value<T: FieldBits>(masked: &Masked<T>) -> Option<Masked<T>> {
    let mask = masked.mask.map_or(T::ONES, |mask| mask.bits() & T::ONES);
    let value = T::from_bits(masked.value.bits() & mask);
    match mask {
        0 => None,
        mask if mask == T::ONES => Some(Masked::exact(value)),
        mask => Some(Masked::with_mask(value, T::from_bits(mask))),
    }
}

/// Returns the usual form of a field, or `None` if it matches every packet. Fields that this
/// controller never sends keep their form.
fn normal_field(field: Oxm) -> Option<Oxm> {
    Some(match field {
        Oxm::InPort(masked) => Oxm::InPort(normal_value(&masked)?),
        Oxm::EthDst(masked) => Oxm::EthDst(normal_value(&masked)?),
        Oxm::EthType(masked) => Oxm::EthType(normal_value(&masked)?),
        Oxm::VlanVid(masked) => Oxm::VlanVid(normal_vlan(normal_value(&masked)?)),
        Oxm::IpProto(masked) => Oxm::IpProto(normal_value(&masked)?),
        Oxm::Ipv4Src(masked) => Oxm::Ipv4Src(normal_value(&masked)?),
        Oxm::Ipv4Dst(masked) => Oxm::Ipv4Dst(normal_value(&masked)?),
        Oxm::Ipv6Src(masked) => Oxm::Ipv6Src(normal_value(&masked)?),
        Oxm::Ipv6Dst(masked) => Oxm::Ipv6Dst(normal_value(&masked)?),
        Oxm::Icmpv6Type(masked) => Oxm::Icmpv6Type(normal_value(&masked)?),
        Oxm::Metadata(Masked { mask: Some(0), .. }) => return None,
        other => other,
    })
}

/// Adds the bit that states the presence of a tag, which some switches leave out of the
/// identifiers that they report.
fn normal_vlan(masked: Masked<VlanId>) -> Masked<VlanId> {
    match masked {
        Masked { value: VlanId(id @ 1..0x1000), mask: None } => Masked::exact(VlanId::tagged(id)),
        other => other,
    }
}

/// Returns the key and the entry of a reported flow in the form in which this controller sends
/// flows, as far as the switch reports them without additional fields.
pub(crate) fn normal_flow(reported: FlowStats) -> (FlowKey, FlowEntry) {
    let fields = reported.matching.fields.into_iter().filter_map(normal_field).collect();
    let instructions = reported.instructions.into_iter().filter_map(|instruction| match instruction {
        // Without actions, packets are dropped, as without an instruction.
        Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) if actions.is_empty() => None,
        Instruction::ApplyActions(actions) => {
            Some(Instruction::ApplyActions(actions.into_iter().map(normal_action).collect()))
        }
        other => Some(other),
    });
    let entry = FlowEntry { cookie: reported.cookie, instructions: instructions.collect() };
    (FlowKey::new(reported.priority, Match { fields }), entry)
}

/// Returns an action without the maximum length of a packet for the controller, which some switches
/// report differently.
pub(crate) fn normal_action(action: Action) -> Action {
    match action {
        Action::Output { port, .. } => Action::output(port),
        other => other,
    }
}

/// Returns whether a switch may report the match `reported` for one that was sent.
fn is_form_of(reported: &Match, sent: &Match) -> bool {
    let untagged = Oxm::VlanVid(Masked::exact(VlanId::NONE));
    let has_kind = |kind: &Oxm| {
        sent.fields.iter().any(|field| core::mem::discriminant(field) == core::mem::discriminant(kind))
    };
    let all_sent = sent.fields.iter().all(|field| reported.fields.contains(field) || *field == untagged);
    let others = || reported.fields.iter().filter(|field| !sent.fields.contains(field));
    all_sent
        && others().all(|field| match field {
            Oxm::InPhyPort(_) | Oxm::Metadata(_) => true,
            Oxm::EthType(_) | Oxm::IpProto(_) => !has_kind(field),
            field => *field == untagged,
        })
}

/// Gives reported flows of a scope the keys of expected flows that are missing and of which they
/// are another form.
pub(crate) fn rename_flows(reported: &mut SwitchTables, expected: &SwitchTables, scope: &ChangeScope) {
    let is_missing = |key: &&FlowKey| expected.flows.contains_key(*key) && !reported.flows.contains_key(*key);
    let mut missing: BTreeMap<(u16, u64), Vec<&FlowKey>> = BTreeMap::new();
    for key in scope.flows.iter().filter(is_missing) {
        let Some(flow) = expected.flows.get(key) else { continue };
        missing.entry((key.priority, flow.cookie)).or_default().push(key);
    }
    if missing.is_empty() {
        return;
    }
    let mut renamed = Vec::new();
    for key in scope.flows.iter().filter(|key| !expected.flows.contains_key(*key)) {
        let Some(flow) = reported.flows.get(key) else { continue };
        let Some(candidates) = missing.get_mut(&(key.priority, flow.cookie)) else { continue };
        let of = candidates.iter().position(|sent| is_form_of(&key.matching, &sent.matching));
        renamed.extend(of.map(|of| (key, candidates.swap_remove(of))));
    }
    for (key, sent) in renamed {
        if let Some(flow) = reported.flows.remove(key) {
            reported.flows.insert(sent.clone(), flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::cookies::COOKIE;

    #[test]
    fn equivalent_matches_and_instructions_have_one_form() {
        let mac = MacAddr(2, 0, 0, 0, 0, 1);
        let sent = Match::new().eth_dst(mac).vlan_vid(VlanId::tagged(7));
        let reported = Match::new()
            .vlan_vid(VlanId(7))
            .eth_dst_masked(mac, MacAddr::broadcast())
            .with(Oxm::Metadata(Masked::with_mask(0, 0)))
            .ipv4_src_masked(Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED);
        let stats = |matching, instructions| FlowStats {
            matching,
            instructions,
            ..FlowStats::from(rs_openflow::FlowMod {
                cookie: COOKIE,
                priority: 9,
                ..rs_openflow::FlowMod::default()
            })
        };
        let (key, entry) = normal_flow(stats(reported, vec![Instruction::ApplyActions(Vec::new())]));
        assert_eq!((key, entry.instructions.len()), (FlowKey::new(9, sent), 0));
        let short = Action::Output { port: PortNo(3), max_len: rs_openflow::MaxLen(128) };
        let (_, entry) = normal_flow(stats(Match::new(), vec![Instruction::ApplyActions(vec![short])]));
        assert_eq!(entry.instructions[..], [Instruction::ApplyActions(vec![Action::output(PortNo(3))])]);
    }

    #[test]
    fn a_form_adds_only_fields_that_restrict_nothing() {
        let sent = Match::new().in_port(PortNo(1)).eth_type(EtherType::IPV4);
        for other in [
            sent.clone(),
            sent.clone().in_phy_port(PortNo(1)),
            sent.clone().vlan_vid(VlanId::NONE),
            sent.clone().ip_proto(IpProtocol::UDP),
        ] {
            assert!(is_form_of(&other, &sent), "{other}");
        }
        for other in [
            Match::new().in_port(PortNo(1)),
            Match::new().in_port(PortNo(1)).eth_type(EtherType::IPV6),
            sent.clone().vlan_vid(VlanId::tagged(7)),
            sent.clone().ipv4_src(Ipv4Addr::LOCALHOST),
        ] {
            assert!(!is_form_of(&other, &sent), "{other}");
        }
    }
}
