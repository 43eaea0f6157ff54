//! ARP over Ethernet and IPv4 (RFC 826), as far as the controller answers for nodes and forwards
//! for hosts.

use cool_topology::MacAddr;
use core::net::Ipv4Addr;

/// EtherType of ARP.
pub(crate) const ETHERTYPE: u16 = 0x0806;
/// Hardware Ethernet, protocol IPv4, addresses of 6 and 4 bytes.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// An ARP request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arp {
    /// Whether it is a reply.
    pub(crate) reply: bool,
    /// Ethernet address of the sender.
    pub(crate) sender: MacAddr,
    /// IP address of the sender; unspecified in a probe (RFC 5227).
    pub(crate) sender_ip: Ipv4Addr,
    /// Ethernet address of the receiver of a reply; meaningless in a request.
    pub(crate) target: MacAddr,
    /// Requested IP address, or that of the receiver of a reply.
    pub(crate) target_ip: Ipv4Addr,
}

impl Arp {
    /// Reads a frame; returns `None` if it cannot be answered or forwarded.
    pub(crate) fn read(frame: &[u8]) -> Option<Arp> {
        let body = frame.get(14..42)?;
        let operation = u16::from_be_bytes([body[6], body[7]]);
        let fits = frame[12..14] == ETHERTYPE.to_be_bytes()
            && body[..6] == ETHERNET_IPV4
            && [REQUEST, REPLY].contains(&operation);
        let sender = MacAddr::from(<[u8; 6]>::try_from(&body[8..14]).ok()?);
        let target = MacAddr::from(<[u8; 6]>::try_from(&body[18..24]).ok()?);
        if !fits || !sender.is_unicast() || sender.is_zero() {
            return None;
        }
        let ip = |at: usize| Ipv4Addr::new(body[at], body[at + 1], body[at + 2], body[at + 3]);
        Some(Arp { reply: operation == REPLY, sender, sender_ip: ip(14), target, target_ip: ip(24) })
    }

    /// Returns the message as a frame to an Ethernet address.
    pub(crate) fn frame(&self, to: MacAddr) -> Vec<u8> {
        let mut frame = Vec::with_capacity(60);
        frame.extend(to.octets());
        frame.extend(self.sender.octets());
        frame.extend(ETHERTYPE.to_be_bytes());
        frame.extend(ETHERNET_IPV4);
        frame.extend(if self.reply { REPLY } else { REQUEST }.to_be_bytes());
        frame.extend(self.sender.octets());
        frame.extend(self.sender_ip.octets());
        frame.extend(self.target.octets());
        frame.extend(self.target_ip.octets());
        frame.resize(60, 0); // the shortest Ethernet frame
        frame
    }

    /// Returns the frame that answers a request with this Ethernet address.
    pub(crate) fn reply_with(&self, target: MacAddr) -> Vec<u8> {
        let (sender_ip, target_ip) = (self.target_ip, self.sender_ip);
        Arp { reply: true, sender: target, sender_ip, target: self.sender, target_ip }.frame(self.sender)
    }
}

/// Returns a frame that announces the Ethernet address of an IP address to all, so that they forget
/// any other.
///
/// An ARP announcement is a request (RFC 5227, section 3). As a reply it would be ignored for a
/// second after another one, because Linux accepts only the first of several replies (`locktime` in
/// arp(7)), and a host that becomes a node is announced twice in a row.
pub(crate) fn announcement(ip: Ipv4Addr, now: MacAddr) -> Vec<u8> {
    let target = MacAddr::from([0; 6]);
    Arp { reply: false, sender: now, sender_ip: ip, target, target_ip: ip }.frame(MacAddr::broadcast())
}

/// Returns a frame that probes a host without announcing any address (RFC 5227, an ARP probe).
pub(crate) fn probe(host: MacAddr, ip: Ipv4Addr, asker: MacAddr) -> Vec<u8> {
    let (sender_ip, target) = (Ipv4Addr::UNSPECIFIED, MacAddr::from([0; 6]));
    Arp { reply: false, sender: asker, sender_ip, target, target_ip: ip }.frame(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request for 10.0.0.2 from 10.0.0.1, as a Linux host sends it.
    const FRAME: [u8; 42] = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1,
        10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
    ];

    #[test]
    fn a_request_is_read_encoded_and_answered_to_its_sender() {
        let question = Arp::read(&FRAME).unwrap();
        assert!(!question.reply);
        assert_eq!((question.sender_ip, question.target_ip), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        assert_eq!(question.frame(MacAddr::broadcast())[..42], FRAME);
        let frame = question.reply_with(MacAddr(2, 0xc0, 0, 0, 0, 9));
        assert_eq!(frame[..12], [2, 0, 0, 0, 0, 1, 2, 0xc0, 0, 0, 0, 9]);
        assert_eq!(frame[20..32], [0, 2, 2, 0xc0, 0, 0, 0, 9, 10, 0, 0, 2]);
        let answer = Arp::read(&frame).unwrap();
        assert!(answer.reply);
        assert_eq!(answer.frame(answer.target), frame);
    }

    #[test]
    fn a_probe_is_for_one_host_and_has_no_sender_ip() {
        let (host, asker) = (MacAddr(2, 0, 0, 0, 0, 2), MacAddr(2, 0xc1, 0, 0, 0, 1));
        let frame = probe(host, [10, 0, 0, 2].into(), asker);
        let requested = Arp::read(&frame).unwrap();
        assert_eq!(
            (requested.reply, requested.sender, requested.sender_ip.is_unspecified()),
            (false, asker, true)
        );
        assert_eq!(frame[..6], host.octets());
    }

    #[test]
    fn an_announcement_is_a_question_of_a_host_for_its_own_address() {
        let (now, ip) = (MacAddr(2, 0xc0, 0, 0, 0, 9), [10, 0, 0, 2].into());
        let frame = announcement(ip, now);
        assert_eq!(frame[..6], [0xff; 6]);
        let message = Arp::read(&frame).unwrap();
        assert_eq!(
            (message.reply, message.sender, message.sender_ip, message.target_ip),
            (false, now, ip, ip)
        );
        assert!(message.target.is_zero());
    }

    #[test]
    fn truncated_frames_and_other_kinds_are_not_read() {
        for end in 0..FRAME.len() {
            assert_eq!(Arp::read(&FRAME[..end]), None);
        }
        for at in 12..22 {
            let mut frame = FRAME;
            frame[at] ^= 4;
            assert_eq!(Arp::read(&frame), None, "byte {at}");
        }
        // These are the addresses of no interface, so a reply could not be sent.
        for sender in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            let mut frame = FRAME;
            frame[22..28].copy_from_slice(&sender);
            assert_eq!(Arp::read(&frame), None, "{sender:x?}");
        }
    }
}
