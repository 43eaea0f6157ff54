//! A message as a whole: its header, and which body stands for which number.

use std::fmt;

use crate::Error;
use crate::codec::{Padding, Reader, Tagged, Writer};
use crate::error_message::ErrorMessage;
use crate::flow::{FlowMod, FlowRemoved, TableMod};
use crate::group::GroupMod;
use crate::hello::{Hello, VERSION};
use crate::macros::{choice, number};
use crate::meter::MeterMod;
use crate::multipart::{Multipart, MultipartReply, MultipartRequest};
use crate::packet::{PacketIn, PacketOut};
use crate::port::{PortMod, PortStatus};
use crate::queue::{QueueConfig, QueueConfigRequest};
use crate::session::{AsyncConfig, Experimenter, RoleConfig, SwitchConfig, SwitchFeatures};

/// How long the header is that every message begins with.
pub const HEADER_LEN: usize = 8;

/// The longest that a message can be: its length is a number of 16 bits.
pub const MAX_LEN: usize = u16::MAX as usize;

number! {
    /// Which message it is.
    pub struct MessageType(u8) as "message {}" {
        HELLO = 0 "hello",
        ERROR = 1 "error",
        ECHO_REQUEST = 2 "echo_request",
        ECHO_REPLY = 3 "echo_reply",
        EXPERIMENTER = 4 "experimenter",
        FEATURES_REQUEST = 5 "features_request",
        FEATURES_REPLY = 6 "features_reply",
        GET_CONFIG_REQUEST = 7 "get_config_request",
        GET_CONFIG_REPLY = 8 "get_config_reply",
        SET_CONFIG = 9 "set_config",
        PACKET_IN = 10 "packet_in",
        FLOW_REMOVED = 11 "flow_removed",
        PORT_STATUS = 12 "port_status",
        PACKET_OUT = 13 "packet_out",
        FLOW_MOD = 14 "flow_mod",
        GROUP_MOD = 15 "group_mod",
        PORT_MOD = 16 "port_mod",
        TABLE_MOD = 17 "table_mod",
        MULTIPART_REQUEST = 18 "multipart_request",
        MULTIPART_REPLY = 19 "multipart_reply",
        BARRIER_REQUEST = 20 "barrier_request",
        BARRIER_REPLY = 21 "barrier_reply",
        QUEUE_GET_CONFIG_REQUEST = 22 "queue_get_config_request",
        QUEUE_GET_CONFIG_REPLY = 23 "queue_get_config_reply",
        ROLE_REQUEST = 24 "role_request",
        ROLE_REPLY = 25 "role_reply",
        GET_ASYNC_REQUEST = 26 "get_async_request",
        GET_ASYNC_REPLY = 27 "get_async_reply",
        SET_ASYNC = 28 "set_async",
        METER_MOD = 29 "meter_mod",
    }
}

