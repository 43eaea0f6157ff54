//! OXM: matches, which select the packets of a flow, and their fields, which actions also set. All
//! fields of OpenFlow 1.3's basic class have a type. Others are kept as bytes.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Error;
use crate::codec::{ListItem, Reader, WireFormat, Writer};
use crate::value::{EtherType, IpProtocol, MacAddr, PortNo, U24, VlanId};

/// Match type of a list of OXM fields.
const OXM: u16 = 1;

/// Class of the fields that the standard defines.
const BASIC: u16 = 0x8000;

/// Maximum number of a field, because the eighth bit marks a mask.
const FIELD_MAX: u8 = 0x7f;

/// Fields that a packet must match. Without fields every packet matches.
///
/// ```
/// use rs_openflow::{EtherType, Match, PortNo};
///
/// let group = "239.192.0.1".parse()?;
/// let matching = Match::new().in_port(PortNo(3)).eth_type(EtherType::IPV4).ipv4_dst(group);
/// assert_eq!(matching.to_string(), "in_port=3,eth_type=ipv4,ipv4_dst=239.192.0.1");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
///
/// The order of the fields is also their order on the wire. By the standard, a field must follow
/// those that it requires (for example, `ipv4_dst` must follow `eth_type`), and must not occur
/// twice. A switch refuses other matches with an error.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Match {
    /// Fields. A packet must match all of them.
    pub fields: Vec<Oxm>,
}

impl Match {
    /// Returns a match for every packet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the match with one more field.
    #[must_use]
    pub fn with(mut self, field: Oxm) -> Self {
        self.fields.push(field);
        self
    }
}

impl WireFormat for Match {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let start = r.offset();
        let kind: u16 = r.named("match", |r| r.get())?;
        if kind != OXM {
            return Err(Error::MatchType { offset: start, kind });
        }
        let fields = r.measured("match", start, |r| r.get())?;
        r.named("match", |r| r.pad_after(r.offset() - start))?;
        Ok(Self { fields })
    }

    fn write(&self, w: &mut Writer) {
        let start = w.position();
        w.put(&OXM);
        w.measured("match", start, |w| w.put(&self.fields));
        w.pad_since(start);
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fields.is_empty() {
            return f.write_str("any");
        }
        self.fields.iter().enumerate().try_for_each(|(index, field)| {
            f.write_str(if index == 0 { "" } else { "," })?;
            write!(f, "{field}")
        })
    }
}

/// A value with the bits that count: all, or those set in the mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Masked<T> {
    /// Value. Where the mask is zero, the standard requires it to be zero as well.
    pub value: T,
    /// Bits that count; `None` if all do.
    pub mask: Option<T>,
}

impl<T> Masked<T> {
    /// Returns a value of which all bits count.
    pub fn exact(value: T) -> Self {
        Self { value, mask: None }
    }

    /// Returns a value of which only the bits set in `mask` count.
    pub fn with_mask(value: T, mask: T) -> Self {
        Self { value, mask: Some(mask) }
    }
}

fn read_masked<T: WireFormat>(r: &mut Reader<'_>, has_mask: bool) -> Result<Masked<T>, Error> {
    Ok(Masked { value: r.get()?, mask: if has_mask { Some(r.get()?) } else { None } })
}

fn masked_words<T: WireFormat>(masked: &Masked<T>, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{name}=")?;
    masked.value.display(f)?;
    if let Some(mask) = &masked.mask {
        f.write_str("/")?;
        mask.display(f)?;
    }
    Ok(())
}

/// Field with a class or a number that OpenFlow 1.3 does not define.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnknownOxm {
    /// Class. 0xffff is for experimenters, with the experimenter's number at the beginning of the
    /// payload.
    pub class: u16,
    /// Number in the class, of 7 bits.
    pub field: u8,
    /// Whether the second half of the payload is a mask.
    pub has_mask: bool,
    /// Value and mask, at most 255 bytes.
    pub payload: Vec<u8>,
}

fn write_field(w: &mut Writer, class: u16, field: u8, has_mask: bool, payload: impl FnOnce(&mut Writer)) {
    if field > FIELD_MAX {
        let (what, value, limit) = ("OXM field number", u32::from(field), u32::from(FIELD_MAX));
        w.fail(Error::TooLarge { what, value, limit });
    }
    w.put(&class);
    w.put(&(field << 1 | u8::from(has_mask)));
    w.measured_u8("OXM field", payload);
}

