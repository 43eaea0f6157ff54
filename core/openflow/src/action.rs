//! Actions that a switch applies to packets.

use std::fmt;

use crate::Error;
use crate::codec::{ListItem, Reader, WireFormat, Writer};
use crate::macros::number;
use crate::oxm::Oxm;
use crate::value::{EtherType, GroupId, PortNo, QueueId};

number! {
    /// Type of an action.
    pub struct ActionType(u16) as "{}" {
        OUTPUT = 0 "output",
        COPY_TTL_OUT = 11 "copy_ttl_out",
        COPY_TTL_IN = 12 "copy_ttl_in",
        SET_MPLS_TTL = 15 "set_mpls_ttl",
        DEC_MPLS_TTL = 16 "dec_mpls_ttl",
        PUSH_VLAN = 17 "push_vlan",
        POP_VLAN = 18 "pop_vlan",
        PUSH_MPLS = 19 "push_mpls",
        POP_MPLS = 20 "pop_mpls",
        SET_QUEUE = 21 "set_queue",
        GROUP = 22 "group",
        SET_NW_TTL = 23 "set_nw_ttl",
        DEC_NW_TTL = 24 "dec_nw_ttl",
        SET_FIELD = 25 "set_field",
        PUSH_PBB = 26 "push_pbb",
        POP_PBB = 27 "pop_pbb",
        EXPERIMENTER = 0xffff "experimenter",
    }
}

number! {
    /// Number of bytes of a packet that are sent to the controller.
    pub struct MaxLen(u16) as "{}" {
        NO_BUFFER = 0xffff "no_buffer",
    }
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Send the packet out of a port; see [`Action::output`].
    Output {
        /// The port.
        port: PortNo,
        /// If the port is the controller: number of bytes to send.
        max_len: MaxLen,
    },
    /// Copy the time to live from the next-to-outermost header to the outermost one.
    CopyTtlOut,
    /// Copy the time to live from the outermost header to the next-to-outermost one.
    CopyTtlIn,
    /// Set the time to live of the outer MPLS header.
    SetMplsTtl(u8),
    /// Decrement the time to live of the outer MPLS header.
    DecMplsTtl,
    /// Add a VLAN tag.
    PushVlan(EtherType),
    /// Remove the outer VLAN tag.
    PopVlan,
    /// Add an MPLS header.
    PushMpls(EtherType),
    /// Remove the outer MPLS header. The type is that of the remaining packet.
    PopMpls(EtherType),
    /// Select the queue for later outputs.
    SetQueue(QueueId),
    /// Process the packet by a group.
    Group(GroupId),
    /// Set the IP time to live.
    SetNwTtl(u8),
    /// Decrement the IP time to live.
    DecNwTtl,
    /// Set a header field.
    SetField(Oxm),
    /// Add a provider backbone bridge tag.
    PushPbb(EtherType),
    /// Remove the outer provider backbone bridge tag.
    PopPbb,
    /// Action of an experimenter.
    Experimenter {
        /// Number of the experimenter.
        experimenter: u32,
        /// Content, which must be a multiple of 8 bytes long.
        data: Vec<u8>,
    },
    /// Action that OpenFlow 1.3 does not define.
    Unknown {
        /// Type of the action.
        kind: ActionType,
        /// Content after the header, which must be 4 bytes longer than a multiple of 8.
        data: Vec<u8>,
    },
}

impl Action {
    /// Returns the action that sends a packet out of `port`, and sends it whole if that is the
    /// controller.
    #[must_use]
    pub fn output(port: PortNo) -> Self {
        Self::Output { port, max_len: MaxLen::NO_BUFFER }
    }

    /// Returns the type of the action.
    #[must_use]
    pub fn kind(&self) -> ActionType {
        match self {
            Self::Output { .. } => ActionType::OUTPUT,
            Self::CopyTtlOut => ActionType::COPY_TTL_OUT,
            Self::CopyTtlIn => ActionType::COPY_TTL_IN,
            Self::SetMplsTtl(_) => ActionType::SET_MPLS_TTL,
            Self::DecMplsTtl => ActionType::DEC_MPLS_TTL,
            Self::PushVlan(_) => ActionType::PUSH_VLAN,
            Self::PopVlan => ActionType::POP_VLAN,
            Self::PushMpls(_) => ActionType::PUSH_MPLS,
            Self::PopMpls(_) => ActionType::POP_MPLS,
            Self::SetQueue(_) => ActionType::SET_QUEUE,
            Self::Group(_) => ActionType::GROUP,
            Self::SetNwTtl(_) => ActionType::SET_NW_TTL,
            Self::DecNwTtl => ActionType::DEC_NW_TTL,
            Self::SetField(_) => ActionType::SET_FIELD,
            Self::PushPbb(_) => ActionType::PUSH_PBB,
            Self::PopPbb => ActionType::POP_PBB,
            Self::Experimenter { .. } => ActionType::EXPERIMENTER,
            Self::Unknown { kind, .. } => *kind,
        }
    }
}

