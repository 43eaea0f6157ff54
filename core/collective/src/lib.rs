//! Collectives as data. A plan composes patterns over the three levels (node, rack, data center) and
//! [`compile`] turns a [`Call`] on a [`Layout`] into a [`Schedule`], which says nothing but data and may be made on any
//! thread; agents run it by its [`ProgramProgress`], [`verify`] proves it, [`analyze`] counts its messages, [`interpret`] runs it
//! on bytes in one place. No reader of a schedule knows the name of a pattern.
//!
//! Values are combined in an order that the call, the layout and the plan fix, whatever arrives first, so that a
//! floating-point sum has the same bits on every run: each pattern's file says which. With the parallel pattern
//! that is chain order, `((n0 + n1) + n2) + ...` over the ranks of each node, the nodes of each rack, and the
//! racks; a scan's is always that of ranks.

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
