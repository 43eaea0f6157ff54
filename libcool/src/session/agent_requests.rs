//! Calls that the agent executes: the layout of their arguments in shared memory, how they are
//! sent, and their completion.

use super::shared_memory_allocator::{CallMemory, RegionUpdate, RegisteredRange, SharedBlock, aligned};
use super::{CallSender, RankSession, SegmentSession, milliseconds, ranks};
use crate::Operation;
use crate::call::{CallBlocking, CheckedCollective, PointToPointCall};
use crate::error::Error;
use crate::interruption::{self, CHECK_INTERVAL};
use crate::segment::Interrupted;
use cool_proto::local::{self, Call, Cancel, Dtype, Map, ReduceOp, Slice, Transfer, Unmap, frame::Body};
use cool_shm::region::RegionError;
use cool_shm::segment::StartDecision;
use cool_types::limits::OPEN_CALLS;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

/// A call that the agent is executing. Dropping it discards the result; the agent still completes
/// the call.
#[derive(Debug)]
pub(crate) struct AgentRequest {
    session: Arc<RankSession>,
    name: &'static str,
    id: u64,
    /// Offset of the output in the block, or `None` if the agent writes to the program's memory.
    output: Option<u64>,
    /// `None` once the result was returned.
    memory: Option<CallMemory>,
}

/// The outcome of an attempt to start a collective by the agent.
#[derive(Debug)]
pub(crate) enum AgentStart {
    /// The agent is executing the call.
    Pending(AgentRequest),
    /// Other ranks have begun to execute the call with this number themselves, so this rank must,
    /// too.
    ByRanks(u64),
}

/// Returns counts in the encoding of the protocol.
fn count_bytes(counts: &[usize]) -> Vec<u8> {
    counts.iter().flat_map(|n| (*n as u64).to_ne_bytes()).collect()
}

/// The location of a collective's arguments in shared memory.
struct ArgumentLayout {
    input: Option<Slice>,
    output: Option<Slice>,
    counts: Option<Slice>,
    /// As `output` in [`AgentRequest`].
    copied_output: Option<u64>,
    memory: CallMemory,
}

/// The outcome of an attempt of the ranks to execute a call without the agent.
#[derive(Debug)]
pub(crate) enum RankAttempt {
    /// The ranks have executed the call.
    Done(local::Stats),
    /// The agent must execute the call, under this number if it has one.
    ByAgent(Option<u64>),
}

impl RankAttempt {
    /// Converts the result of a call that the ranks began to execute under a number.
    pub(super) fn from_result(
        session: &RankSession,
        (name, number): (&'static str, u64),
        ranks: &[u32],
        carried: Result<local::Stats, Interrupted<Error>>,
    ) -> Result<RankAttempt, Error> {
        match carried {
            Ok(stats) => Ok(RankAttempt::Done(stats)),
            Err(Interrupted::Fallback) => Ok(RankAttempt::ByAgent(Some(number))),
            Err(Interrupted::Failed(e)) => Err(e),
            Err(Interrupted::OutOfBounds(e)) => Err(session.memory_error(name, e.into())),
            Err(Interrupted::OutOfStep(index)) => {
                let rank = ranks.get(index).copied().unwrap_or_default();
                let message = format!(
                    "rank {rank} has left an earlier call incomplete, so call {number} of group {} cannot use \
                     its data; create a new group, for example by shrink",
                    session.group
                );
                let kind = local::failure::Kind::Mismatch.into();
                Err(session.collective_error(name, local::Failure { kind, message, ranks: vec![rank] }))
            }
        }
    }
}

/// A collective that was started.
#[derive(Debug)]
pub(crate) enum StartedCall {
    /// The call is complete.
    Done(local::Stats),
    /// The agent is executing the call.
    Pending(AgentRequest),
}

impl RankSession {
    /// Starts a collective. If the program waits for it and the ranks can execute it themselves, or
    /// other ranks have begun to execute it, executes it before returning.
    pub(crate) fn start_collective(
        self: &Arc<RankSession>,
        checked: &mut CheckedCollective<'_, '_>,
        plan: &str,
        timeout: Duration,
        blocking: CallBlocking,
    ) -> Result<StartedCall, Error> {
        let mut attempt = match blocking {
            CallBlocking::Yes if plan.is_empty() => self.execute_by_ranks(checked, timeout, None)?,
            _ => RankAttempt::ByAgent(None),
        };
        loop {
            let number = match attempt {
                RankAttempt::Done(stats) => return Ok(StartedCall::Done(stats)),
                RankAttempt::ByAgent(number) => number,
            };
            attempt = match self.start_by_agent(checked, number, plan, timeout, blocking)? {
                AgentStart::Pending(request) => return Ok(StartedCall::Pending(request)),
                AgentStart::ByRanks(number) => self.execute_by_ranks(checked, timeout, Some(number))?,
            };
        }
    }

