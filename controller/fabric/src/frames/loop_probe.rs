//! Frames by which the controller proves that two ports are connected outside of its network.
//! Bridges forward them, because they are broadcasts of an EtherType for experiments.
//!
//! A probe names the port out of which it is sent and is authenticated, so that no host can make
//! two ports appear connected, or a port that only receives its own probe.

use crate::api::MacAddr;
use cool_topology::{DatapathId, Key, Port};

/// EtherType for local experiments (IEEE 802, 9.2.4).
pub(crate) const ETHERTYPE: u16 = 0x88b5;
const TEXT: &[u8; 15] = b"COOL loop probe";
/// Length of number and port, and of the tag behind them.
const FIELD_BYTES: usize = 8 + 8 + 4;
const TAG_BYTES: usize = 32;

/// A probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoopProbe {
    /// Port out of which the probe is sent.
    pub(crate) port: Port,
    /// Number of the round of probes, each of which has another number.
    pub(crate) round: u64,
}

impl LoopProbe {
    /// Returns the frame of this probe.
    pub(crate) fn frame(self, source: MacAddr, key: &Key) -> Vec<u8> {
        let (switch, number) = (self.port.switch.0.to_be_bytes(), self.port.number.to_be_bytes());
        let fields = [&self.round.to_be_bytes()[..], &switch, &number].concat();
        let destination = MacAddr::broadcast().octets();
        let kind = ETHERTYPE.to_be_bytes();
        [&destination[..], &source.octets(), &kind, TEXT, &fields, &key.tag(&fields)].concat()
    }

    /// Returns the probe in an untagged frame, or `None` if it is another or a forged frame.
    pub(crate) fn read(frame: &[u8], key: &Key) -> Option<LoopProbe> {
        let content = frame.get(12..)?.strip_prefix(&ETHERTYPE.to_be_bytes())?.strip_prefix(TEXT)?;
        let (fields, tag) = (content.get(..FIELD_BYTES)?, content.get(FIELD_BYTES..FIELD_BYTES + TAG_BYTES)?);
        if !key.verifies(fields, tag.try_into().ok()?) {
            return None;
        }
        let round = u64::from_be_bytes(fields[..8].try_into().ok()?);
        let switch = DatapathId(u64::from_be_bytes(fields[8..16].try_into().ok()?));
        let number = u32::from_be_bytes(fields[16..].try_into().ok()?);
        Some(LoopProbe { port: Port { switch, number }, round })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_read_unless_forged_or_truncated() {
        let key = Key::from([7; 32]);
        let probe = LoopProbe { port: Port { switch: DatapathId(0x2a), number: 3 }, round: 7 };
        let frame = probe.frame(MacAddr(2, 0, 0, 0, 0, 1), &key);
        assert_eq!(LoopProbe::read(&frame, &key), Some(probe));
        assert_eq!(LoopProbe::read(&frame, &Key::from([8; 32])), None);
        for bytes in 0..frame.len() {
            assert_eq!(LoopProbe::read(&frame[..bytes], &key), None);
            let mut forged = frame.clone();
            forged[bytes] ^= 1;
            assert_eq!(LoopProbe::read(&forged, &key).is_some(), bytes < 12, "byte {bytes}");
        }
    }
}
