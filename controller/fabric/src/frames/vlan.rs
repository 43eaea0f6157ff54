//! VLAN tags (IEEE 802.1Q) of frames: removes them from packet-ins, and adds them to replies.
//!
//! Only the outer tag of a frame counts, of whatever type, because switches match that one
//! (OpenFlow 1.3.5, 7.2.3.7).

use rs_openflow::VlanId;
use std::borrow::Cow;

/// EtherTypes of customer and service VLAN tags.
const CUSTOMER: [u8; 2] = [0x81, 0x00];
const SERVICE: [u8; 2] = [0x88, 0xa8];
/// Bits of a tag that identify the VLAN.
const IDENTIFIER: u16 = 0xfff;
/// Offset of the tag, behind both Ethernet addresses.
const AT: usize = 12;

/// The tag of a frame, with its EtherType, if the frame has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(Option<[u8; 4]>);

/// The VLAN of a frame. Untagged frames form a VLAN of their own, to which frames with a priority
/// but no VLAN belong as well (IEEE 802.1Q, 6.9.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Vlan(pub(crate) Option<u16>);

impl Vlan {
    /// Returns the value that flows match.
    pub(crate) fn field(self) -> VlanId {
        self.0.map_or(VlanId::NONE, VlanId::tagged)
    }

    /// Returns a frame with the tag of this VLAN.
    pub(crate) fn put(self, frame: Vec<u8>) -> Vec<u8> {
        let tag = |vlan: u16| {
            let [high, low] = vlan.to_be_bytes();
            [CUSTOMER[0], CUSTOMER[1], high, low]
        };
        Tag(self.0.map(tag)).put(frame)
    }

    /// Returns the VLAN that a flow matches.
    pub(crate) fn from_field(field: VlanId) -> Vlan {
        Vlan(Some(field.0 & IDENTIFIER).filter(|identifier| *identifier != 0))
    }
}

/// Returns the tag of a frame, and the frame without it.
pub(crate) fn untagged(frame: &[u8]) -> (Tag, Cow<'_, [u8]>) {
    match frame.get(AT..AT + 4) {
        Some(&[a, b, high, low]) if [a, b] == CUSTOMER || [a, b] == SERVICE => {
            (Tag(Some([a, b, high, low])), [&frame[..AT], &frame[AT + 4..]].concat().into())
        }
        _ => (Tag(None), frame.into()),
    }
}

impl Tag {
    /// Returns the VLAN of the tag.
    pub(crate) fn vlan(self) -> Vlan {
        let identifier = self.0.map(|[.., high, low]| u16::from_be_bytes([high, low]) & IDENTIFIER);
        Vlan(identifier.filter(|identifier| *identifier != 0))
    }

    /// Returns whether the tag states a priority, but no VLAN.
    pub(crate) fn is_priority_only(self) -> bool {
        self.0.is_some() && self.vlan() == Vlan(None)
    }

    /// Returns a frame with this tag.
    pub(crate) fn put(self, mut frame: Vec<u8>) -> Vec<u8> {
        if let Tag(Some(tag)) = self {
            frame.splice(AT..AT, tag);
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_removed_and_restored_and_untagged_frames_kept() {
        let plain: Vec<u8> = (0..60).collect();
        assert_eq!(untagged(&plain), (Tag(None), Cow::from(&plain)));
        let tagged = Tag(Some([0x81, 0, 0x20, 42])).put(plain.clone());
        assert_eq!(tagged.len(), 64);
        let (tag, without) = untagged(&tagged);
        assert_eq!(without, plain);
        assert_eq!(tag.put(plain.clone()), tagged);
        for end in 0..16 {
            assert_eq!(*untagged(&tagged[..end]).1, tagged[..end]);
        }
    }

    #[test]
    fn a_vlan_is_the_number_of_its_tag_at_any_priority() {
        let tagged = [0x81, 0x00, 0xe1, 2];
        for (tag, vlan) in [(Tag(None), Vlan(None)), (Tag(Some(tagged)), Vlan(Some(0x102)))] {
            assert_eq!((tag.vlan(), Vlan::from_field(vlan.field())), (vlan, vlan));
            assert_eq!(untagged(&vlan.put(vec![0; 60])).0.vlan(), vlan);
        }
    }

    #[test]
    fn a_priority_without_a_vlan_belongs_to_the_untagged_segment() {
        let frame = Tag(Some([0x81, 0x00, 0xa0, 0])).put((0..60).collect());
        let (tag, _) = untagged(&frame);
        assert_eq!((tag.vlan(), tag.is_priority_only()), (Vlan(None), true));
        assert_eq!(Vlan::from_field(VlanId::tagged(0)), Vlan(None));
        assert!(!untagged(&[0; 60]).0.is_priority_only());
    }

    #[test]
    fn the_outer_tag_counts_and_keeps_its_type() {
        let inner = Tag(Some([0x81, 0x00, 0, 5])).put((0..60).collect());
        let frame = Tag(Some([0x88, 0xa8, 0, 9])).put(inner.clone());
        let (tag, without) = untagged(&frame);
        assert_eq!((tag.vlan(), &*without), (Vlan(Some(9)), &inner[..]));
        assert_eq!(tag.put(inner), frame);
    }
}