    /// Executes a call without the agent, if the ranks can. It has the given number, or the next
    /// one.
    fn execute_by_ranks(
        &self,
        checked: &mut CheckedCollective<'_, '_>,
        timeout: Duration,
        number: Option<u64>,
    ) -> Result<RankAttempt, Error> {
        self.check_process(checked.name)?;
        match self.quick {
            Some(_) => self.execute_quick(checked, timeout, number),
            None => self.execute_in_segment(checked, timeout, number),
        }
    }

    /// Starts a collective by the agent, under the given number or the next one. The input has been
    /// copied when this returns, unless it is in registered memory.
    ///
    /// # Errors
    /// If the call has a number, other ranks count on it, so an error makes the group fail.
    pub(crate) fn start_by_agent(
        self: &Arc<RankSession>,
        checked: &CheckedCollective<'_, '_>,
        number: Option<u64>,
        plan: &str,
        timeout: Duration,
        blocking: CallBlocking,
    ) -> Result<AgentStart, Error> {
        let started = self.request_collective(checked, number, plan, timeout, blocking);
        started.inspect_err(|error| {
            if let Some(number) = number {
                self.fail_group((checked.name, number), &error.to_string());
            }
        })
    }

    fn request_collective(
        self: &Arc<RankSession>,
        checked: &CheckedCollective<'_, '_>,
        number: Option<u64>,
        plan: &str,
        timeout: Duration,
        blocking: CallBlocking,
    ) -> Result<AgentStart, Error> {
        let name = checked.name;
        self.check_process(name)?;
        let ArgumentLayout { mut input, mut output, counts, copied_output, memory } =
            self.lay_out_arguments(checked, blocking)?;
        if checked.operation == Operation::Bcast {
            // The only buffer of a bcast is the output, even at the root.
            output = output.or(input.take());
        }
        let call = Call {
            id: 0,
            group: self.group,
            operation: local::Operation::from(checked.operation).into(),
            root: checked.root,
            dtype: checked.dtype.map_or(Dtype::Unspecified, Dtype::from).into(),
            reduce: checked.op.map_or(ReduceOp::Unspecified, ReduceOp::from).into(),
            count: checked.count as u64,
            input,
            output,
            timeout_ms: milliseconds(timeout),
            counts,
            plan: plan.to_owned(),
            number: None,
            watch: false,
            background: self.background.load(Ordering::Relaxed),
        };
        let waits = blocking == CallBlocking::Yes;
        let mut call_sender = self.sender_with_room(name, waits, timeout)?;
        let counts_calls = self.segment_session.is_some() || self.quick.is_some();
        let number = match number {
            None if counts_calls => {
                let number = call_sender.next_call_number();
                if self.ranks_have_begun(checked, number) {
                    return Ok(AgentStart::ByRanks(number));
                }
                Some(number)
            }
            number => number,
        };
        let id = self.send_call(&mut call_sender, name, |id| Body::Call(Call { id, number, ..call }))?;
        let session = Arc::clone(self);
        let request = AgentRequest { session, name, id, output: copied_output, memory: Some(memory) };
        Ok(AgentStart::Pending(request))
    }

