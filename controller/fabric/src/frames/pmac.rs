//! Pseudo MAC addresses (PMAC; PortLand, SIGCOMM 2009, section 3.2): 02:c0:RR:RR:HH:HH contains the
//! rack of a node and its port at the ToR, so that a switch needs only one flow for a whole rack.
//! Hosts learn them from ARP replies, and the ToR replaces them by the node's own address.

use cool_topology::{DatapathId, MacAddr, Port};

/// The number of the local port in a PMAC.
const LOCAL: u16 = u16::MAX;

/// Returns the PMAC of the node at a port of a rack's ToR; `None` if a number needs more than 16
/// bits, or is that of the local port in a PMAC.
pub(crate) fn for_port(rack: u32, port: u32) -> Option<MacAddr> {
    let [r, q] = u16::try_from(rack).ok()?.to_be_bytes();
    let port = match port {
        Port::LOCAL => LOCAL,
        _ => u16::try_from(port).ok().filter(|port| *port != LOCAL)?,
    };
    let [h, i] = port.to_be_bytes();
    Some(MacAddr(0x02, 0xc0, r, q, h, i))
}

/// Returns the rack of a PMAC, or of an address that matches a whole rack; `None` for other
/// addresses.
pub(crate) fn rack(address: MacAddr) -> Option<u32> {
    let MacAddr(0x02, 0xc0, r, q, ..) = address else { return None };
    Some(u16::from_be_bytes([r, q]).into())
}

/// Returns the port of the node with this PMAC; `None` for other addresses. `tor` must return the
/// ToR of a rack.
pub(crate) fn port(address: MacAddr, tor: impl FnOnce(u32) -> Option<DatapathId>) -> Option<Port> {
    let [.., high, low] = address.octets();
    let number = match u16::from_be_bytes([high, low]) {
        LOCAL => Port::LOCAL,
        number => number.into(),
    };
    Some(Port { switch: tor(rack(address)?)?, number })
}

/// Returns address and mask that match all PMACs of a rack.
pub(crate) fn for_rack(rack: u32) -> Option<(MacAddr, MacAddr)> {
    Some((for_port(rack, 0)?, MacAddr(0xff, 0xff, 0xff, 0xff, 0, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pmac_encodes_rack_and_port_and_large_numbers_have_none() {
        let pmac = for_port(0x1234, 7).unwrap();
        assert_eq!(pmac.to_string(), "02:c0:12:34:00:07");
        assert_eq!((for_port(1 << 16, 1), for_port(1, 1 << 16)), (None, None));
        let tor = |rack| (rack == 0x1234).then_some(DatapathId(5));
        assert_eq!(port(pmac, tor), Some(Port { switch: DatapathId(5), number: 7 }));
        let local = for_port(0x1234, Port::LOCAL).unwrap();
        assert_eq!(local.to_string(), "02:c0:12:34:ff:ff");
        assert_eq!(port(local, tor), Some(Port { switch: DatapathId(5), number: Port::LOCAL }));
        assert_eq!(for_port(0x1234, 0xffff), None);
        assert_eq!((port(for_port(2, 7).unwrap(), tor), port(MacAddr(2, 0, 0, 0, 0, 7), tor)), (None, None));
        assert_eq!([pmac, MacAddr(2, 0, 0x12, 0x34, 0, 7)].map(rack), [Some(0x1234), None]);
    }
}