choice! {
    /// What a message says.
    pub enum Body of MessageType {
        /// The versions that the sender speaks; the first message in either direction.
        HELLO => Hello(Hello),
        /// A message was refused.
        ERROR => Error(ErrorMessage),
        /// Are you there?
        ECHO_REQUEST => EchoRequest(Vec<u8>),
        /// Yes; with the data of the request.
        ECHO_REPLY => EchoReply(Vec<u8>),
        /// What an experimenter defines.
        EXPERIMENTER => Experimenter(Experimenter),
        /// What are you?
        FEATURES_REQUEST => FeaturesRequest,
        /// What a switch is.
        FEATURES_REPLY => FeaturesReply(SwitchFeatures),
        /// How are you configured?
        GET_CONFIG_REQUEST => GetConfigRequest,
        /// How a switch is configured.
        GET_CONFIG_REPLY => GetConfigReply(SwitchConfig),
        /// Configures a switch.
        SET_CONFIG => SetConfig(SwitchConfig),
        /// A packet for the controller.
        PACKET_IN => PacketIn(PacketIn),
        /// A flow is gone.
        FLOW_REMOVED => FlowRemoved(FlowRemoved),
        /// A port came, went or changed.
        PORT_STATUS => PortStatus(PortStatus),
        /// A packet to be sent by the switch.
        PACKET_OUT => PacketOut(PacketOut),
        /// Changes a flow table.
        FLOW_MOD => FlowMod(FlowMod),
        /// Changes the group table.
        GROUP_MOD => GroupMod(GroupMod),
        /// Changes a port.
        PORT_MOD => PortMod(PortMod),
        /// Configures a flow table.
        TABLE_MOD => TableMod(TableMod),
        /// A question about a switch's state.
        MULTIPART_REQUEST => MultipartRequest(Multipart<MultipartRequest>),
        /// What a switch tells of its state.
        MULTIPART_REPLY => MultipartReply(Multipart<MultipartReply>),
        /// Tell me when you have done all that I asked before.
        BARRIER_REQUEST => BarrierRequest,
        /// Done.
        BARRIER_REPLY => BarrierReply,
        /// What queues does a port have?
        QUEUE_GET_CONFIG_REQUEST => QueueGetConfigRequest(QueueConfigRequest),
        /// The queues of a port.
        QUEUE_GET_CONFIG_REPLY => QueueGetConfigReply(QueueConfig),
        /// May I have this role?
        ROLE_REQUEST => RoleRequest(RoleConfig),
        /// The role that a controller has now.
        ROLE_REPLY => RoleReply(RoleConfig),
        /// What do you send me unasked?
        GET_ASYNC_REQUEST => GetAsyncRequest,
        /// What a controller gets unasked.
        GET_ASYNC_REPLY => GetAsyncReply(AsyncConfig),
        /// What a controller wants unasked.
        SET_ASYNC => SetAsync(AsyncConfig),
        /// Changes a meter.
        METER_MOD => MeterMod(MeterMod),
    }
}

impl Body {
    /// The version that goes into the header.
    fn version(&self) -> u8 {
        match self {
            Self::Hello(hello) => hello.version,
            Self::Error(failure) => failure.version,
            _ => VERSION,
        }
    }
}

/// How a message begins: readable also where the rest of it is not, so that whoever asked can be told that there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// The version of OpenFlow.
    pub version: u8,
    /// Which message it is.
    pub kind: MessageType,
    /// Its transaction: a reply has that of the request.
    pub xid: u32,
}

impl MessageHeader {
    /// Reads the first bytes of a message; `None` if there are fewer than a header has.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let &[version, kind, _, _, a, b, c, d, ..] = bytes else { return None };
        Some(Self { version, kind: MessageType(kind), xid: u32::from_be_bytes([a, b, c, d]) })
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The transaction: a reply has that of its request.
    pub xid: u32,
    /// What it says.
    pub body: Body,
}

impl Message {
    /// A message of transaction `xid`.
    #[must_use]
    pub fn new(xid: u32, body: Body) -> Self {
        Self { xid, body }
    }

    /// Reads exactly one message.
    ///
    /// What is read can be [written](Self::encode) back byte for byte; that is why padding that is
    /// not zero is refused.
    ///
    /// # Errors
    ///
    /// If `bytes` are not exactly one message of OpenFlow 1.3, or one hello or error of any version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        Self::decode_with(bytes, Padding::Strict)
    }

    /// Reads exactly one message, and treats padding as told.
    ///
    /// # Errors
    ///
    /// Those of [`decode`](Self::decode).
    pub fn decode_with(bytes: &[u8], padding: Padding) -> Result<Self, Error> {
        let mut r = Reader::new(bytes, padding);
        let (version, kind): (u8, MessageType) = (r.get()?, r.get()?);
        r.set_version(version);
        let message = r.measured("message", 0, |r| {
            let xid = r.get()?;
            let any_version = matches!(kind, MessageType::HELLO | MessageType::ERROR);
            if version != VERSION && !any_version {
                return Err(Error::Version { version, kind: kind.0 });
            }
            Ok(Self { xid, body: Body::read_as(kind, r)? })
        })?;
        r.finish()?;
        Ok(message)
    }

    /// Writes the message.
    ///
    /// # Errors
    ///
    /// If a part is longer than its length field can say, or raw data does not have the length that
    /// its place wants.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut w = Writer::default();
        w.put(&self.body.version());
        w.put(&self.body.kind());
        w.measured("message", 0, |w| {
            w.put(&self.xid);
            self.body.write_content(w);
        });
        w.finish()
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} xid={:#x}", self.body.kind(), self.xid)?;
        self.body.display_content(f)
    }
}