    /// Decides, together with the other ranks of this node, whether the agents execute a call that
    /// this rank starts. Returns whether other ranks have begun to execute it themselves.
    fn ranks_have_begun(&self, checked: &CheckedCollective<'_, '_>, number: u64) -> bool {
        let (usable, rank) = match &self.quick {
            Some(quick) => (quick.usable(checked), quick.index()),
            None => (self.segment_session.as_ref().and_then(SegmentSession::usable), self.rank),
        };
        usable.is_some_and(|(segment, ranks)| {
            let mut parts = segment.ranks().take(ranks);
            let agree = parts.all(|part| !part.is_attached() || part.names_calls());
            agree && segment.decide_start(rank, number) == StartDecision::Ranks
        })
    }

    /// Lays out a collective's arguments in a block: input, output and counts. Registered memory
    /// stays in place.
    fn lay_out_arguments(
        &self,
        checked: &CheckedCollective<'_, '_>,
        blocking: CallBlocking,
    ) -> Result<ArgumentLayout, Error> {
        let (input, output) = (checked.input(), checked.output());
        let lent = blocking != CallBlocking::No;
        // Schedules read the input after they have begun to write the output, so an overwritten
        // input must be copied.
        let registered_input =
            input.filter(|_| lent && !checked.overwrites()).and_then(|bytes| self.allocator.input(bytes));
        let registered_output = output.filter(|_| lent).and_then(|bytes| self.allocator.output(bytes));
        let copied = input.filter(|_| registered_input.is_none()).unwrap_or_default();
        let counts = checked.counts.map(count_bytes);
        let counted = counts.as_deref().unwrap_or_default();
        let output_at = aligned(copied.len() as u64);
        let room = output.filter(|_| registered_output.is_none()).map_or(0, |bytes| bytes.len() as u64);
        let counts_at = aligned(output_at + room);
        let block = self.reserve(checked.name, counts_at + counted.len() as u64)?;
        block
            .copy_in(0, copied)
            .and_then(|()| block.copy_in(counts_at, counted))
            .map_err(|e| self.memory_error(checked.name, e.into()))?;
        let slice = |bytes: &[u8], registered: Option<&RegisteredRange>, at| {
            registered.map_or_else(|| block.slice(at, bytes.len() as u64), RegisteredRange::slice)
        };
        Ok(ArgumentLayout {
            input: input.map(|bytes| slice(bytes, registered_input.as_ref(), 0)),
            output: output.map(|bytes| slice(bytes, registered_output.as_ref(), output_at)),
            counts: counts.as_deref().map(|counts| slice(counts, None, counts_at)),
            copied_output: registered_output.is_none().then_some(output_at),
            memory: CallMemory { block, _input: registered_input, output: registered_output },
        })
    }

    /// Starts to send or receive a message. Data to send has been copied when this returns, unless
    /// it is in registered memory.
    pub(crate) fn start_message(
        self: &Arc<RankSession>,
        message: &PointToPointCall<'_>,
        timeout: Duration,
        blocking: CallBlocking,
    ) -> Result<AgentRequest, Error> {
        let name = message.name;
        self.check_process(name)?;
        let (data, bytes) = (message.data, message.data.len() as u64);
        let registered = match blocking {
            CallBlocking::No => None,
            _ if message.sends => self.allocator.input(data),
            _ => self.allocator.output(data),
        };
        let block = self.reserve(name, if registered.is_some() { 0 } else { bytes })?;
        if message.sends && registered.is_none() {
            block.copy_in(0, data).map_err(|e| self.memory_error(name, e.into()))?;
        }
        let place = registered.as_ref().map_or_else(|| block.slice(0, bytes), RegisteredRange::slice);
        let transfer = Transfer {
            id: 0,
            group: self.group,
            send: message.sends,
            peer: message.peer,
            tag: message.tag,
            dtype: Dtype::from(message.dtype).into(),
            data: Some(place),
            timeout_ms: milliseconds(timeout),
            synchronous: message.synchronous,
            probe: message.probe.into(),
        };
        let copied_output = registered.is_none().then_some(0);
        let (input, output) = if message.sends { (registered, None) } else { (None, registered) };
        let memory = CallMemory { block, _input: input, output };
        let mut call_sender = self.sender_with_room(name, blocking == CallBlocking::Yes, timeout)?;
        let request = |id| Body::Transfer(Transfer { id, ..transfer });
        let id = self.send_call(&mut call_sender, name, request)?;
        drop(call_sender);
        Ok(AgentRequest { session: Arc::clone(self), name, id, output: copied_output, memory: Some(memory) })
    }

