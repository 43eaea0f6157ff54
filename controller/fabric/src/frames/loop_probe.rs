//! Frames by which the controller proves that two ports are connected outside of its network.
//! Bridges forward them, because they are broadcasts of an EtherType for experiments.

use crate::api::MacAddr;

/// EtherType for local experiments (IEEE 802, 9.2.4).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const TEXT: &[u8; 15] = b"COOL loop probe";
/// Minimum length of a frame.
const FRAME_BYTES_MIN: usize = 60;

/// Returns the frame with this number.
pub(crate) fn frame(source: MacAddr, number: u64) -> Vec<u8> {
    let destination = MacAddr::broadcast().octets();
    let mut frame = [&destination[..], &source.octets(), &ETHERTYPE, TEXT, &number.to_be_bytes()].concat();
    frame.resize(FRAME_BYTES_MIN, 0);
    frame
}

/// Returns the number in an untagged frame, or `None` if it is another frame.
pub(crate) fn read(frame: &[u8]) -> Option<u64> {
    let number = frame.get(12..)?.strip_prefix(&ETHERTYPE)?.strip_prefix(TEXT)?.get(..8)?;
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_recognized_by_its_text() {
        let probe = frame(MacAddr(2, 0, 0, 0, 0, 1), 7);
        assert_eq!((probe.len(), read(&probe), read(&probe[..20])), (60, Some(7), None));
        assert_eq!(read(&[0; 60]), None);
    }
}
