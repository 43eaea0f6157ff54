//! LLDP of switches (IEEE 802.1AB), by which a node detects its switch on networks without
//! OpenFlow: decoding, and the table of the neighbors that are currently known.
//!
//! Frames of hosts and of other nodes are ignored. Those that a controller of this system sends out
//! of a switch's port ([`lldp`]) count like those of any switch, although the node cannot
//! authenticate them. An observing controller locates nodes by them.

use crate::lldp::{self, LldpError, MandatoryTlvs};
use crate::{MacAddr, Port};
use cool_machine::{Duration, Machine, Poll, Time};
use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

const TLV_SYSTEM_NAME: u8 = 5;
const TLV_CAPABILITIES: u8 = 7;
/// Capabilities of systems that forward frames: repeater, bridge, router, C-VLAN and S-VLAN
/// component, two-port MAC relay (802.1AB, table 8-4).
const FORWARDS: u16 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 10;

/// Beginning of the TLV by which a node of this system announces itself.
const NODE: [u8; 4] = [lldp::OUI[0], lldp::OUI[1], lldp::OUI[2], lldp::KIND_NODE];

/// The subtypes of ids that are an Ethernet address or a network address.
struct IdSubtypes {
    mac: u8,
    network: u8,
}

const CHASSIS_SUBTYPES: IdSubtypes = IdSubtypes { mac: 4, network: 5 };
const PORT_SUBTYPES: IdSubtypes = IdSubtypes { mac: 3, network: 4 };

/// Maximum number of neighbors of a node. Further ones are ignored.
const NEIGHBORS_MAX: usize = 16;

/// The switch port to which a node is connected, as the switch announces it. All texts are
/// printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LldpNeighbor {
    /// Id of the switch, for example its Ethernet address.
    pub chassis: String,
    /// Id of the port.
    pub port: String,
    /// Name of the switch, if it announces one.
    pub system_name: Option<String>,
}

impl LldpNeighbor {
    /// Maximum length of each text. An id has at most 255 bytes, or as many pairs of hexadecimal
    /// digits.
    pub const TEXT_MAX: usize = 2 + 2 * 255;

    /// Returns the port, if a controller of this system announces it
    /// ([`Announcement::Switch`](crate::lldp::Announcement::Switch)).
    pub fn announced_port(&self) -> Option<Port> {
        let switch = self.chassis.strip_prefix(lldp::CHASSIS_PREFIX)?.parse().ok()?;
        Some(Port { switch, number: self.port.parse().ok()? })
    }

    /// Returns whether all texts are as [`LldpNeighbor`] requires.
    pub fn is_valid(&self) -> bool {
        let valid = |text: &String| text.len() <= Self::TEXT_MAX && is_printable(text);
        [&self.chassis, &self.port].into_iter().chain(&self.system_name).all(valid)
    }

    /// Decodes an LLDP frame after its Ethernet header. Returns the neighbor, and for how many
    /// seconds the information is valid; `None` if its sender is a node of this system, or forwards
    /// no frames and so is no switch.
    ///
    /// # Errors
    /// Returns an error if the frame is malformed.
    pub fn decode(mut rest: &[u8]) -> Result<Option<(LldpNeighbor, u16)>, LldpError> {
        let MandatoryTlvs { chassis, port, ttl_seconds } = MandatoryTlvs::take(&mut rest)?;
        let mut system_name = None;
        // Some frames have no end.
        while !rest.is_empty() {
            let (kind, value) = lldp::take(&mut rest)?;
            match kind {
                lldp::TLV_END => break,
                lldp::TLV_CHASSIS..=lldp::TLV_TTL => return Err(LldpError::Twice),
                lldp::TLV_ORGANIZATION if value.starts_with(&NODE) => return Ok(None),
                TLV_SYSTEM_NAME => system_name = printable(value),
                TLV_CAPABILITIES => {
                    // The supported capabilities are followed by the enabled ones.
                    let enabled = value.get(2..4).and_then(|enabled| enabled.first_chunk());
                    let enabled = enabled.ok_or(LldpError::Malformed("capabilities"))?;
                    if u16::from_be_bytes(*enabled) & FORWARDS == 0 {
                        return Ok(None);
                    }
                }
                _ => {}
            }
        }
        let chassis = id(chassis, &CHASSIS_SUBTYPES)?;
        let port = id(port, &PORT_SUBTYPES)?;
        Ok(Some((LldpNeighbor { chassis, port, system_name }, ttl_seconds)))
    }
}