/// Reads a value and the padding behind it.
fn padded<T: WireFormat>(r: &mut Reader<'_>, pad: usize) -> Result<T, Error> {
    let value = r.get()?;
    r.pad(pad)?;
    Ok(value)
}

fn read_body(kind: ActionType, r: &mut Reader<'_>) -> Result<Action, Error> {
    let plain = |r: &mut Reader<'_>, action| r.pad(4).map(|()| action);
    match kind {
        ActionType::OUTPUT => Ok(Action::Output { port: r.get()?, max_len: padded(r, 6)? }),
        ActionType::COPY_TTL_OUT => plain(r, Action::CopyTtlOut),
        ActionType::COPY_TTL_IN => plain(r, Action::CopyTtlIn),
        ActionType::SET_MPLS_TTL => padded(r, 3).map(Action::SetMplsTtl),
        ActionType::DEC_MPLS_TTL => plain(r, Action::DecMplsTtl),
        ActionType::PUSH_VLAN => padded(r, 2).map(Action::PushVlan),
        ActionType::POP_VLAN => plain(r, Action::PopVlan),
        ActionType::PUSH_MPLS => padded(r, 2).map(Action::PushMpls),
        ActionType::POP_MPLS => padded(r, 2).map(Action::PopMpls),
        ActionType::SET_QUEUE => r.get().map(Action::SetQueue),
        ActionType::GROUP => r.get().map(Action::Group),
        ActionType::SET_NW_TTL => padded(r, 3).map(Action::SetNwTtl),
        ActionType::DEC_NW_TTL => plain(r, Action::DecNwTtl),
        ActionType::SET_FIELD => {
            let before = r.left() + 4;
            let field = r.get()?;
            r.pad_after(before - r.left())?;
            Ok(Action::SetField(field))
        }
        ActionType::PUSH_PBB => padded(r, 2).map(Action::PushPbb),
        ActionType::POP_PBB => plain(r, Action::PopPbb),
        ActionType::EXPERIMENTER => Ok(Action::Experimenter { experimenter: r.get()?, data: r.get()? }),
        _ => Ok(Action::Unknown { kind, data: r.get()? }),
    }
}

impl WireFormat for Action {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let start = r.offset();
        let kind = r.named("action", |r| r.get())?;
        r.measured_by_8("action", start, |r| read_body(kind, r))
    }

    fn write(&self, w: &mut Writer) {
        let start = w.position();
        w.put(&self.kind());
        w.measured_by_8("action", start, |w| match self {
            Self::Output { port, max_len } => {
                w.put(port);
                w.put(max_len);
                w.pad(6);
            }
            Self::SetMplsTtl(ttl) | Self::SetNwTtl(ttl) => {
                w.put(ttl);
                w.pad(3);
            }
            Self::PushVlan(kind) | Self::PushMpls(kind) | Self::PopMpls(kind) | Self::PushPbb(kind) => {
                w.put(kind);
                w.pad(2);
            }
            Self::SetQueue(queue) => w.put(queue),
            Self::Group(group) => w.put(group),
            Self::SetField(field) => {
                w.put(field);
                w.pad_since(start);
            }
            Self::Experimenter { experimenter, data } => {
                w.put(experimenter);
                w.bytes(data);
            }
            Self::Unknown { data, .. } => w.bytes(data),
            Self::CopyTtlOut
            | Self::CopyTtlIn
            | Self::DecMplsTtl
            | Self::PopVlan
            | Self::DecNwTtl
            | Self::PopPbb => w.pad(4),
        });
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl ListItem for Action {}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind())?;
        match self {
            Self::Output { port: PortNo::CONTROLLER, max_len } => {
                write!(f, ":controller max_len={max_len}")
            }
            Self::Output { port, .. } => write!(f, ":{port}"),
            Self::SetMplsTtl(ttl) | Self::SetNwTtl(ttl) => write!(f, ":{ttl}"),
            Self::PushVlan(kind) | Self::PushMpls(kind) | Self::PopMpls(kind) | Self::PushPbb(kind) => {
                write!(f, ":{kind}")
            }
            Self::SetQueue(queue) => write!(f, ":{queue}"),
            Self::Group(group) => write!(f, ":{group}"),
            Self::SetField(field) => write!(f, ":{field}"),
            Self::Experimenter { experimenter, data } => {
                write!(f, ":{experimenter:#x} ")?;
                data.display(f)
            }
            Self::Unknown { data, .. } => {
                f.write_str(" ")?;
                data.display(f)
            }
            Self::CopyTtlOut
            | Self::CopyTtlIn
            | Self::DecMplsTtl
            | Self::PopVlan
            | Self::DecNwTtl
            | Self::PopPbb => Ok(()),
        }
    }
}
