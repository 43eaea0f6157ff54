//! Packets that a switch hands to the controller, and the other way round.

use std::fmt;

use crate::Error;
use crate::action::Action;
use crate::codec::{Reader, Wire, Writer};
use crate::macros::{layout, number};
use crate::matching::Match;
use crate::oxm::Oxm;
use crate::value::{BufferId, PortNo, TableId};

number! {
    /// Why a switch handed a packet over.
    pub struct PacketInReason(u8) as "{}" {
        /// No flow matched, or the flow for those that none matches.
        NO_MATCH = 0 "no_match",
        /// A flow's action said so.
        ACTION = 1 "action",
        /// Its time to live ran out.
        INVALID_TTL = 2 "invalid_ttl",
    }
}

layout! {
    /// A packet for the controller.
    pub struct PacketIn = "packet-in" {
        /// Where the switch kept it, if it did.
        buffer: BufferId,
        /// The length of the whole packet.
        total_len: u16,
        /// Why it is here.
        reason: PacketInReason,
        /// The table that sent it.
        table: TableId,
        /// The cookie of the flow that sent it.
        cookie: u64,
        /// What the switch knows of it beside its bytes, such as the ingress port.
        matching: Match => pad 2,
        /// The packet, perhaps cut short.
        data: Vec<u8>,
    }
}

impl PacketIn {
    /// The port it came in by.
    #[must_use]
    pub fn in_port(&self) -> Option<PortNo> {
        self.matching.fields.iter().find_map(|field| match field {
            Oxm::InPort(port) => Some(port.value),
            _ => None,
        })
    }
}

/// A packet to be sent by the switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketOut {
    /// Where the switch kept the packet; if nowhere, it is in `data`.
    pub buffer: BufferId,
    /// The port that it shall seem to have come in by; [`PortNo::CONTROLLER`] if by none.
    pub in_port: PortNo,
    /// What is done to it.
    pub actions: Vec<Action>,
    /// The packet.
    pub data: Vec<u8>,
}

impl PacketOut {
    /// Sends `data` out of one port.
    #[must_use]
    pub fn new(port: PortNo, data: Vec<u8>) -> Self {
        Self::to_each([port], data)
    }

    /// Sends `data` out of each of these ports.
    #[must_use]
    pub fn to_each(ports: impl IntoIterator<Item = PortNo>, data: Vec<u8>) -> Self {
        let actions = ports.into_iter().map(Action::output).collect();
        Self { buffer: BufferId::NONE, in_port: PortNo::CONTROLLER, actions, data }
    }
}

impl Wire for PacketOut {
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
        // The length counts the actions only: not itself, nor the padding behind it.
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
