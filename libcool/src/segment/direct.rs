//! Long parts that who takes them copies straight out of the memory of the rank that gives them (cross-memory attach,
//! process_vm_readv(2), as Open MPI's smsc/cma): one copy in place of two, and by all who take at once. The system may refuse it, in
//! containers and by Yama's `ptrace_scope`: whether all ranks can read each other's memory they find out together, once.

use super::exchange::{Exchange, Flow, Step};
use super::{Stop, Waits};
use crate::collective::Buffers;
use cool_proto::pages::OutOfBounds;
use cool_proto::segment::Ring;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{Pid, getpid};
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

/// What a rank has others find in its memory, to see whether they read it.
pub(super) const MARK_BYTES: usize = 8;

/// Who takes what in a call, by copies of its own.
pub(super) struct Pull<'p> {
    /// Whether this rank gives its input.
    pub(super) gives: bool,
    /// Whose input it takes parts of; empty if none.
    pub(super) sources: Range<usize>,
    /// Where the part of a source's input begins, and where it goes to.
    pub(super) part: &'p dyn Fn(usize) -> (usize, Range<usize>),
}

/// Bytes in the memory of a process. That of a rank which gives nothing any more is all zeros.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Address {
    process: i32,
    at: u64,
}

impl Address {
    const BYTES: usize = 12;

    fn of(bytes: &[u8]) -> Address {
        Address { process: getpid().as_raw(), at: bytes.as_ptr().expose_provenance() as u64 }
    }

    fn publish<W: Waits>(self, exchange: &Exchange<'_, W>) -> Result<(), OutOfBounds> {
        let mut bytes = [0; Address::BYTES];
        bytes[..4].copy_from_slice(&self.process.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.at.to_ne_bytes());
        exchange.part(exchange.rank).write((Ring::Given, exchange.number(Ring::Given, 0)), 0, &bytes)
    }

    fn published<W: Waits>(exchange: &Exchange<'_, W>, by: usize) -> Result<Address, OutOfBounds> {
        let (mut process, mut at) = ([0; 4], [0; 8]);
        let publication = (Ring::Given, exchange.number(Ring::Given, 0));
        exchange.part(by).read(publication, 0, &mut process)?;
        exchange.part(by).read(publication, process.len(), &mut at)?;
        Ok(Address { process: i32::from_ne_bytes(process), at: u64::from_ne_bytes(at) })
    }

    /// Copies what is there, from a byte on.
    fn copy(self, from: usize, mut into: &mut [u8]) -> Result<(), Errno> {
        let mut base = self.at as usize + from;
        while !into.is_empty() {
            let remote = [RemoteIoVec { base, len: into.len() }];
            let local = &mut [IoSliceMut::new(into)];
            // Fewer bytes than asked for at a time: the system's limit, or the end of what can be read.
            let copied = process_vm_readv(Pid::from_raw(self.process), local, &remote)?;
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
pub(super) fn pull<W: Waits>(
    exchange: &mut Exchange<'_, W>,
    pull: &Pull<'_>,
    buffers: &mut Buffers<'_>,
) -> Result<u64, Stop<W::Error>> {
    if pull.gives {
        exchange.make_room(Ring::Given, 0)?;
        Address::of(buffers.whole_input()).publish(exchange)?;
        exchange.publish(Ring::Given, 0);
    }
    let done = take(exchange, pull, buffers).and_then(|()| if pull.gives { taken(exchange) } else { Ok(()) });
    if pull.gives && done.is_err() {
        // What is there is the program's again, which may change it: who copies it yet must not take it for the call's.
        Address::default().publish(exchange)?;
        fence(Ordering::SeqCst);
    }
    done.map(|()| 1)
}

fn take<W: Waits>(
    exchange: &mut Exchange<'_, W>,
    pull: &Pull<'_>,
    buffers: &mut Buffers<'_>,
) -> Result<(), Stop<W::Error>> {
    let (me, size) = (exchange.rank, exchange.size);
    // Each begins with the one after it: not all read the same memory.
    let sources = (1..size).map(|step| (me + step) % size).filter(|rank| pull.sources.contains(rank));
    for source in sources {
        exchange.wait_for(Ring::Given, 0, source)?;
        let address = Address::published(exchange, source)?;
        let (from, into) = (pull.part)(source);
        let copied = address.copy(from, buffers.output(into));
        fence(Ordering::SeqCst);
        if copied.is_err() || Address::published(exchange, source)? != address {
            // It has died or given up, and its agent is to say so.
            exchange.waits.wait(source, &|| false)?;
        }
    }
    exchange.release(Ring::Given, 0);
    Ok(())
}

/// Waits until all have taken what this rank gives.
fn taken<W: Waits>(exchange: &mut Exchange<'_, W>) -> Result<(), Stop<W::Error>> {
    let (segment, number) = (exchange.segment, exchange.number(Ring::Given, 0));
    let mut others = (0..exchange.size).filter(|rank| *rank != exchange.rank);
    others.try_for_each(|on| exchange.waits.wait(on, &|| segment.rank(on).released(Ring::Given) > number))
}

/// Whether this rank can read the memory of all others; uses one publication. `mark` stays where it is until all have said so.
///
/// # Errors
/// If others do not come.
pub(super) fn can_read_others<W: Waits>(
    exchange: &mut Exchange<'_, W>,
    mark: &[u8; MARK_BYTES],
) -> Result<bool, Stop<W::Error>> {
    let mut reads = true;
    let flow = Flow { chunks: 1, publishes: true, sources: 0..exchange.size, has: &|_, _| true };
    exchange.flow(&flow, |exchange, step| match step {
        Step::Write(_) => {
            Address::of(mark).publish(exchange)?;
            let publication = (Ring::Given, exchange.number(Ring::Given, 0));
            exchange.part(exchange.rank).write(publication, Address::BYTES, mark)
        }
        Step::Take(from, _) => {
            let (mut published, mut read) = ([0; MARK_BYTES], [0; MARK_BYTES]);
            let publication = (Ring::Given, exchange.number(Ring::Given, 0));
            exchange.part(from).read(publication, Address::BYTES, &mut published)?;
            // In another PID namespace it may be another process.
            reads &= Address::published(exchange, from)?.copy(0, &mut read).is_ok() && read == published;
            Ok(())
        }
        Step::Taken(_) => Ok(()),
    })?;
    Ok(reads)
}

/// Whether all say yes; uses one publication.
///
/// # Errors
/// If others do not come.
pub(super) fn all_say<W: Waits>(exchange: &mut Exchange<'_, W>, yes: bool) -> Result<bool, Stop<W::Error>> {
    let mut all = yes;
    let flow = Flow { chunks: 1, publishes: true, sources: 0..exchange.size, has: &|_, _| true };
    exchange.flow(&flow, |exchange, step| {
        let number = |exchange: &Exchange<'_, W>| (Ring::Given, exchange.number(Ring::Given, 0));
        match step {
            Step::Write(_) => exchange.part(exchange.rank).write(number(exchange), 0, &[u8::from(yes)]),
            Step::Take(from, _) => {
                let mut said = [0];
                exchange.part(from).read(number(exchange), 0, &mut said)?;
                all &= said == [1];
                Ok(())
            }
            Step::Taken(_) => Ok(()),
        }
    })?;
    Ok(all)
}
