#![doc = include_str!("../README.md")]

mod action;
mod codec;
mod error;
mod error_message;
mod flow;
mod framer;
mod group;
mod hello;
mod instruction;
mod macros;
mod message;
mod meter;
mod multipart;
mod oxm;
mod packet;
mod port;
mod queue;
#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod sample;
mod session;
mod value;

pub use action::{Action, ActionType, MaxLen};
pub use codec::Padding;
pub use error::Error;
pub use error_message::{ErrorMessage, ErrorType};
pub use flow::{FlowCommand, FlowFlags, FlowMod, FlowRemoved, FlowRemovedReason, TableConfig, TableMod};
pub use framer::Framer;
pub use group::{Bucket, GroupCommand, GroupMod, GroupType};
pub use hello::{Hello, HelloElement, HelloElementType, VERSION};
pub use instruction::{Instruction, InstructionType};
pub use message::{Body, HEADER_LEN, MAX_LEN, Message, MessageHeader, MessageType};
pub use meter::{Band, BandEffect, BandType, MeterCommand, MeterFlags, MeterMod};
pub use multipart::*;
pub use oxm::{Masked, Match, Oxm, UnknownOxm};
pub use packet::{PacketIn, PacketInReason, PacketOut};
pub use port::{Port, PortConfig, PortFeatures, PortMod, PortReason, PortState, PortStatus};
pub use queue::{Queue, QueueConfig, QueueConfigRequest, QueueProperty, QueuePropertyType};
pub use session::{
    AsyncConfig, Capabilities, ControllerRole, Experimenter, FragmentHandling, RoleConfig, SwitchConfig,
    SwitchFeatures,
};
pub use value::{
    BufferId, Counter, EtherType, FixedText, GroupId, IpProtocol, MacAddr, MeterId, PortNo, QueueId, TableId,
    U24, VlanId,
};