    /// Allocates registered memory, which both the program and the agent access, and returns its
    /// address.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<(NonNull<u8>, Arc<SharedBlock>), Error> {
        let name = "alloc";
        self.check_process(name)?;
        let block = self.map_regions(name, || self.allocator.take_pages(bytes))?;
        // Checked after the block was taken, because the session may end meanwhile.
        if let Some(why) = self.inbox.disconnected() {
            return Err(self.disconnected(name, why));
        }
        self.allocator.register(block, bytes).map_err(|e| self.memory_error(name, e.into()))
    }

    /// Allocates memory for a call. The agent is notified of it before the next frame is sent.
    fn reserve(&self, name: &'static str, bytes: u64) -> Result<SharedBlock, Error> {
        self.map_regions(name, || self.allocator.take(bytes))
    }

    /// Takes a block and notifies the agent of regions that are added or removed with it.
    fn map_regions(
        &self,
        name: &'static str,
        take: impl FnOnce() -> Result<(SharedBlock, Vec<RegionUpdate>), RegionError>,
    ) -> Result<SharedBlock, Error> {
        let mut call_sender = self.call_sender();
        let (block, updates) = take().map_err(|e| self.memory_error(name, e))?;
        for update in updates {
            match update {
                RegionUpdate::Map(number, region) => {
                    let map = Map { region: number, bytes: region.len() };
                    self.send(&mut call_sender, name, Body::Map(map), Some(region.descriptor()))?;
                }
                RegionUpdate::Unmap(region) => {
                    self.send(&mut call_sender, name, Body::Unmap(Unmap { region }), None)?;
                }
            }
        }
        // Preparing may take long, so other threads must be able to send.
        drop(call_sender);
        block.prepare().map_err(|e| self.memory_error(name, e))?;
        Ok(block)
    }

    /// Copies counts to memory that the agent reads.
    pub(super) fn share_counts(
        &self,
        name: &'static str,
        counts: &[usize],
    ) -> Result<(SharedBlock, Slice), Error> {
        let bytes = count_bytes(counts);
        let block = self.reserve(name, bytes.len() as u64)?;
        block.copy_in(0, &bytes).map_err(|e| self.memory_error(name, e.into()))?;
        let slice = block.slice(0, bytes.len() as u64);
        Ok((block, slice))
    }

    /// Returns the sender as soon as the agent accepts another call. If the program `waits` in the
    /// call, a few more are accepted, because it may not be able to complete the others before.
    ///
    /// # Errors
    /// If no call completes within `timeout`. Nothing was sent then.
    pub(super) fn sender_with_room(
        &self,
        name: &'static str,
        waits: bool,
        timeout: Duration,
    ) -> Result<MutexGuard<'_, CallSender>, Error> {
        let limit = OPEN_CALLS + if waits { self.waiting_calls } else { 0 };
        let begun = Instant::now();
        loop {
            let call_sender = self.call_sender();
            if self.inbox.open() < limit {
                return Ok(call_sender);
            }
            drop(call_sender);
            let left = timeout.saturating_sub(begun.elapsed());
            let at_most = if interruption::is_possible() { left.min(CHECK_INTERVAL) } else { left };
            if !self.inbox.wait_for_room(limit, at_most) {
                interruption::check(self.rank, name)?;
                if at_most < left {
                    continue;
                }
                let reason = format!(
                    "{limit} calls are pending, and none was completed within {timeout:?}; wait for some of \
                     them first"
                );
                return Err(Error::Argument { rank: self.rank, operation: name, reason });
            }
            if let Some(why) = self.inbox.disconnected() {
                return Err(self.disconnected(name, why));
            }
        }
    }

    /// Sends a call and returns the identifier of its reply.
    pub(super) fn send_call(
        &self,
        call_sender: &mut CallSender,
        name: &'static str,
        call: impl FnOnce(u64) -> Body,
    ) -> Result<u64, Error> {
        let id = call_sender.next_request_id;
        call_sender.next_request_id += 1;
        self.inbox.expect_call(id);
        self.send(call_sender, name, call(id), None).inspect_err(|_| self.inbox.forget(id))?;
        Ok(id)
    }
}

