//! LLDP frames (IEEE 802.1AB) by which switches and agents announce themselves: encoding and
//! decoding. [`discovery`](crate::discovery) decides which of them are believed. Frames of ordinary
//! switches are decoded by [`lldp_neighbor`](crate::lldp_neighbor).
//!
//! Both kinds contain the three mandatory TLVs, an organizationally specific TLV that identifies
//! the sender, and as the last one another such TLV with a number that is used once and an HMAC of
//! everything before it ([`Key`]). Unknown TLVs are skipped, so that later versions can add some.

use crate::{DatapathId, MacAddr};
use cool_types::{Key, TAG_BYTES, check_node_name};

/// EtherType of LLDP.
pub const ETHERTYPE: u16 = 0x88cc;
/// The nearest-bridge group address, to which LLDP is sent.
pub const DESTINATION: MacAddr = MacAddr(0x01, 0x80, 0xc2, 0, 0, 0x0e);

/// A locally administered OUI, which no vendor uses.
pub(crate) const OUI: [u8; 3] = [0x02, 0xc0, 0x01];
const KIND_SWITCH: u8 = 1;
pub(crate) const KIND_NODE: u8 = 2;
const KIND_AUTH: u8 = 3;
const VERSION: u8 = 2;
const TTL_SECONDS: u16 = 120;

/// Beginning of the chassis id of a switch; its datapath id follows.
pub(crate) const CHASSIS_PREFIX: &str = "dpid:";

pub(crate) const TLV_END: u8 = 0;
pub(crate) const TLV_CHASSIS: u8 = 1;
const TLV_PORT: u8 = 2;
pub(crate) const TLV_TTL: u8 = 3;
pub(crate) const TLV_ORGANIZATION: u8 = 127;
/// Subtypes of locally assigned chassis and port ids.
const CHASSIS_LOCAL: u8 = 7;
const PORT_LOCAL: u8 = 7;
const PORT_MAC: u8 = 3;

/// The identity that an LLDP frame announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// A switch announces one of its ports. The controller makes these frames.
    Switch {
        /// The switch.
        switch: DatapathId,
        /// Port out of which the frame was sent.
        port: u32,
    },
    /// A node announces itself. Its agent makes these frames.
    Node {
        /// Name of the node.
        name: String,
        /// Address of its data interface.
        mac: MacAddr,
    },
}

/// Reason why a frame contains no valid announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LldpError {
    /// Not an LLDP frame.
    #[error("EtherType {0:#06x} is not LLDP")]
    NotLldp(u16),
    /// The frame is truncated.
    #[error("the frame is truncated in {0}")]
    Truncated(&'static str),
    /// A mandatory TLV is missing or out of order.
    #[error("found TLV {found} instead of {wanted}")]
    Order {
        /// Required type.
        wanted: u8,
        /// Type found.
        found: u8,
    },
    /// A well-formed frame of another system.
    #[error("the frame contains no COOL announcement")]
    Foreign,
    /// The announcement has an unsupported version.
    #[error(
        "the announcement has version {0}, but this program supports version {VERSION}; upgrade the older side"
    )]
    Version(u8),
    /// The announcement is malformed.
    #[error("the announcement's {0} is malformed")]
    Malformed(&'static str),
    /// The frame contains two announcements.
    #[error("the frame contains two announcements")]
    Twice,
    /// The announcement is not authenticated.
    #[error("the announcement is not authenticated")]
    Unauthenticated,
}

/// A decoded announcement. The caller must check that it is authentic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnverifiedAnnouncement<'a> {
    /// The announcement.
    pub announcement: Announcement,
    /// Number that the sender uses only once.
    pub number: u64,
    /// The authenticated bytes.
    covered: &'a [u8],
    tag: [u8; TAG_BYTES],
}

impl UnverifiedAnnouncement<'_> {
    /// Returns whether a sender with this key made the announcement.
    pub fn is_authentic(&self, key: &Key) -> bool {
        key.verifies(self.covered, &self.tag)
    }
}

