//! Basic values of messages: addresses, identifiers and names of fixed length.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Error;
use crate::codec::{Reader, WireFormat, Writer};
use crate::macros::number;

pub use pnet_base::MacAddr;

number! {
    /// Number of a port. The named constants are the reserved ports.
    pub struct PortNo(u32) as "{}" {
        IN_PORT = 0xffff_fff8 "in_port",
        TABLE = 0xffff_fff9 "table",
        NORMAL = 0xffff_fffa "normal",
        FLOOD = 0xffff_fffb "flood",
        ALL = 0xffff_fffc "all",
        CONTROLLER = 0xffff_fffd "controller",
        LOCAL = 0xffff_fffe "local",
        ANY = 0xffff_ffff "any",
    }
}

impl PortNo {
    /// Maximum number of a physical or logical port.
    pub const MAX: Self = Self(0xffff_ff00);
}

number! {
    /// Number of a group.
    pub struct GroupId(u32) as "{}" {
        ALL = 0xffff_fffc "all",
        ANY = 0xffff_ffff "any",
    }
}

impl GroupId {
    /// Maximum number of a group.
    pub const MAX: Self = Self(0xffff_ff00);
}

number! {
    /// Number of a meter.
    pub struct MeterId(u32) as "{}" {
        SLOWPATH = 0xffff_fffd "slowpath",
        CONTROLLER = 0xffff_fffe "controller",
        ALL = 0xffff_ffff "all",
    }
}

number! {
    /// Number of a queue.
    pub struct QueueId(u32) as "{}" {
        ALL = 0xffff_ffff "all",
    }
}

number! {
    /// Number of a flow table.
    pub struct TableId(u8) as "{}" {
        ALL = 0xff "all",
    }
}

number! {
    /// Number of a buffer that holds a packet.
    pub struct BufferId(u32) as "{}" {
        NONE = 0xffff_ffff "none",
    }
}

number! {
    /// Protocol that an Ethernet frame carries.
    pub struct EtherType(u16) as "{:#06x}" {
        IPV4 = 0x0800 "ipv4",
        ARP = 0x0806 "arp",
        VLAN = 0x8100 "vlan",
        IPV6 = 0x86dd "ipv6",
        MPLS = 0x8847 "mpls",
        MPLS_MULTICAST = 0x8848 "mpls_multicast",
        QINQ = 0x88a8 "qinq",
        PBB = 0x88e7 "pbb",
        LLDP = 0x88cc "lldp",
    }
}

number! {
    /// Protocol that an IP packet carries.
    pub struct IpProtocol(u8) as "{}" {
        ICMP = 1 "icmp",
        IGMP = 2 "igmp",
        TCP = 6 "tcp",
        UDP = 17 "udp",
        ICMPV6 = 58 "icmpv6",
        SCTP = 132 "sctp",
    }
}

number! {
    /// VLAN of a frame: [`PRESENT`](Self::PRESENT) plus its identifier, or none.
    pub struct VlanId(u16) as "{:#06x}" {
        NONE = 0 "none",
        PRESENT = 0x1000 "present",
    }
}

impl VlanId {
    /// Returns the value of frames tagged with `id`, of which the low 12 bits count.
    #[must_use]
    pub fn tagged(id: u16) -> Self {
        Self(Self::PRESENT.0 | id & 0xfff)
    }
}

/// A count or a duration, which is printed in decimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Counter(pub u64);

impl Counter {
    /// The switch does not have this counter.
    pub const UNAVAILABLE: Self = Self(u64::MAX);
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNAVAILABLE => f.write_str("unavailable"),
            Self(count) => write!(f, "{count}"),
        }
    }
}

/// A number of 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct U24(u32);

impl U24 {
    /// Returns the number, or `None` if `value` needs more than 24 bits.
    #[must_use]
    pub fn new(value: u32) -> Option<Self> {
        (value < 1 << 24).then_some(Self(value))
    }

    /// Returns the number.
    #[must_use]
    pub fn value(self) -> u32 {
        self.0
    }

    fn bytes(&self) -> [u8; 3] {
        let [_, high, middle, low] = self.0.to_be_bytes();
        [high, middle, low]
    }
}

impl fmt::Display for U24 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Text in a field of `N` bytes. All bytes are kept, whatever their value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FixedText<const N: usize>(pub [u8; N]);

impl<const N: usize> FixedText<N> {
    /// Returns `text` padded with zeros; `None` if it leaves no room for at least one zero.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; N];
        let place = bytes.get_mut(..text.len()).filter(|place| place.len() < N)?;
        place.copy_from_slice(text.as_bytes());
        Some(Self(bytes))
    }

    /// Returns the text before the first zero byte. Invalid UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> String {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(N);
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }
}

impl<const N: usize> fmt::Display for FixedText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Quoted, because a switch may send control characters, and the reader may use a terminal.
        write!(f, "{:?}", self.text())
    }
}

impl<const N: usize> fmt::Debug for FixedText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

macro_rules! bytes_of {
    ($([$($generic:tt)*] $type:ty, $read:expr, $write:expr;)*) => { $(
        impl<$($generic)*> WireFormat for $type {
            fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
                r.array().map($read)
            }
            fn write(&self, w: &mut Writer) {
                w.bytes(&$write(self));
            }
            fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
    )* };
}

bytes_of! {
    [] MacAddr, Self::from, Self::octets;
    [] Ipv4Addr, Self::from, Self::octets;
    [] Ipv6Addr, Self::from, Self::octets;
    [] U24, |[a, b, c]| Self(u32::from_be_bytes([0, a, b, c])), U24::bytes;
    [] Counter, |bytes| Self(u64::from_be_bytes(bytes)), |count: &Self| count.0.to_be_bytes();
    [const N: usize] FixedText<N>, Self, |text: &Self| text.0;
}
