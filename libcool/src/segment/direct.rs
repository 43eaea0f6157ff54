//! Direct copies of long parts from the memory of another rank (cross-memory attach,
//! `process_vm_readv(2)`, as Open MPI's smsc/cma).
//!
//! This replaces two copies through the segment by one, which all receivers make concurrently. The
//! system may refuse it, in containers or by Yama's `ptrace_scope`, so the ranks determine
//! together, once, whether all of them can read each other's memory. If that ends during a run, for
//! example because a program drops privileges or changes its dumpable flag, the ranks that cannot
//! copy request the data in slots. For this purpose, each direct copy reserves the numbers of the
//! publications that the slots would need.

use super::exchange::Exchange;
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

/// The direct copies of one rank in a call.
pub(super) struct Pull<'p> {
    /// Whether other ranks copy from this rank's input.
    pub(super) gives: bool,
    /// Ranks to copy from; empty if none.
    pub(super) sources: Range<usize>,
    /// Returns the offset of this rank's part in the input of a source, and the output range it is
    /// copied to.
    pub(super) part: &'p dyn Fn(usize) -> (usize, Range<usize>),
}

/// A value in a rank's memory that other ranks try to read: the process, the address, and the
/// value.
pub(super) type MemoryMark = [u64; 3];

/// Returns the mark of a value, which must stay in place until all ranks have read it.
pub(super) fn mark(content: &u64) -> MemoryMark {
    let Address([process, at]) = Address::of(bytes_of(content));
    [process, at, *content]
}

/// Returns whether this rank can read the marked value. In another PID namespace, the process
/// number may belong to another process, so the value is compared.
pub(super) fn finds([process, at, content]: MemoryMark) -> bool {
    let mut found = 0u64;
    Address([process, at]).copy(0, bytes_of_mut(&mut found)).is_ok() && found == content
}

/// An address in the memory of a process. All zeros if the rank has withdrawn its data.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Address([u64; 2]);

impl Address {
    fn of(bytes: &[u8]) -> Address {
        Address([getpid().as_raw() as u64, bytes.as_ptr().expose_provenance() as u64])
    }

    fn publish<W: PeerWait>(self, exchange: &Exchange<'_, W>) -> Result<(), OutOfBounds> {
        exchange.write(0, 0, bytes_of(&self.0))
    }

    fn published<W: PeerWait>(exchange: &Exchange<'_, W>, by: usize) -> Result<Address, OutOfBounds> {
        let mut address = Address::default();
        exchange.read(by, 0, 0, bytes_of_mut(&mut address.0))?;
        Ok(address)
    }

    /// Copies the bytes from offset `from` on.
    fn copy(self, from: usize, mut into: &mut [u8]) -> Result<(), Errno> {
        #[cfg(test)]
        if tests::IS_REFUSED.get() {
            return Err(Errno::EPERM);
        }
        let Address([process, at]) = self;
        let mut base = at as usize + from;
        while !into.is_empty() {
            let remote = [RemoteIoVec { base, len: into.len() }];
            let local = &mut [IoSliceMut::new(into)];
            // The system may copy fewer bytes than requested, because of its limit or the end of
            // readable memory.
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

/// Publishes this rank's input for the others in one publication, and copies its parts of their
/// inputs. Returns whether this rank has copied everything; otherwise it has requested slots.
///
/// # Errors
/// If other ranks do not join the call.
pub(super) fn pull<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    pull: &Pull<'_>,
    buffers: &mut CallBuffers<'_>,
) -> Result<bool, Interrupted<W::Error>> {
    if pull.gives {
        exchange.make_room(SegmentRing::Inputs, 0)?;
        Address::of(buffers.whole_input()).publish(exchange)?;
        exchange.publish(SegmentRing::Inputs, 0);
    }
    let done = take(exchange, pull, buffers).and_then(|has_copied| {
        if pull.gives {
            taken(exchange)?;
        }
        Ok(has_copied)
    });
    if pull.gives && done.is_err() {
        // The program may change its memory after this returns, so ranks that are still copying
        // must discard their data.
        Address::default().publish(exchange)?;
        fence(Ordering::SeqCst);
    }
    done
}

fn take<W: PeerWait>(
    exchange: &mut Exchange<'_, W>,
    pull: &Pull<'_>,
    buffers: &mut CallBuffers<'_>,
) -> Result<bool, Interrupted<W::Error>> {
    let (me, size) = (exchange.rank, exchange.size);
    // Each rank starts with its successor, so that not all ranks read the same memory.
    let sources = (1..size).map(|step| (me + step) % size).filter(|rank| pull.sources.contains(rank));
    let mut has_copied = true;
    for source in sources {
        exchange.wait_for(SegmentRing::Inputs, 0, source)?;
        exchange.check_call(SegmentRing::Inputs, 0, source)?;
        let address = Address::published(exchange, source)?;
        let (from, into) = (pull.part)(source);
        let copied = address.copy(from, buffers.output(into));
        fence(Ordering::SeqCst);
        if address == Address::default() || Address::published(exchange, source)? != address {
            // The source has withdrawn its data. Wait, because its agent must report the reason.
            exchange.waits.wait(source, &|| false)?;
        }
        if copied.is_err() {
            // The source has died, which its agent reports, or its memory has become unreadable.
            exchange.part(me).request_slots(exchange.call);
            has_copied = false;
            break;
        }
    }
    exchange.release(SegmentRing::Inputs, 0);
    Ok(has_copied)
}

/// Waits until all other ranks have copied this rank's input.
fn taken<W: PeerWait>(exchange: &mut Exchange<'_, W>) -> Result<(), Interrupted<W::Error>> {
    let (segment, number) = (exchange.segment, exchange.number(SegmentRing::Inputs, 0));
    let mut others = (0..exchange.size).filter(|rank| *rank != exchange.rank);
    others.try_for_each(|on| {
        exchange.waits.wait(on, &|| segment.rank(on).released(SegmentRing::Inputs) > number)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    thread_local! {
        /// Whether the system refuses this thread to read other ranks' memory.
        pub(in crate::segment) static IS_REFUSED: Cell<bool> = const { Cell::new(false) };
    }
}