impl Announcement {
    /// Returns the frame with this announcement, sent from `source` and authenticated by `key`. The
    /// sender must use ascending numbers, each only once.
    ///
    /// # Errors
    /// Fails if the name is not valid for a node ([`check_node_name`]).
    pub fn encode(&self, source: MacAddr, key: &Key, number: u64) -> Result<Vec<u8>, LldpError> {
        let mut frame = Vec::with_capacity(160);
        frame.extend(DESTINATION.octets());
        frame.extend(source.octets());
        frame.extend(ETHERTYPE.to_be_bytes());
        let organization = |kind| [OUI[0], OUI[1], OUI[2], kind, VERSION];
        let (chassis, port, own): (Vec<u8>, Vec<u8>, Vec<u8>) = match self {
            Announcement::Switch { switch, port } => (
                [&[CHASSIS_LOCAL][..], format!("{CHASSIS_PREFIX}{switch}").as_bytes()].concat(),
                [&[PORT_LOCAL][..], port.to_string().as_bytes()].concat(),
                [&organization(KIND_SWITCH)[..], &switch.0.to_be_bytes(), &port.to_be_bytes()].concat(),
            ),
            Announcement::Node { name, mac } => {
                check_node_name(name).map_err(|_| LldpError::Malformed("name"))?;
                (
                    [&[CHASSIS_LOCAL][..], name.as_bytes()].concat(),
                    [&[PORT_MAC][..], &mac.octets()].concat(),
                    [&organization(KIND_NODE)[..], &mac.octets(), name.as_bytes()].concat(),
                )
            }
        };
        put(&mut frame, TLV_CHASSIS, &chassis);
        put(&mut frame, TLV_PORT, &port);
        put(&mut frame, TLV_TTL, &TTL_SECONDS.to_be_bytes());
        put(&mut frame, TLV_ORGANIZATION, &own);
        let seal = [&organization(KIND_AUTH)[..], &number.to_be_bytes(), &[0; TAG_BYTES]].concat();
        put(&mut frame, TLV_ORGANIZATION, &seal);
        let covered = frame.len() - TAG_BYTES;
        let tag = key.tag(&frame[..covered]);
        frame[covered..].copy_from_slice(&tag);
        put(&mut frame, TLV_END, &[]);
        Ok(frame)
    }

    /// Decodes a frame.
    ///
    /// # Errors
    /// Fails if the frame is not LLDP, malformed, or of another system. All errors except
    /// [`LldpError::Foreign`] and [`LldpError::NotLldp`] should be reported.
    pub fn decode(frame: &[u8]) -> Result<UnverifiedAnnouncement<'_>, LldpError> {
        let (header, mut rest) =
            frame.split_at_checked(14).ok_or(LldpError::Truncated("its Ethernet header"))?;
        let ethertype = u16::from_be_bytes([header[12], header[13]]);
        if ethertype != ETHERTYPE {
            return Err(LldpError::NotLldp(ethertype));
        }
        let MandatoryTlvs { chassis, port, .. } = MandatoryTlvs::take(&mut rest)?;
        let (mut found, mut seal) = (None, None);
        loop {
            let (kind, value) = take(&mut rest)?;
            match (kind, value.split_at_checked(3)) {
                (TLV_END, _) if value.is_empty() => break,
                (TLV_END, _) => return Err(LldpError::Malformed("end")),
                (TLV_CHASSIS..=TLV_TTL, _) => return Err(LldpError::Twice),
                (TLV_ORGANIZATION, None) => return Err(LldpError::Malformed("organization")),
                // No TLV of ours may follow the HMAC, because it would not be authenticated.
                (TLV_ORGANIZATION, Some((oui, _))) if oui == OUI && seal.is_some() => {
                    return Err(LldpError::Malformed("order"));
                }
                (TLV_ORGANIZATION, Some((oui, own))) if oui == OUI => match decode_own_tlv(own)? {
                    Some(OwnTlv::Announcement(announcement)) => {
                        let before = found.replace(announcement);
                        if before.is_some() {
                            return Err(LldpError::Twice);
                        }
                    }
                    Some(OwnTlv::Seal { number, tag }) => {
                        let covered = frame.len() - rest.len() - TAG_BYTES;
                        seal = Some((number, tag, &frame[..covered]));
                    }
                    None => {}
                },
                _ => {}
            }
        }
        let found = found.ok_or(LldpError::Foreign)?;
        // The mandatory TLVs, which other tools show, must agree with our own.
        let agrees = match &found {
            Announcement::Switch { switch, port: number } => {
                chassis[0] == CHASSIS_LOCAL
                    && chassis[1..] == *format!("dpid:{switch}").as_bytes()
                    && port[0] == PORT_LOCAL
                    && port[1..] == *number.to_string().as_bytes()
            }
            Announcement::Node { name, mac } => {
                chassis[0] == CHASSIS_LOCAL
                    && chassis[1..] == *name.as_bytes()
                    && port[0] == PORT_MAC
                    && port[1..] == mac.octets()
            }
        };
        if !agrees {
            return Err(LldpError::Malformed("chassis or port id"));
        }
        let (number, tag, covered) = seal.ok_or(LldpError::Unauthenticated)?;
        Ok(UnverifiedAnnouncement { announcement: found, number, covered, tag })
    }
}

