//! ARP over Ethernet and IPv4 (RFC 826), as far as the controller answers it for the nodes.

use cool_topology::MacAddr;
use core::net::Ipv4Addr;

/// ARP's EtherType.
pub(crate) const ETHERTYPE: u16 = 0x0806;
/// Ethernet as hardware, IPv4 as protocol, addresses of 6 and 4 bytes.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// Who has this address?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Who asks.
    pub(crate) sender: MacAddr,
    /// Its address; unspecified if it only looks whether the target is in use.
    pub(crate) sender_ip: Ipv4Addr,
    /// The address asked for.
    pub(crate) target_ip: Ipv4Addr,
}

impl Request {
    /// Reads a frame; `None` if it asks nothing that can be answered.
    pub(crate) fn read(frame: &[u8]) -> Option<Request> {
        let body = frame.get(14..42)?;
        let fits = frame[12..14] == ETHERTYPE.to_be_bytes()
            && body[..6] == ETHERNET_IPV4
            && body[6..8] == REQUEST.to_be_bytes();
        let sender = MacAddr::from(<[u8; 6]>::try_from(&body[8..14]).ok()?);
        if !fits || !sender.is_unicast() || sender.is_zero() {
            return None;
        }
        let ip = |at: usize| Ipv4Addr::new(body[at], body[at + 1], body[at + 2], body[at + 3]);
        Some(Request { sender, sender_ip: ip(14), target_ip: ip(24) })
    }

    /// The frame that answers: the target has this address.
    pub(crate) fn answer(&self, target: MacAddr) -> Vec<u8> {
        let mut frame = Vec::with_capacity(60);
        frame.extend(self.sender.octets());
        frame.extend(target.octets());
        frame.extend(ETHERTYPE.to_be_bytes());
        frame.extend(ETHERNET_IPV4);
        frame.extend(REPLY.to_be_bytes());
        frame.extend(target.octets());
        frame.extend(self.target_ip.octets());
        frame.extend(self.sender.octets());
        frame.extend(self.sender_ip.octets());
        frame.resize(60, 0); // the shortest Ethernet frame
        frame
    }
}

/// A frame that tells everybody, unasked, who has an address now (RFC 5227): those who know of another
/// forget it.
pub(crate) fn announcement(ip: Ipv4Addr, now: MacAddr) -> Vec<u8> {
    Request { sender: MacAddr::broadcast(), sender_ip: ip, target_ip: ip }.answer(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has 10.0.0.2? Tell 10.0.0.1; as a Linux host sends it.
    const FRAME: [u8; 42] = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1,
        10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
    ];

    #[test]
    fn a_request_is_read_and_answered_to_its_sender() {
        let request = Request::read(&FRAME).unwrap();
        assert_eq!((request.sender_ip, request.target_ip), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        let answer = request.answer(MacAddr(2, 0xc0, 0, 0, 0, 9));
        assert_eq!(answer[..12], [2, 0, 0, 0, 0, 1, 2, 0xc0, 0, 0, 0, 9]);
        assert_eq!(answer[20..32], [0, 2, 2, 0xc0, 0, 0, 0, 9, 10, 0, 0, 2]);
        assert_eq!(Request::read(&answer), None);
    }

    #[test]
    fn what_is_cut_short_or_no_request_is_not_answered() {
        for end in 0..FRAME.len() {
            assert_eq!(Request::read(&FRAME[..end]), None);
        }
        for at in 12..22 {
            let mut frame = FRAME;
            frame[at] ^= 1;
            assert_eq!(Request::read(&frame), None, "byte {at}");
        }
        // Nobody can be answered at the address of no interface.
        for sender in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            let mut frame = FRAME;
            frame[22..28].copy_from_slice(&sender);
            assert_eq!(Request::read(&frame), None, "{sender:x?}");
        }
    }
}
