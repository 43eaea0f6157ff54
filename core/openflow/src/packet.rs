//! Packets that a switch sends to the controller, and packets that the controller orders a switch
//! to send.

use std::fmt;

use crate::Error;
use crate::action::Action;
use crate::codec::{Reader, WireFormat, Writer};
use crate::macros::{layout, number};
use crate::oxm::{Match, Oxm};
use crate::value::{BufferId, PortNo, TableId};

number! {
    /// Reason for a packet-in.
    pub struct PacketInReason(u8) as "{}" {
        /// No flow matched, except possibly the table-miss flow.
        NO_MATCH = 0 "no_match",
        /// An action of a flow sent the packet.
        ACTION = 1 "action",
        /// The time to live of the packet was invalid.
        INVALID_TTL = 2 "invalid_ttl",
    }
}

layout! {
    /// A packet for the controller.
    pub struct PacketIn = "packet-in" {
        /// Buffer of the switch that holds the packet, if any.
        buffer: BufferId,
        /// Length of the whole packet.
        total_len: u16,
        /// Reason for the packet-in.
        reason: PacketInReason,
        /// Table that sent the packet.
        table: TableId,
        /// Cookie of the flow that sent the packet.
        cookie: u64,
        /// Metadata of the packet, such as the ingress port.
        matching: Match => pad 2,
        /// The packet, possibly truncated.
        data: Vec<u8>,
    }
}

impl PacketIn {
    /// Returns the ingress port, or `None` if the switch does not state it.
    #[must_use]
    pub fn in_port(&self) -> Option<PortNo> {
        self.matching.fields.iter().find_map(|field| match field {
            Oxm::InPort(port) => Some(port.value),
            _ => None,
        })
    }
}

/// A packet that the switch must send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketOut {
    /// Buffer of the switch that holds the packet. Without a buffer, the packet is in `data`.
    pub buffer: BufferId,
    /// Ingress port of the packet, or [`PortNo::CONTROLLER`] if it has none.
    pub in_port: PortNo,
    /// Actions to apply.
    pub actions: Vec<Action>,
    /// The packet.
    pub data: Vec<u8>,
}

impl PacketOut {
    /// Returns a message that sends `data` out of one port.
    #[must_use]
    pub fn new(port: PortNo, data: Vec<u8>) -> Self {
        Self::to_each([port], data)
    }

    /// Returns a message that sends `data` out of each of these ports.
    #[must_use]
    pub fn to_each(ports: impl IntoIterator<Item = PortNo>, data: Vec<u8>) -> Self {
        let actions = ports.into_iter().map(Action::output).collect();
        Self { buffer: BufferId::NONE, in_port: PortNo::CONTROLLER, actions, data }
    }
}

impl WireFormat for PacketOut {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let (buffer, in_port) = (r.get()?, r.get()?);
        let length: u16 = r.get()?;
        r.pad(6)?;
        let actions = r.part("actions of packet-out", usize::from(length), |r| r.get())?;
        Ok(Self { buffer, in_port, actions, data: r.rest() })
    }

    fn write(&self, w: &mut Writer) {
        w.put(&self.buffer);
        w.put(&self.in_port);
        // The length counts only the actions, without itself and the padding behind it.
        let start = w.position() + 8;
        w.measured("actions of packet-out", start, |w| {
            w.pad(6);
            w.put(&self.actions);
        });
        w.bytes(&self.data);
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl fmt::Display for PacketOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer={} in_port={} actions=", self.buffer, self.in_port)?;
        self.actions.display(f)?;
        f.write_str(" data=")?;
        self.data.display(f)
    }
}