/// Content of an organizationally specific TLV of ours.
enum OwnTlv {
    Announcement(Announcement),
    Seal { number: u64, tag: [u8; TAG_BYTES] },
}

/// Decodes a TLV of ours after its OUI. Returns `None` for kinds that later versions may add.
fn decode_own_tlv(own: &[u8]) -> Result<Option<OwnTlv>, LldpError> {
    let (&[kind, version], body) = own.split_first_chunk().ok_or(LldpError::Truncated("our TLV"))?;
    if !matches!(kind, KIND_SWITCH | KIND_NODE | KIND_AUTH) {
        return Ok(None);
    }
    if version != VERSION {
        return Err(LldpError::Version(version));
    }
    if kind == KIND_AUTH {
        let (number, tag) = body.split_first_chunk().ok_or(LldpError::Truncated("the proof"))?;
        let tag = tag.try_into().map_err(|_| LldpError::Malformed("proof"))?;
        return Ok(Some(OwnTlv::Seal { number: u64::from_be_bytes(*number), tag }));
    }
    if kind == KIND_SWITCH {
        let (switch, port) = body.split_first_chunk().ok_or(LldpError::Truncated("the datapath id"))?;
        let port = port.try_into().map_err(|_| LldpError::Malformed("port"))?;
        let switch = DatapathId(u64::from_be_bytes(*switch));
        let announcement = Announcement::Switch { switch, port: u32::from_be_bytes(port) };
        return Ok(Some(OwnTlv::Announcement(announcement)));
    }
    let (mac, name) = body.split_first_chunk().ok_or(LldpError::Truncated("the node's address"))?;
    let name = str::from_utf8(name).map_err(|_| LldpError::Malformed("name"))?;
    check_node_name(name).map_err(|_| LldpError::Malformed("name"))?;
    Ok(Some(OwnTlv::Announcement(Announcement::Node { name: name.to_owned(), mac: MacAddr::from(*mac) })))
}

/// The first three TLVs of each frame.
pub(crate) struct MandatoryTlvs<'a> {
    /// Subtype and id of the chassis.
    pub(crate) chassis: &'a [u8],
    /// Subtype and id of the port.
    pub(crate) port: &'a [u8],
    /// How long the information is valid, in seconds.
    pub(crate) ttl_seconds: u16,
}

