//! Collective communication for clusters with programmable networks.
//!
//! A program runs as many ranks; each has a [`Comm`], through which it calls collectives together
//! with the others: [`bcast`](Comm::bcast), [`reduce`](Comm::reduce), [`allreduce`](Comm::allreduce),
//! [`gather`](Comm::gather), [`allgather`](Comm::allgather), [`scatter`](Comm::scatter),
//! [`reduce_scatter`](Comm::reduce_scatter), [`alltoall`](Comm::alltoall), [`scan`](Comm::scan),
//! [`exscan`](Comm::exscan) and [`barrier`](Comm::barrier); where ranks have parts, also with parts of
//! unequal lengths, as [`gatherv`](Comm::gatherv). The agent of the rank's node moves the data: over
//! multicast trees in the switches, and over TCP, by a plan that it picks or that is forced
//! ([`set_plan`](Comm::set_plan)). The ranks of a group that is on one node move it themselves, in memory that they share, if they
//! wait for it.
//!
//! [`start`](Comm::start) has all of them for those who do not want to wait: many may be under way, and each is
//! waited for, asked, or awaited ([`Pending`]), or all are in a [`CompletionQueue`] that gives the first that is done. [`split`](Comm::split), [`dup`](Comm::dup) and
//! [`subset`](Comm::subset) make further groups. Elements are the number types of [`Element`]; functions of the program
//! combine any plain type ([`allreduce_with`](Comm::allreduce_with)). Arrays that [`alloc`](Comm::alloc) makes need no
//! copy on their way to the agent.
//!
//! ```
//! # fn main() -> Result<(), cool::Error> {
//! cool::launch(|comm| -> Result<(), cool::Error> {
//!     let mut sum = [0.0];
//!     comm.allreduce(&[comm.rank() as f64], &mut sum, cool::Op::Sum)?;
//!     println!("rank {} of {}: the sum of all ranks is {}", comm.rank(), comm.size(), sum[0]);
//!     Ok(())
//! })?
//! .into_iter()
//! .collect()
//! # }
//! ```
//!
//! `cool run -n 16 -- ./program` starts it on a cluster; so do `srun`, `mpirun` and `torchrun`. With the feature `embedded`, the same
//! program started by hand runs its ranks as threads, with agents on loopback: no root, no switches,
//! no daemons ([`launch`], [`embedded`]).
//!
//! What every rank must do alike: call the same operations in the same order, with the same type,
//! number of elements, root, [`Op`] and plan, and all start a call or all wait in it. A rank that does not, that dies or that does not come in time
//! makes the call fail at all that need it, with an [`Error`] that names it, and every later call at every
//! rank; nothing waits for ever. A rank may return from a call before the others have: only
//! [`barrier`](Comm::barrier) tells that all have come.

mod buffer;
mod call;
mod comm;
mod completion_queue;
mod element;
#[cfg(feature = "embedded")]
pub mod embedded;
mod environment;
mod error;
pub mod files;
mod launch;
mod pairs;
mod segment;
mod session;

pub use buffer::Buffer;
pub use call::{Arrays, Collective};
pub use comm::{
    Agreement, Combine, Comm, Message, OwnCounts, Pending, Place, Probed, Received, Start, Stats, wait_all,
};
pub use completion_queue::{Completed, CompletionQueue};
#[doc(inline)]
pub use cool_types::{ElementType as Type, Operation, ReduceOp as Op, UnknownName as UnknownOperation};
pub use element::{Array, ArrayMut, Element, Elements, Located};
pub use environment::agent_socket;
pub use error::{Error, FailureKind};
pub use half::{bf16, f16};
pub use launch::launch;
pub use num_complex::Complex;
pub use pairs::PairType;

/// The program of the README is compiled and run.
#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../../README.md")]
struct Readme;
