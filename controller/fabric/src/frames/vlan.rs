//! VLAN tags (IEEE 802.1Q) of frames: removes them from packet-ins, and adds them to replies.

use rs_openflow::VlanId;
use std::borrow::Cow;

/// EtherType of a customer VLAN tag.
const TAGGED: [u8; 2] = [0x81, 0x00];
/// Offset of the tag, behind both Ethernet addresses.
const AT: usize = 12;

/// The tag of a frame, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(Option<[u8; 2]>);

/// The VLAN of a frame. Untagged frames form a VLAN of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Vlan(pub(crate) Option<u16>);

impl Vlan {
    /// Returns the value that flows match.
    pub(crate) fn field(self) -> VlanId {
        self.0.map_or(VlanId::NONE, VlanId::tagged)
    }

    /// Returns a frame with the tag of this VLAN.
    pub(crate) fn put(self, frame: Vec<u8>) -> Vec<u8> {
        Tag(self.0.map(u16::to_be_bytes)).put(frame)
    }

    /// Returns the VLAN that a flow matches.
    pub(crate) fn from_field(field: VlanId) -> Vlan {
        Vlan((field != VlanId::NONE).then_some(field.0 & 0xfff))
    }
}

/// Returns the tag of a frame, and the frame without it.
pub(crate) fn untagged(frame: &[u8]) -> (Tag, Cow<'_, [u8]>) {
    match frame.get(AT..AT + 4) {
        Some(&[a, b, high, low]) if [a, b] == TAGGED => {
            (Tag(Some([high, low])), [&frame[..AT], &frame[AT + 4..]].concat().into())
        }
        _ => (Tag(None), frame.into()),
    }
}

impl Tag {
    /// Returns the VLAN of the tag.
    pub(crate) fn vlan(self) -> Vlan {
        Vlan(self.0.map(|tag| u16::from_be_bytes(tag) & 0xfff))
    }

    /// Returns a frame with this tag.
    pub(crate) fn put(self, mut frame: Vec<u8>) -> Vec<u8> {
        if let Tag(Some(tag)) = self {
            frame.splice(AT..AT, [TAGGED, tag].concat());
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
        let tagged = Tag(Some([0x20, 42])).put(plain.clone());
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
        for (tag, vlan) in [(Tag(None), Vlan(None)), (Tag(Some([0xe1, 2])), Vlan(Some(0x102)))] {
            assert_eq!((tag.vlan(), Vlan::from_field(vlan.field())), (vlan, vlan));
            assert_eq!(untagged(&vlan.put(vec![0; 60])).0.vlan(), vlan);
        }
    }
}