impl<'a> MandatoryTlvs<'a> {
    /// Removes and returns the mandatory TLVs.
    pub(crate) fn take(rest: &mut &'a [u8]) -> Result<MandatoryTlvs<'a>, LldpError> {
        let chassis = mandatory(rest, TLV_CHASSIS)?;
        let port = mandatory(rest, TLV_PORT)?;
        let ttl = mandatory(rest, TLV_TTL)?;
        // 802.1AB, 8.5.2 to 8.5.4: an id has a subtype and 1 to 255 bytes, a TTL at least two
        // bytes.
        match ttl.first_chunk() {
            Some(ttl) if (2..=256).contains(&chassis.len()) && (2..=256).contains(&port.len()) => {
                Ok(MandatoryTlvs { chassis, port, ttl_seconds: u16::from_be_bytes(*ttl) })
            }
            _ => Err(LldpError::Malformed("mandatory TLV")),
        }
    }
}

/// Appends a TLV: 7 bits of type, 9 bits of length. The value must be shorter than 512 bytes.
pub(crate) fn put(frame: &mut Vec<u8>, kind: u8, value: &[u8]) {
    let head = (u16::from(kind) << 9) | (value.len() as u16 & 0x1ff);
    frame.extend(head.to_be_bytes());
    frame.extend(value);
}

/// Removes and returns the first TLV.
pub(crate) fn take<'a>(rest: &mut &'a [u8]) -> Result<(u8, &'a [u8]), LldpError> {
    let (&head, body) = rest.split_first_chunk().ok_or(LldpError::Truncated("a TLV's header"))?;
    let head = u16::from_be_bytes(head);
    let (value, after) =
        body.split_at_checked(usize::from(head & 0x1ff)).ok_or(LldpError::Truncated("a TLV's value"))?;
    *rest = after;
    Ok(((head >> 9) as u8, value))
}

