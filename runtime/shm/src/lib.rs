//! Shared memory between the processes of one node.
//!
//! - [`pages`]: a mapping that other processes may write to at any time, accessed only by
//!   bounds-checked copies.
//! - [`region`]: pages that a rank shares with the agent of its node, in a sealed file.
//! - [`segment`]: pages that all ranks of a group on one node share, in which they execute short
//!   collectives without the agent.
//!
//! This crate contains the mmap, futex and atomic operations, and therefore `unsafe` code. It does
//! not decide when a process may access which bytes: that is defined by the protocol between rank
//! and agent (`proto/local.proto`) and by libcool.

pub mod pages;
pub mod region;
pub mod segment;