macro_rules! fields {
    ($($number:literal $variant:ident: $type:ty, $name:ident $(/ $masked:ident)?, $doc:literal;)*) => {
        /// A field with its value and an optional mask.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Oxm {
            $(
                #[doc = concat!($doc, ".")]
                $variant(Masked<$type>),
            )*
            /// Field that OpenFlow 1.3 does not define.
            Unknown(UnknownOxm),
        }

        impl WireFormat for Oxm {
            fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
                let (class, field, length): (u16, u8, u8) = (r.get()?, r.get()?, r.get()?);
                let (field, has_mask) = (field >> 1, field & 1 == 1);
                r.part("OXM field", usize::from(length), |r| Ok(match (class, field) {
                    $((BASIC, $number) => Self::$variant(read_masked(r, has_mask)?),)*
                    _ => Self::Unknown(UnknownOxm { class, field, has_mask, payload: r.rest() }),
                }))
            }

            fn write(&self, w: &mut Writer) {
                match self {
                    $(
                        Self::$variant(Masked { value, mask }) => {
                            write_field(w, BASIC, $number, mask.is_some(), |w| {
                                w.put(value);
                                mask.iter().for_each(|mask| w.put(mask));
                            });
                        }
                    )*
                    Self::Unknown(UnknownOxm { class, field, has_mask, payload }) => {
                        write_field(w, *class, *field, *has_mask, |w| w.bytes(payload));
                    }
                }
            }

            fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant(masked) => masked_words(masked, stringify!($name), f),)*
                    Self::Unknown(UnknownOxm { class, field, has_mask, payload }) => {
                        let mask = if *has_mask { " with mask" } else { "" };
                        write!(f, "field {class:#06x}:{field}{mask}=")?;
                        payload.display(f)
                    }
                }
            }
        }

        #[cfg(test)]
        impl crate::sample::Sample for Oxm {
            fn sample(source: &mut crate::sample::SampleSource<'_>) -> Self {
                let numbers = [$($number),*];
                match source.below(numbers.len() + 1) {
                    $($number => Self::$variant(source.draw()),)*
                    _ => Self::Unknown(source.draw()),
                }
            }
        }

        /// Each call adds a field, in the order of the calls.
        impl Match {
            $(
                #[doc = concat!($doc, ".")]
                #[must_use]
                pub fn $name(self, value: $type) -> Self {
                    self.with(Oxm::$variant(Masked::exact(value)))
                }

                $(
                    #[doc = concat!($doc, "; only the bits set in `mask` count.")]
                    #[must_use]
                    pub fn $masked(self, value: $type, mask: $type) -> Self {
                        self.with(Oxm::$variant(Masked::with_mask(value, mask)))
                    }
                )?
            )*
        }
    };
}

fields! {
    0 InPort: PortNo, in_port, "Ingress port";
    1 InPhyPort: PortNo, in_phy_port, "Physical port of a logical ingress port";
    2 Metadata: u64, metadata / metadata_masked, "Metadata written by earlier tables";
    3 EthDst: MacAddr, eth_dst / eth_dst_masked, "Ethernet destination";
    4 EthSrc: MacAddr, eth_src / eth_src_masked, "Ethernet source";
    5 EthType: EtherType, eth_type, "Protocol of the Ethernet frame, inside any VLAN tags";
    6 VlanVid: VlanId, vlan_vid / vlan_vid_masked, "VLAN identifier";
    7 VlanPcp: u8, vlan_pcp, "VLAN priority, 3 bits";
    8 IpDscp: u8, ip_dscp, "IP differentiated services, 6 bits";
    9 IpEcn: u8, ip_ecn, "IP congestion notification, 2 bits";
    10 IpProto: IpProtocol, ip_proto, "Protocol of the IP packet";
    11 Ipv4Src: Ipv4Addr, ipv4_src / ipv4_src_masked, "IPv4 source";
    12 Ipv4Dst: Ipv4Addr, ipv4_dst / ipv4_dst_masked, "IPv4 destination";
    13 TcpSrc: u16, tcp_src, "TCP source port";
    14 TcpDst: u16, tcp_dst, "TCP destination port";
    15 UdpSrc: u16, udp_src, "UDP source port";
    16 UdpDst: u16, udp_dst, "UDP destination port";
    17 SctpSrc: u16, sctp_src, "SCTP source port";
    18 SctpDst: u16, sctp_dst, "SCTP destination port";
    19 Icmpv4Type: u8, icmpv4_type, "ICMP type";
    20 Icmpv4Code: u8, icmpv4_code, "ICMP code";
    21 ArpOp: u16, arp_op, "ARP operation: 1 request, 2 reply";
    22 ArpSpa: Ipv4Addr, arp_spa / arp_spa_masked, "ARP sender's IPv4 address";
    23 ArpTpa: Ipv4Addr, arp_tpa / arp_tpa_masked, "ARP target's IPv4 address";
    24 ArpSha: MacAddr, arp_sha / arp_sha_masked, "ARP sender's Ethernet address";
    25 ArpTha: MacAddr, arp_tha / arp_tha_masked, "ARP target's Ethernet address";
    26 Ipv6Src: Ipv6Addr, ipv6_src / ipv6_src_masked, "IPv6 source";
    27 Ipv6Dst: Ipv6Addr, ipv6_dst / ipv6_dst_masked, "IPv6 destination";
    28 Ipv6Flabel: u32, ipv6_flabel / ipv6_flabel_masked, "IPv6 flow label, 20 bits";
    29 Icmpv6Type: u8, icmpv6_type, "ICMPv6 type";
    30 Icmpv6Code: u8, icmpv6_code, "ICMPv6 code";
    31 Ipv6NdTarget: Ipv6Addr, ipv6_nd_target, "Target of IPv6 neighbor discovery";
    32 Ipv6NdSll: MacAddr, ipv6_nd_sll, "Source link-layer address of IPv6 neighbor discovery";
    33 Ipv6NdTll: MacAddr, ipv6_nd_tll, "Target link-layer address of IPv6 neighbor discovery";
    34 MplsLabel: u32, mpls_label, "MPLS label, 20 bits";
    35 MplsTc: u8, mpls_tc, "MPLS traffic class, 3 bits";
    36 MplsBos: u8, mpls_bos, "MPLS bottom of stack, 1 bit";
    37 PbbIsid: U24, pbb_isid / pbb_isid_masked, "Provider backbone bridge service";
    38 TunnelId: u64, tunnel_id / tunnel_id_masked, "Metadata of a logical port's tunnel";
    39 Ipv6Exthdr: u16, ipv6_exthdr / ipv6_exthdr_masked, "IPv6 extension headers present, 9 bits";
}

impl ListItem for Oxm {}

impl fmt::Display for Oxm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.display(f)
    }
}
