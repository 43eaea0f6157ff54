//! Pseudo MAC addresses (PMAC; PortLand, SIGCOMM 2009, section 3.2): 02:c0:RR:RR:HH:HH says in which rack a node is
//! and at which port of its ToR, so that a switch needs one rule for a whole rack. Hosts get them as ARP answers; the
//! ToR puts the node's own address back.

use cool_topology::{DatapathId, MacAddr, Port};

/// The PMAC of the node at a port of a rack's ToR; `None` if either number needs more than 16 bits.
pub(crate) fn of(rack: u32, port: u32) -> Option<MacAddr> {
    let [r, q] = u16::try_from(rack).ok()?.to_be_bytes();
    let [h, i] = u16::try_from(port).ok()?.to_be_bytes();
    Some(MacAddr(0x02, 0xc0, r, q, h, i))
}

/// The rack that a PMAC, or what all of a rack match, says; `None` of other addresses.
pub(crate) fn rack(address: MacAddr) -> Option<u32> {
    let MacAddr(0x02, 0xc0, r, q, ..) = address else { return None };
    Some(u16::from_be_bytes([r, q]).into())
}

/// The port of the node that has this PMAC, where `tor` says the ToR of its rack; `None` of other addresses.
pub(crate) fn port(address: MacAddr, tor: impl FnOnce(u32) -> Option<DatapathId>) -> Option<Port> {
    let [.., high, low] = address.octets();
    Some(Port { switch: tor(rack(address)?)?, number: u16::from_be_bytes([high, low]).into() })
}

/// Address and mask that all PMACs of a rack match.
pub(crate) fn rack_key(rack: u32) -> Option<(MacAddr, MacAddr)> {
    Some((of(rack, 0)?, MacAddr(0xff, 0xff, 0xff, 0xff, 0, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pmac_says_rack_and_port_and_large_numbers_have_none() {
        let pmac = of(0x1234, 7).unwrap();
        assert_eq!(pmac.to_string(), "02:c0:12:34:00:07");
        assert_eq!((of(1 << 16, 1), of(1, 1 << 16)), (None, None));
        let tor = |rack| (rack == 0x1234).then_some(DatapathId(5));
        assert_eq!(port(pmac, tor), Some(Port { switch: DatapathId(5), number: 7 }));
        assert_eq!((port(of(2, 7).unwrap(), tor), port(MacAddr(2, 0, 0, 0, 0, 7), tor)), (None, None));
        assert_eq!([pmac, MacAddr(2, 0, 0x12, 0x34, 0, 7)].map(rack), [Some(0x1234), None]);
    }
}