impl RankSession {
    /// Returns the error of a failed call.
    pub(super) fn collective_error(&self, operation: &'static str, failure: local::Failure) -> Error {
        Error::Collective {
            rank: self.rank,
            operation,
            failure: failure.kind().into(),
            ranks: ranks(&failure.ranks),
            message: failure.message,
        }
    }
}

impl AgentRequest {
    /// Waits until the agent has completed the call, and copies the received data to `output`.
    pub(crate) fn finish(mut self, output: Option<&mut [u8]>) -> Result<local::Stats, Error> {
        let (session, name) = (&self.session, self.name);
        session.check_process(name)?;
        while interruption::is_possible() && !session.inbox.wait_at_most(self.id, CHECK_INTERVAL) {
            interruption::check(session.rank, name)?;
        }
        let done = match session.inbox.wait(self.id) {
            Ok(done) => done,
            Err(why) => {
                let error = session.disconnected(name, why);
                self.detach_output_from_lost_agent()?;
                return Err(error);
            }
        };
        let memory = self.memory.take();
        if let Some(failure) = done.failure {
            return Err(session.collective_error(name, failure));
        }
        let stats = done.stats.unwrap_or_default();
        // A received message may be shorter than the output.
        let received = stats.arrived.map_or(usize::MAX, |arrived| arrived.bytes as usize);
        if let (Some(output), Some(from), Some(memory)) = (output, self.output, &memory) {
            let received = received.min(output.len());
            let copied = memory.block.copy_out(from, &mut output[..received]);
            copied.map_err(|e| session.memory_error(name, e.into()))?;
        }
        Ok(stats)
    }

    /// Prevents the agent from writing to the program's memory, because an agent that only seems to
    /// be lost may continue with the call later.
    fn detach_output_from_lost_agent(&self) -> Result<(), Error> {
        let output = self.memory.as_ref().and_then(|memory| memory.output.as_ref());
        output.map_or(Ok(()), RegisteredRange::detach).map_err(|e| self.session.memory_error(self.name, e))
    }

    /// Waits for at most `at_most`. Returns whether [`AgentRequest::finish`] would return at once.
    pub(crate) fn wait_for(&self, at_most: Duration) -> Result<bool, Error> {
        self.session.check_process(self.name)?;
        Ok(self.session.inbox.wait_at_most(self.id, at_most))
    }

    /// Asks the agent to cancel a receive. The receive fails unless a message has matched it
    /// already. The agent replies in both cases.
    pub(crate) fn cancel(&self) -> Result<(), Error> {
        let (session, name) = (&self.session, self.name);
        session.check_process(name)?;
        session.send(&mut session.call_sender(), name, Body::Cancel(Cancel { id: self.id }), None)
    }

    /// Returns whether [`AgentRequest::finish`] would return at once. If not, wakes `waker` as soon
    /// as it would.
    pub(crate) fn poll(&self, waker: &Waker) -> Result<bool, Error> {
        self.session.check_process(self.name)?;
        let rank = self.session.rank;
        self.session.inbox.poll(self.id, waker).map_err(|source| Error::Thread {
            rank,
            operation: self.name,
            source,
        })
    }
}

impl Drop for AgentRequest {
    fn drop(&mut self) {
        match self.memory.take() {
            // In a forked process, the allocator may stay locked forever by a thread that does not
            // exist there, so the memory is leaked instead.
            Some(memory) if self.session.is_forked() => std::mem::forget(memory),
            Some(memory) => self.session.inbox.abandon(self.id, memory),
            None => {}
        }
    }
}
