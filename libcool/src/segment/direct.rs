//! Long parts that who takes them copies straight out of the memory of the rank that gives them (cross-memory attach,
//! process_vm_readv(2), as Open MPI's smsc/cma): one copy in place of two, and by all who take at once. The system may refuse it, in
//! containers and by Yama's `ptrace_scope`: whether all ranks can read each other's memory they find out together, once.

use super::exchange::Exchange;
use super::operations::{read, write};
use super::{Interrupted, PeerWait};
use crate::call::CallBuffers;
use bytemuck::{bytes_of, bytes_of_mut};
use cool_shm::pages::OutOfBounds;
use cool_shm::segment::SegmentRing;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{Pid, getpid};
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

/// Who takes what in a call, by copies of its own.
pub(super) struct Pull<'p> {
    /// Whether this rank gives its input.
    pub(super) gives: bool,
    /// Whose input it takes parts of; empty if none.
    pub(super) sources: Range<usize>,
    /// Where the part of a source's input begins, and where it goes to.
    pub(super) part: &'p dyn Fn(usize) -> (usize, Range<usize>),
}

/// What a rank has others find in its memory, to see whether they read it: its process, where that is there, and what it is.
pub(super) type MemoryMark = [u64; 3];

/// The mark of what is to be found, which stays where it is until all have looked.
pub(super) fn mark(content: &u64) -> MemoryMark {
    let Address([process, at]) = Address::of(bytes_of(content));
    [process, at, *content]
}

/// Whether this rank finds what is marked. In another PID namespace that may be the memory of another process.
pub(super) fn finds([process, at, content]: MemoryMark) -> bool {
    let mut found = 0u64;
    Address([process, at]).copy(0, bytes_of_mut(&mut found)).is_ok() && found == content
}

/// Bytes in memory: the process, and where they are there. That of a rank which gives nothing any more is all zeros.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Address([u64; 2]);

impl Address {
    fn of(bytes: &[u8]) -> Address {
        Address([getpid().as_raw() as u64, bytes.as_ptr().expose_provenance() as u64])
    }

    fn publish<W: PeerWait>(self, exchange: &Exchange<'_, W>) -> Result<(), OutOfBounds> {
        write(exchange, 0, 0, bytes_of(&self.0))
    }

    fn published<W: PeerWait>(exchange: &Exchange<'_, W>, by: usize) -> Result<Address, OutOfBounds> {
        let mut address = Address::default();
        read(exchange, by, 0, 0, bytes_of_mut(&mut address.0))?;
        Ok(address)
    }

    /// Copies what is there, from a byte on.
    fn copy(self, from: usize, mut into: &mut [u8]) -> Result<(), Errno> {
        let Address([process, at]) = self;
        let mut base = at as usize + from;
        while !into.is_empty() {
            let remote = [RemoteIoVec { base, len: into.len() }];
            let local = &mut [IoSliceMut::new(into)];
            // Fewer bytes than asked for at a time: the system's limit, or the end of what can be read.
            let copied = process_vm_readv(Pid::from_raw(process as i32), local, &remote)?;
            if copied == 0 {
                return Err(Errno::EFAULT);
            }
            base += copied;
            into = &mut into[copied..];
        }
        Ok(())
    }
}

/// Gives this rank's input and takes what it is to have of others'; how many publications that has used.
///
/// # Errors
/// If others do not come.
pub(super) fn pull<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    pull: &Pull<'_>,
    buffers: &mut CallBuffers<'_>,
) -> Result<u64, Interrupted<W::Error>> {
    if pull.gives {
        exchange.make_room(SegmentRing::Inputs, 0)?;
        Address::of(buffers.whole_input()).publish(exchange)?;
        exchange.publish(SegmentRing::Inputs, 0);
    }
    let done = take(exchange, pull, buffers).and_then(|()| if pull.gives { taken(exchange) } else { Ok(()) });
    if pull.gives && done.is_err() {
        // What is there is the program's again, which may change it: who copies it yet must not take it for the call's.
        Address::default().publish(exchange)?;
        fence(Ordering::SeqCst);
    }
    done.map(|()| 1)
}

fn take<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    pull: &Pull<'_>,
    buffers: &mut CallBuffers<'_>,
) -> Result<(), Interrupted<W::Error>> {
    let (me, size) = (exchange.rank, exchange.size);
    // Each begins with the one after it: not all read the same memory.
    let sources = (1..size).map(|step| (me + step) % size).filter(|rank| pull.sources.contains(rank));
    for source in sources {
        exchange.wait_for(SegmentRing::Inputs, 0, source)?;
        let address = Address::published(exchange, source)?;
        let (from, into) = (pull.part)(source);
        let copied = address.copy(from, buffers.output(into));
        fence(Ordering::SeqCst);
        if copied.is_err() || Address::published(exchange, source)? != address {
            // It has died or given up, and its agent is to say so.
            exchange.waits.wait(source, &|| false)?;
        }
    }
    exchange.release(SegmentRing::Inputs, 0);
    Ok(())
}

/// Waits until all have taken what this rank gives.
fn taken<W: PeerWait>(exchange: &mut Exchange<'_, W>) -> Result<(), Interrupted<W::Error>> {
    let (segment, number) = (exchange.segment, exchange.number(SegmentRing::Inputs, 0));
    let mut others = (0..exchange.size).filter(|rank| *rank != exchange.rank);
    others.try_for_each(|on| {
        exchange.waits.wait(on, &|| segment.rank(on).released(SegmentRing::Inputs) > number)
    })
}