fn mandatory<'a>(rest: &mut &'a [u8], wanted: u8) -> Result<&'a [u8], LldpError> {
    match take(rest)? {
        (found, value) if found == wanted => Ok(value),
        (found, _) => Err(LldpError::Order { wanted, found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn announcements() -> impl Strategy<Value = Announcement> {
        prop_oneof![
            (any::<u64>(), any::<u32>())
                .prop_map(|(dpid, port)| Announcement::Switch { switch: DatapathId(dpid), port }),
            ("[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,62}", any::<[u8; 6]>())
                .prop_map(|(name, mac)| Announcement::Node { name, mac: MacAddr::from(mac) }),
        ]
    }

    const SOURCE: MacAddr = MacAddr(2, 0, 0, 0, 0, 1);

    fn key() -> Key {
        Key::from([5; 32])
    }

    proptest! {
        #[test]
        fn any_change_of_an_announcement_is_detected(
            a in announcements(), number in any::<u64>(), at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let mut frame = a.encode(SOURCE, &key(), number).unwrap();
            let read = Announcement::decode(&frame).unwrap();
            prop_assert_eq!((&read.announcement, read.number), (&a, number));
            prop_assert!(read.is_authentic(&key()));
            prop_assert!(!read.is_authentic(&key().derive(b"another")));
            let at = at.index(frame.len());
            frame[at] ^= 1u8 << bit;
            prop_assert!(!Announcement::decode(&frame).is_ok_and(|read| read.is_authentic(&key())));
        }

        #[test]
        fn a_frame_cut_short_is_refused(a in announcements(), cut in any::<prop::sample::Index>()) {
            let mut frame = a.encode(SOURCE, &key(), 1).unwrap();
            frame.truncate(cut.index(frame.len()));
            prop_assert!(Announcement::decode(&frame).is_err());
        }

        #[test]
        fn any_bytes_decode_without_panic_and_encode_again(
            tail in prop::collection::vec(any::<u8>(), 0..200), flips in prop::collection::vec((0usize..80, any::<u8>()), 0..4),
            a in announcements(),
        ) {
            let mut frame = a.encode(SOURCE, &key(), 1).unwrap();
            frame.extend(&tail);
            for (at, byte) in flips {
                frame[at.min(59)] = byte;
            }
            for frame in [&frame, &tail] {
                if let Ok(read) = Announcement::decode(frame) {
                    let made = read.announcement.encode(SOURCE, &key(), read.number).unwrap();
                    let again = Announcement::decode(&made).unwrap();
                    prop_assert_eq!((again.announcement, again.number), (read.announcement, read.number));
                }
            }
        }
    }

    /// Returns a frame as `lldpd` sends it: chassis and port by MAC, a system name, and an
    /// organizationally specific TLV of another system.
    fn foreign(tail: &[(u8, &[u8])]) -> Vec<u8> {
        let mut frame = [&DESTINATION.octets()[..], &SOURCE.octets(), &ETHERTYPE.to_be_bytes()].concat();
        put(&mut frame, TLV_CHASSIS, &[4, 2, 0, 0, 0, 0, 1]);
        put(&mut frame, TLV_PORT, &[3, 2, 0, 0, 0, 0, 1]);
        put(&mut frame, TLV_TTL, &[0, 120]);
        for (kind, value) in tail {
            put(&mut frame, *kind, value);
        }
        frame
    }

    #[test]
    fn frames_of_others_are_distinguished_from_malformed_ones() {
        let other = foreign(&[(5, b"rack7-pdu"), (127, &[0, 0x12, 0x0f, 1, 3]), (0, &[])]);
        assert_eq!(Announcement::decode(&other), Err(LldpError::Foreign));
        assert_eq!(Announcement::decode(&foreign(&[])), Err(LldpError::Truncated("a TLV's header")));
        assert_eq!(Announcement::decode(&[0; 60]), Err(LldpError::NotLldp(0)));
        assert_eq!(Announcement::decode(&foreign(&[(TLV_TTL, &[0, 1]), (0, &[])])), Err(LldpError::Twice));
    }

    #[test]
    fn another_version_is_named_and_a_contradiction_refused() {
        let newer = foreign(&[(127, &[2, 0xc0, 1, KIND_NODE, 9, 1, 2]), (0, &[])]);
        assert_eq!(Announcement::decode(&newer), Err(LldpError::Version(9)));
        let lie = foreign(&[(127, &[2, 0xc0, 1, KIND_NODE, VERSION, 2, 0, 0, 0, 0, 1, b'h']), (0, &[])]);
        assert_eq!(Announcement::decode(&lie), Err(LldpError::Malformed("chassis or port id")));
    }

    #[test]
    fn unknown_tlvs_beside_ours_leave_room_for_later_ones() {
        let node = Announcement::Node { name: "h1".into(), mac: SOURCE };
        let frame = node.encode(SOURCE, &key(), 1).unwrap();
        let mut longer = frame[..frame.len() - 2].to_vec();
        put(&mut longer, 8, &[0xaa; 40]);
        put(&mut longer, TLV_END, &[]);
        assert_eq!(Announcement::decode(&longer).unwrap().announcement, node);
    }

    #[test]
    fn what_proves_nothing_is_refused() {
        let node = Announcement::Node { name: "h1".into(), mac: SOURCE };
        let frame = node.encode(SOURCE, &key(), 1).unwrap();
        // A frame without its last TLV but one, which contains the HMAC.
        let mut bare = frame[..frame.len() - 2 - (2 + 5 + 8 + TAG_BYTES)].to_vec();
        put(&mut bare, TLV_END, &[]);
        assert_eq!(Announcement::decode(&bare), Err(LldpError::Unauthenticated));
        // A frame with another TLV of ours after the HMAC.
        let mut more = frame[..frame.len() - 2].to_vec();
        put(&mut more, TLV_ORGANIZATION, &[&OUI[..], &[200, 1]].concat());
        put(&mut more, TLV_END, &[]);
        assert_eq!(Announcement::decode(&more), Err(LldpError::Malformed("order")));
    }
}
