//! Locator addresses: 02:c0:RR:RR:HH:HH says in which rack a node is and at which port of its ToR (after
//! PortLand, SIGCOMM 2009), so that a switch needs one rule for a whole rack.

use cool_topology::Mac;

/// The locator of the node at a port of a rack's ToR; `None` if either number needs more than 16 bits.
pub(crate) fn of(rack: u32, port: u32) -> Option<Mac> {
    let [r, q] = u16::try_from(rack).ok()?.to_be_bytes();
    let [h, i] = u16::try_from(port).ok()?.to_be_bytes();
    Some(Mac([0x02, 0xc0, r, q, h, i]))
}

/// Address and mask that all locators of a rack match.
pub(crate) fn of_rack(rack: u32) -> Option<(Mac, Mac)> {
    Some((of(rack, 0)?, Mac([0xff, 0xff, 0xff, 0xff, 0, 0])))
}

/// The rack that a locator leads to.
pub(crate) fn rack(locator: [u8; 6]) -> Option<u32> {
    match locator {
        [0x02, 0xc0, r, q, _, _] => Some(u32::from(u16::from_be_bytes([r, q]))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locator_tells_its_rack_and_large_numbers_have_none() {
        let locator = of(0x1234, 7).unwrap();
        assert_eq!(locator.to_string(), "02:c0:12:34:00:07");
        assert_eq!(rack(locator.0), Some(0x1234));
        assert_eq!((of(1 << 16, 1), of(1, 1 << 16)), (None, None));
        assert_eq!(rack([2, 0, 0, 0, 0, 1]), None);
    }
}
