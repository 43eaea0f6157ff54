//! Collectives as data. A plan composes patterns over three levels (node, rack, data center), and
//! [`compile`] turns a [`Call`] on a [`Layout`] into a [`Schedule`]. A schedule is plain data and
//! may be compiled on any thread. Agents execute it by its [`ProgramProgress`], [`verify`] proves
//! it, [`analyze`] counts its messages, and [`interpret`] runs it on bytes in one process. No
//! reader of a schedule knows the name of a pattern.
//!
//! Values are combined in an order that the call, the layout and the plan determine, whatever
//! arrives first, so a floating-point sum has the same bits on every run. Each pattern's file
//! documents its order. For the parallel pattern it is chain order, `((n0 + n1) + n2) + ...` over
//! the ranks of each node, the nodes of each rack, and the racks. A scan always follows the order
//! of ranks.

mod analyze;
mod builder;
mod compile;
mod fused;
mod hazards;
mod interpret;
pub mod layout;
mod levels;
mod patterns;
mod plan;
pub mod planner;
mod progress;
pub mod schedule;
pub mod timing;
mod topological_order;
mod verify;

pub use analyze::{Analysis, DirectionLoad, LinkLoad, analyze};
pub use compile::{CompileError, check, compile};
pub use cool_types::{CallError, UnknownName};
pub use fused::FusedReductions;
pub use interpret::{InterpretError, interpret};
pub use layout::{Layout, LayoutError, MulticastScope, RankPlace};
pub use plan::{Plan, PlanError};
pub use planner::{CostModel, Planner};
pub use progress::{Dependents, ProgramProgress};
pub use schedule::{
    ActionId, ActionKind, Call, Operation, Program, Rank, RankBuffer, Schedule, ScheduleAction, Span, Stripe,
    TransferId,
};
pub use verify::{Proof, VerifyError, verify};
