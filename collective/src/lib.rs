//! Collectives as data. A plan composes patterns over the three levels (node, rack, data center) and
//! [`compile`] turns a [`Call`] on a [`Layout`] into a [`Schedule`]; the agents' executor runs it,
//! [`verify`] proves it, [`analyse`] counts its messages, [`interpret`] runs it on bytes in one place. No
//! reader of a schedule knows the name of a pattern.

mod analyse;
mod builder;
mod compile;
mod interpret;
pub mod layout;
mod levels;
mod order;
mod patterns;
mod plan;
pub mod schedule;
mod track;
mod verify;

pub use analyse::{Analysis, analyse};
pub use compile::{CompileError, compile};
pub use interpret::{InterpretError, interpret};
pub use layout::{Layout, LayoutError, Place, Scope};
pub use plan::{Plan, PlanError};
pub use schedule::{
    Action, ActionId, Buffer, Call, Kind, Operation, Program, Rank, Schedule, Span, TransferId,
};
pub use verify::{Proof, VerifyError, verify};
