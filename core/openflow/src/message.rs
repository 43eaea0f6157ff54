//! Whole messages: the header, and the body that belongs to each type.

use std::fmt;

use crate::Error;
use crate::codec::{Padding, Reader, TaggedUnion, Writer};
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

/// Length of the header of every message, in bytes.
pub const HEADER_LEN: usize = 8;

/// Maximum length of a message, because its length field has 16 bits.
pub const MAX_LEN: usize = u16::MAX as usize;

number! {
    /// Type of a message.
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
    /// Content of a message.
    pub enum Body of MessageType {
        /// Announces OpenFlow versions; must be the first message in both directions.
        HELLO => Hello(Hello),
        /// Refuses a message.
        ERROR => Error(ErrorMessage),
        /// Requests an echo.
        ECHO_REQUEST => EchoRequest(Vec<u8>),
        /// Replies to an echo request with its data.
        ECHO_REPLY => EchoReply(Vec<u8>),
        /// Message of an experimenter.
        EXPERIMENTER => Experimenter(Experimenter),
        /// Requests the features of a switch.
        FEATURES_REQUEST => FeaturesRequest,
        /// Features of a switch.
        FEATURES_REPLY => FeaturesReply(SwitchFeatures),
        /// Requests the configuration of a switch.
        GET_CONFIG_REQUEST => GetConfigRequest,
        /// Configuration of a switch.
        GET_CONFIG_REPLY => GetConfigReply(SwitchConfig),
        /// Configures a switch.
        SET_CONFIG => SetConfig(SwitchConfig),
        /// A packet for the controller.
        PACKET_IN => PacketIn(PacketIn),
        /// Notifies that a flow was removed.
        FLOW_REMOVED => FlowRemoved(FlowRemoved),
        /// Notifies that a port was added, removed or changed.
        PORT_STATUS => PortStatus(PortStatus),
        /// A packet that the switch must send.
        PACKET_OUT => PacketOut(PacketOut),
        /// Changes a flow table.
        FLOW_MOD => FlowMod(FlowMod),
        /// Changes the group table.
        GROUP_MOD => GroupMod(GroupMod),
        /// Changes a port.
        PORT_MOD => PortMod(PortMod),
        /// Configures a flow table.
        TABLE_MOD => TableMod(TableMod),
        /// Requests state of a switch.
        MULTIPART_REQUEST => MultipartRequest(Multipart<MultipartRequest>),
        /// State of a switch.
        MULTIPART_REPLY => MultipartReply(Multipart<MultipartReply>),
        /// Requests a reply once all earlier messages have been processed.
        BARRIER_REQUEST => BarrierRequest,
        /// Reports that all messages before the barrier request have been processed.
        BARRIER_REPLY => BarrierReply,
        /// Requests the queues of a port.
        QUEUE_GET_CONFIG_REQUEST => QueueGetConfigRequest(QueueConfigRequest),
        /// Queues of a port.
        QUEUE_GET_CONFIG_REPLY => QueueGetConfigReply(QueueConfig),
        /// Requests a role for this controller.
        ROLE_REQUEST => RoleRequest(RoleConfig),
        /// Current role of the controller.
        ROLE_REPLY => RoleReply(RoleConfig),
        /// Requests which notifications the controller receives.
        GET_ASYNC_REQUEST => GetAsyncRequest,
        /// Notifications that the controller receives.
        GET_ASYNC_REPLY => GetAsyncReply(AsyncConfig),
        /// Sets which notifications the controller receives.
        SET_ASYNC => SetAsync(AsyncConfig),
        /// Changes a meter.
        METER_MOD => MeterMod(MeterMod),
    }
}

impl Body {
    /// Returns the version for the header.
    fn version(&self) -> u8 {
        match self {
            Self::Hello(hello) => hello.version,
            Self::Error(failure) => failure.version,
            _ => VERSION,
        }
    }
}

/// Header of a message. It can often be read even if the rest of the message cannot, so that the
/// code that sent the request can be notified that there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// OpenFlow version.
    pub version: u8,
    /// Type of the message.
    pub kind: MessageType,
    /// Transaction. A reply must have the transaction of its request.
    pub xid: u32,
}

impl MessageHeader {
    /// Reads a header from the first bytes of a message. Returns `None` if there are too few.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let &[version, kind, _, _, a, b, c, d, ..] = bytes else { return None };
        Some(Self { version, kind: MessageType(kind), xid: u32::from_be_bytes([a, b, c, d]) })
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Transaction. A reply must have the transaction of its request.
    pub xid: u32,
    /// Content.
    pub body: Body,
}

impl Message {
    /// Returns a message of transaction `xid`.
    #[must_use]
    pub fn new(xid: u32, body: Body) -> Self {
        Self { xid, body }
    }

    /// Reads exactly one message.
    ///
    /// The result can be [written](Self::encode) back byte for byte. Padding must therefore be
    /// zero.
    ///
    /// # Errors
    ///
    /// Fails unless `bytes` are exactly one message of OpenFlow 1.3, or one hello or error message
    /// of any version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        Self::decode_with(bytes, Padding::Strict)
    }

    /// Reads exactly one message, with the given treatment of padding.
    ///
    /// # Errors
    ///
    /// Fails as [`decode`](Self::decode) does.
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

    /// Returns the bytes of the message.
    ///
    /// # Errors
    ///
    /// Fails if a part is too long for its length field, or raw data has a length that its place
    /// does not permit.
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