/// Returns the text of an id, which begins with its subtype.
fn id(value: &[u8], subtypes: &IdSubtypes) -> Result<String, LldpError> {
    let (&subtype, id) = value.split_first().ok_or(LldpError::Truncated("an id"))?;
    if subtype == subtypes.mac
        && let Ok(mac) = <[u8; 6]>::try_from(id)
    {
        return Ok(MacAddr::from(mac).to_string());
    }
    // Network addresses begin with an address family number of IANA.
    if subtype == subtypes.network
        && let [1, ip @ ..] = id
        && let Ok(ip) = <[u8; 4]>::try_from(ip)
    {
        return Ok(Ipv4Addr::from(ip).to_string());
    }
    if subtype == subtypes.network
        && let [2, ip @ ..] = id
        && let Ok(ip) = <[u8; 16]>::try_from(ip)
    {
        return Ok(Ipv6Addr::from(ip).to_string());
    }
    let hexadecimal = || id.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"));
    Ok(printable(id).unwrap_or_else(hexadecimal))
}

/// Returns a text without the zeros and spaces that some switches append. Returns `None` if it is
/// not printable ASCII.
fn printable(bytes: &[u8]) -> Option<String> {
    let text = str::from_utf8(bytes).ok()?.trim_end_matches('\0').trim();
    is_printable(text).then(|| text.to_owned())
}

