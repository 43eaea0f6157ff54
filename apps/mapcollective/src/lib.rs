//! Map-Collective: iterative MapReduce with collectives as its stages, after Zhang, Ruan and Qiu's
//! generalization of Twister ("Large-Scale Image Classification using High Performance Clustering",
//! section 3).
//!
//! The input of a job is divided into partitions, which stay in the memory of the ranks
//! ([`Partitions`]). An iteration [maps](Job::map) them on all threads, each into a [`Table`] of
//! keys and values, merges the tables of a node, [regroups](Job::regroup) values by key at the
//! ranks that own the keys, and [combines](Job::combine) the owners' results at all ranks or at
//! one. [`Job::iterate`] repeats this with the new state.
//!
//! ```
//! # fn main() -> Result<(), cool_map::Error> {
//! use cool_map::{Keyed, Options, Partitions, Sum};
//! let pages = ["a rose is a rose", "is a rose"];
//! let counts = cool::launch(|comm| {
//!     let mut texts = Partitions::new(pages.len());
//!     cool_map::run(comm, Options::default(), |job| -> Result<_, cool_map::Error> {
//!         job.deal(&mut texts, |page| Ok::<_, cool_map::Error>(pages[page]))?;
//!         let words = job.map(&mut texts, &Keyed::new(), |text, words| {
//!             text.split(' ').for_each(|word| words.add(word.to_owned(), Sum(1u64)));
//!             Ok::<_, cool_map::Error>(())
//!         })?;
//!         job.combine(job.regroup(words)?)
//!     })
//! })?;
//! for counts in counts {
//!     assert_eq!(counts?.get("rose"), Some(&Sum(3)));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **Results have the same bits on any number of threads and ranks**, even with floating-point
//! numbers: where the order of merges matters, tables are merged along a binary tree over the
//! partitions ([`Table::ANY_ORDER`]).
//!
//! **Failures.** When ranks are lost, [`run`] runs the program again on the smaller group of
//! survivors. Partitions of lost ranks are distributed and loaded again, and iterations continue
//! from the last complete one at any survivor. A [`Checkpoint`] allows a later run to resume if all
//! ranks are lost. An error at one rank ends the whole job.
//!
//! The crate moves data by libcool's collectives only. The program decides what a partition is;
//! every rank must be able to load every partition.

mod checkpoint;
mod combine;
mod error;
mod files;
mod iterate;
mod job;
mod link_load;
mod map;
mod merge_forest;
mod partitions;
mod regroup;
mod report;
mod table;
pub mod threads;

pub use checkpoint::Checkpoint;
pub use error::{Error, Malformed};
pub use files::{NewFile, replace_file};
pub use iterate::Progress;
pub use job::{Job, Options, run};
pub use link_load::LinkBytes;
pub use map::Mapped;
pub use partitions::Partitions;
pub use report::{MapEvent, Report, Stage, StageKind};
pub use table::{Keyed, List, Max, Min, Number, Rows, Sum, Table, Value, owner};
