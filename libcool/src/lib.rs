//! Collective communication for clusters with programmable networks.
//!
//! A program runs as several ranks. Each rank has a [`Comm`], through which it calls collectives
//! together with the other ranks: [`bcast`](Comm::bcast), [`reduce`](Comm::reduce),
//! [`allreduce`](Comm::allreduce), [`gather`](Comm::gather), [`allgather`](Comm::allgather),
//! [`scatter`](Comm::scatter), [`reduce_scatter`](Comm::reduce_scatter),
//! [`alltoall`](Comm::alltoall), [`scan`](Comm::scan), [`exscan`](Comm::exscan) and
//! [`barrier`](Comm::barrier). Operations on parts also exist for parts of unequal lengths, for
//! example [`gatherv`](Comm::gatherv).
//!
//! The agent of the rank's node moves the data: by multicast trees in the switches, and by TCP. It
//! follows a plan that it chooses, or that the program forces ([`set_plan`](Comm::set_plan)). If
//! all ranks of a group are on one node and wait in the call, they move the data themselves, in
//! shared memory.
//!
//! [`start`](Comm::start) starts any of these operations without waiting. A started call returns a
//! [`Pending`], which can be waited for, polled or awaited; a [`CompletionQueue`] returns the first
//! of many calls that completes. [`split`](Comm::split), [`dup`](Comm::dup) and
//! [`subset`](Comm::subset) create further groups. Elements are the number types of [`Element`];
//! functions of the program can combine any plain type ([`allreduce_with`](Comm::allreduce_with)).
//! Arrays from [`alloc`](Comm::alloc) are passed to the agent without a copy.
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
//! `cool run -n 16 -- ./program` starts the program on a cluster; so do `srun`, `mpirun` and
//! `torchrun`. With the feature `embedded`, a program that is started by hand runs its ranks as
//! threads, with agents on loopback, without root privileges, switches or daemons ([`launch`],
//! [`embedded`]).
//!
//! # Rules
//!
//! All ranks of a group must call the same operations in the same order, with the same type, number
//! of elements, root, [`Op`] and plan. Either all ranks must start a call or all must wait in it.
//! If a rank violates this, dies or does not join a call in time, the call fails at all ranks that
//! need it. The [`Error`] names the rank, and every later call fails at every rank. No call waits
//! forever.
//!
//! A rank may return from a call before other ranks have joined it. Only [`barrier`](Comm::barrier)
//! guarantees that all ranks have.

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
mod interruption;
mod job_cluster;
mod launch;
mod pairs;
mod segment;
mod session;
mod signal_mask;

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
pub use interruption::{InterruptCheck, interruptible};
pub use job_cluster::set_program_directory;
pub use launch::launch;
pub use num_complex::Complex;
pub use pairs::PairType;
pub use signal_mask::with_signals_blocked;

/// Compiles and runs the program in the README.
#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../../README.md")]
struct Readme;