fn is_printable(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

/// The switches that a node currently receives LLDP from. The input is a frame after its Ethernet
/// header; malformed frames are ignored. Each output is the neighbor that counts from now on, or
/// `None` if there is none any more.
///
/// If there are several neighbors, for example because the links of a bond lead to two switches,
/// the one with the smallest chassis id counts, because all nodes of the two must agree.
#[derive(Debug, Default)]
pub struct NeighborTable {
    /// System name and time of expiry by chassis and port.
    known: BTreeMap<(String, String), (Option<String>, Time)>,
    reported: Option<LldpNeighbor>,
}

impl Machine for NeighborTable {
    type Input<'a> = &'a [u8];
    type Output = Option<LldpNeighbor>;

    fn handle(&mut self, now: Time, frame: &[u8]) {
        let Ok(Some((neighbor, ttl_seconds))) = LldpNeighbor::decode(frame) else { return };
        let key = (neighbor.chassis, neighbor.port);
        // A switch that shuts down sends a TTL of 0, which is expired at once.
        let until = now + Duration::from_secs(ttl_seconds.into());
        if self.known.len() < NEIGHBORS_MAX || self.known.contains_key(&key) {
            self.known.insert(key, (neighbor.system_name, until));
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Option<LldpNeighbor>> {
        self.known.retain(|_, (_, until)| *until > now);
        let first = self.known.first_key_value().map(|((chassis, port), (system_name, _))| LldpNeighbor {
            chassis: chassis.clone(),
            port: port.clone(),
            system_name: system_name.clone(),
        });
        if first != self.reported {
            self.reported.clone_from(&first);
            return Poll::Output(first);
        }
        Poll::Idle(self.known.values().map(|(_, until)| *until).min())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lldp::{Announcement, put};
    use crate::{DatapathId, Key};

    /// A frame of lldpd 1.0.16 on a Linux bridge named "leaf1", after its Ethernet header.
    const LLDPD: &[u8] = include_bytes!("samples/lldpd.bin");

    fn frame(chassis: &[u8], port: &[u8], ttl: u16, more: &[(u8, &[u8])]) -> Vec<u8> {
        let mut frame = Vec::new();
        for (kind, value) in [(1, chassis), (2, port), (3, &ttl.to_be_bytes()[..])].iter().chain(more) {
            put(&mut frame, *kind, value);
        }
        frame
    }

    fn decode(frame: &[u8]) -> Option<LldpNeighbor> {
        LldpNeighbor::decode(frame).unwrap().map(|(neighbor, _)| neighbor)
    }

    fn neighbor(chassis: &str, port: &str, system_name: Option<&str>) -> LldpNeighbor {
        let system_name = system_name.map(str::to_owned);
        LldpNeighbor { chassis: chassis.to_owned(), port: port.to_owned(), system_name }
    }

    #[test]
    fn ids_of_all_kinds_become_text() {
        let ids: [(&[u8], &[u8], &str, &str); 5] = [
            (&[4, 2, 0, 0, 0, 0, 1], b"\x05Ethernet1/1", "02:00:00:00:00:01", "Ethernet1/1"),
            (&[5, 1, 10, 0, 0, 1], &[3, 2, 0, 0, 0, 0, 9], "10.0.0.1", "02:00:00:00:00:09"),
            (&[5, 2, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], b"\x077\0\0", "fd00::1", "7"),
            (b"\x07leaf 1 ", &[4, 1, 10, 0, 0, 2], "leaf 1", "10.0.0.2"),
            (&[4, 1, 2], b"\x01\x1b[2J", "0x0102", "0x1b5b324a"),
        ];
        for (chassis, port, chassis_text, port_text) in ids {
            let read = decode(&frame(chassis, port, 120, &[(0, &[])])).unwrap();
            assert_eq!(read, neighbor(chassis_text, port_text, None));
            assert!(read.is_valid());
        }
        let longest = decode(&frame(&[[7].as_slice(), &[0; 255]].concat(), b"\x071", 1, &[])).unwrap();
        assert_eq!(longest.chassis.len(), LldpNeighbor::TEXT_MAX);
        assert!(longest.is_valid() && !neighbor("a\n", "1", None).is_valid());
    }

    #[test]
    fn a_frame_of_lldpd_names_its_switch() {
        let read = decode(LLDPD).unwrap();
        assert_eq!((read.system_name.as_deref(), read.port.as_str()), (Some("leaf1"), "42:30:a9:6f:66:80"));
        for cut in 0..LLDPD.len() - 2 {
            // Only between two TLVs may a frame end early.
            let _ = LldpNeighbor::decode(&LLDPD[..cut]);
        }
    }

    #[test]
    fn hosts_and_this_system_are_no_neighbors() {
        let (mac, port): (&[u8], &[u8]) = (&[4, 2, 0, 0, 0, 0, 1], b"\x05eth1");
        let capable = |supported: u16, enabled: u16| {
            let bits = [supported.to_be_bytes(), enabled.to_be_bytes()].concat();
            decode(&frame(mac, port, 120, &[(7, &bits), (0, &[])]))
        };
        // A host that could route, but does not.
        assert_eq!(capable(1 << 2 | 1 << 4 | 1 << 7, 1 << 7), None);
        assert!(capable(1 << 2 | 1 << 4, 1 << 4).is_some());
        let (key, source) = (Key::from([5; 32]), MacAddr(2, 0, 0, 0, 0, 1));
        let node = Announcement::Node { name: "h1".into(), mac: source };
        assert_eq!(decode(&node.encode(source, &key, 1).unwrap()[14..]), None);
    }

    #[test]
    fn a_port_that_a_controller_announces_is_recognized() {
        let (key, source) = (Key::from([5; 32]), MacAddr(2, 0, 0, 0, 0, 1));
        let port = Port { switch: DatapathId(0x2a), number: 3 };
        let announcement = Announcement::Switch { switch: port.switch, port: port.number };
        let found = decode(&announcement.encode(source, &key, 1).unwrap()[14..]).unwrap();
        assert_eq!(found, neighbor("dpid:000000000000002a", "3", None));
        assert_eq!(found.announced_port(), Some(port));
        for (chassis, number) in [("leaf1", "3"), ("dpid:x", "3"), ("dpid:2a", "e1")] {
            assert_eq!(neighbor(chassis, number, None).announced_port(), None);
        }
    }

    #[test]
    fn malformed_frames_are_errors() {
        let good = frame(b"\x07a", b"\x07b", 9, &[(5, b"leaf1"), (0, &[])]);
        for cut in 0..good.len() {
            // Without its end or an optional TLV, the frame is valid.
            let valid = [9 + 3, 9 + 3 + 7].contains(&cut);
            assert_eq!(LldpNeighbor::decode(&good[..cut]).is_ok(), valid, "{cut} bytes");
        }
        let twice = frame(b"\x07a", b"\x07b", 9, &[(1, b"\x07c"), (0, &[])]);
        assert_eq!(LldpNeighbor::decode(&twice), Err(LldpError::Twice));
        let short = frame(b"\x07a", b"\x07b", 9, &[(7, &[0, 4, 0]), (0, &[])]);
        assert_eq!(LldpNeighbor::decode(&short), Err(LldpError::Malformed("capabilities")));
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_neighbor_is_forgotten_after_its_ttl() {
        let mut table = NeighborTable::default();
        assert_eq!(table.poll(at(0)), Poll::Idle(None));
        table.handle(at(0), &frame(b"\x07leaf1", b"\x07e1", 120, &[]));
        assert_eq!(table.poll(at(0)), Poll::Output(Some(neighbor("leaf1", "e1", None))));
        table.handle(at(30), &frame(b"\x07leaf1", b"\x07e1", 120, &[]));
        assert_eq!(table.poll(at(30)), Poll::Idle(Some(at(150))));
        assert_eq!(table.poll(at(149)), Poll::Idle(Some(at(150))));
        assert_eq!(table.poll(at(150)), Poll::Output(None));
        assert_eq!(table.poll(at(150)), Poll::Idle(None));
        // A switch that shuts down announces it.
        table.handle(at(151), &frame(b"\x07leaf1", b"\x07e1", 120, &[]));
        table.poll(at(151));
        table.handle(at(152), &frame(b"\x07leaf1", b"\x07e1", 0, &[]));
        assert_eq!(table.poll(at(152)), Poll::Output(None));
    }

    #[test]
    fn of_several_neighbors_the_smallest_chassis_counts() {
        let mut table = NeighborTable::default();
        table.handle(at(0), &frame(b"\x07leaf2", b"\x07e1", 60, &[]));
        assert_eq!(table.poll(at(0)), Poll::Output(Some(neighbor("leaf2", "e1", None))));
        table.handle(at(1), &frame(b"\x07leaf1", b"\x07e9", 9, &[(5, b"name")]));
        assert_eq!(table.poll(at(1)), Poll::Output(Some(neighbor("leaf1", "e9", Some("name")))));
        assert_eq!(table.poll(at(1)), Poll::Idle(Some(at(10))));
        assert_eq!(table.poll(at(10)), Poll::Output(Some(neighbor("leaf2", "e1", None))));
        // A flood of chassis ids does not displace known neighbors.
        for number in 0..1000 {
            table.handle(at(11), &frame(format!("\x07a{number}").as_bytes(), b"\x07e1", 60, &[]));
        }
        assert_eq!(table.known.len(), NEIGHBORS_MAX);
        assert!(table.known.contains_key(&("leaf2".to_owned(), "e1".to_owned())));
    }
}
