//! A rank's session with its agent: attach, share memory, call. Which arguments make sense is checked
//! before, in [`crate::collective`].

mod heap;
mod inbox;

use crate::Operation;
use crate::collective::Checked;
use crate::comm::PointToPoint;
use crate::error::Error;
use cool_proto::VERSION;
use cool_proto::frame::MAX_PLAN;
use cool_proto::local::{
    self, Attach, Call, CheckPlan, Dtype, Enlist, Leave, Map, Recover, ReduceOp, Revoke, Transfer, Unmap,
    frame::Body,
};
use cool_proto::region::RegionError;
use cool_proto::socket::{Sender, SocketError};
use cool_types::limits::OPEN_CALLS;
pub(crate) use heap::Block;
use heap::{Heap, Memory, RegionUpdate, aligned};
use inbox::{Disconnected, Inbox};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// How long the agent may take for what needs no other node.
const PATIENCE: Duration = Duration::from_secs(30);

/// A rank's session with its agent.
#[derive(Debug)]
pub(crate) struct Session {
    rank: usize,
    /// The process that has attached. One that it forks has the same connection, but none of the threads.
    process: u32,
    group: u64,
    socket: PathBuf,
    /// One frame, or a call with the regions that it needs, at a time.
    wire: Mutex<Wire>,
    /// One question that is no call at a time.
    asking: Mutex<()>,
    heap: Heap,
    inbox: Inbox,
}

#[derive(Debug)]
struct Wire {
    sender: Sender,
    next_call: u64,
}

/// A call under way. Dropping it leaves the agent to finish the call and forgets the result.
#[derive(Debug)]
pub(crate) struct Request {
    session: Arc<Session>,
    name: &'static str,
    id: u64,
    /// Where in the block the output begins; nowhere if it comes where the program has it.
    output: Option<u64>,
    /// Absent once the result was taken.
    memory: Option<Memory>,
}

/// Whether the program waits in the call (MPI: blocking), so that it leaves registered memory alone meanwhile, which then
/// need not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    Yes,
    No,
}

/// How a rank comes to its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinMode {
    /// The group is there.
    Member { group: u64 },
    /// The group is to be made when `size` ranks have come that give the same key.
    Enlist { key: String, size: u32, timeout: Duration },
}

/// The shortest that counts is one.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn ranks(ranks: &[u32]) -> Vec<usize> {
    ranks.iter().map(|rank| *rank as usize).collect()
}

impl Session {
    /// Connects to the agent.
    fn connect(socket: &Path, rank: usize, doing: &'static str) -> Result<Session, Error> {
        let agent =
            |source| Error::Agent { rank, doing, socket: socket.to_path_buf(), source: Arc::new(source) };
        let (sender, receiver) = cool_proto::socket::open(socket, PATIENCE).map_err(agent)?;
        Ok(Session {
            rank,
            process: std::process::id(),
            group: 0,
            socket: socket.to_path_buf(),
            wire: Mutex::new(Wire { sender, next_call: 0 }),
            asking: Mutex::default(),
            heap: Heap::default(),
            inbox: Inbox::new(receiver),
        })
    }

    /// Connects to the agent and attaches as a rank of a group.
    pub(crate) fn open(
        socket: &Path,
        rank: u32,
        mode: &JoinMode,
        doing: &'static str,
    ) -> Result<(Session, local::Attached), Error> {
        let mut session = Session::connect(socket, rank as usize, doing)?;
        let first = match mode {
            JoinMode::Member { group } => Body::Attach(Attach { version: VERSION, group: *group, rank }),
            JoinMode::Enlist { key, size, timeout } => Body::Enlist(Enlist {
                version: VERSION,
                key: key.clone(),
                rank,
                size: *size,
                timeout_ms: milliseconds(*timeout),
            }),
        };
        match session.ask(doing, first)? {
            Body::Attached(attached) if attached.places.len() > rank as usize => {
                session.group = attached.group;
                Ok((session, attached))
            }
            _ => Err(session.over(doing, inbox::unexpected())),
        }
    }

    /// Meets the other survivors of the group: the session of the new group, and who is gone.
    pub(crate) fn shrink(&self, timeout: Duration) -> Result<(Session, local::Attached, Vec<usize>), Error> {
        let doing = "shrink";
        let (mut session, recovered) = self.recover(doing, None, timeout)?;
        let answer = session.inbox.answer(PATIENCE).map_err(|why| session.over(doing, why))?;
        let gone = ranks(&recovered.gone);
        session.rank -= gone.iter().filter(|rank| **rank < self.rank).count();
        match answer {
            Body::Attached(attached) if attached.places.len() > session.rank => {
                session.group = attached.group;
                Ok((session, attached, gone))
            }
            _ => Err(session.over(doing, inbox::unexpected())),
        }
    }

    /// Meets the other survivors of the group: the and of what all give, and who is gone.
    pub(crate) fn agree(&self, flags: u64, timeout: Duration) -> Result<(u64, Vec<usize>), Error> {
        let (_, recovered) = self.recover("agree", Some(flags), timeout)?;
        Ok((recovered.flags, ranks(&recovered.gone)))
    }

    /// By a connection of its own: the group may have failed, and this one waits for its calls.
    fn recover(
        &self,
        doing: &'static str,
        agree: Option<u64>,
        timeout: Duration,
    ) -> Result<(Session, local::Recovered), Error> {
        self.check_process(doing)?;
        let session = Session::connect(&self.socket, self.rank, doing)?;
        let recover = Recover {
            version: VERSION,
            group: self.group,
            rank: self.rank as u32,
            timeout_ms: milliseconds(timeout),
            agree,
        };
        match session.ask(doing, Body::Recover(recover))? {
            Body::Recovered(recovered) => Ok((session, recovered)),
            _ => Err(session.over(doing, inbox::unexpected())),
        }
    }

    /// Lets all calls of the group fail, at every rank.
    pub(crate) fn revoke(&self) -> Result<(), Error> {
        let doing = "revoke";
        self.check_process(doing)?;
        self.send(&mut self.wire(), doing, Body::Revoke(Revoke {}), None)
    }

    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// In a process that was forked off the rank's, locks may be held and answers awaited by threads that are not there, and
    /// what it sends would come between the rank's frames. So nothing else is touched there.
    fn check_process(&self, operation: &'static str) -> Result<(), Error> {
        if !self.is_forked() {
            return Ok(());
        }
        let reason = format!(
            "this process was forked off process {}, which is the rank; call from there, or fork before the rank attaches",
            self.process
        );
        Err(Error::Argument { rank: self.rank, operation, reason })
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// The agent's socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The group's number in the network.
    pub(crate) fn group(&self) -> u64 {
        self.group
    }

    /// What keeps a plan from carrying out calls of an operation; `None` if it can.
    pub(crate) fn check_plan(&self, operation: Operation, plan: &str) -> Result<Option<String>, Error> {
        if plan.len() > MAX_PLAN {
            return Ok(Some(format!(
                "a text of {} bytes is no plan; the longest has {MAX_PLAN}",
                plan.len()
            )));
        }
        let doing = "set_plan";
        let check = CheckPlan { operation: local::Operation::from(operation).into(), plan: plan.to_owned() };
        match self.ask(doing, Body::CheckPlan(check))? {
            Body::PlanChecked(checked) => Ok((!checked.wrong.is_empty()).then_some(checked.wrong)),
            _ => Err(self.over(doing, inbox::unexpected())),
        }
    }

    /// Starts a collective. What is to go out has been copied when this returns, unless it is registered memory.
    pub(crate) fn start(
        self: &Arc<Session>,
        checked: &Checked<'_, '_>,
        plan: &str,
        timeout: Duration,
        blocking: Blocking,
    ) -> Result<Request, Error> {
        let name = checked.name;
        self.check_process(name)?;
        let (input, output) = (checked.input(), checked.output());
        // Schedules read the input after they have begun to write the output.
        let registered_input =
            input.filter(|_| !checked.overwrites()).and_then(|i| self.registered(i, blocking));
        let registered_output = output.and_then(|o| self.registered(o, blocking));
        // In the block, one after the other: what goes out, what comes in, the counts; registered memory stays where it is.
        let copied = input.filter(|_| registered_input.is_none()).unwrap_or_default();
        let counts =
            checked.counts.map(|c| c.iter().flat_map(|n| (*n as u64).to_ne_bytes()).collect::<Vec<u8>>());
        let counted = counts.as_deref().unwrap_or_default();
        let start = aligned(copied.len() as u64);
        let room = output.filter(|_| registered_output.is_none()).map_or(0, |o| o.len() as u64);
        let counts_start = aligned(start + room);
        let block = self.reserve(name, counts_start + counted.len() as u64)?;
        block
            .copy_in(0, copied)
            .and_then(|()| block.copy_in(counts_start, counted))
            .map_err(|e| self.no_memory(name, e.into()))?;

        let place = |bytes: &[u8], registered: Option<&(Arc<Block>, u64)>, within| {
            let bytes = bytes.len() as u64;
            registered
                .map_or_else(|| block.slice(within, bytes), |(registered, at)| registered.slice(*at, bytes))
        };
        let mut input = input.map(|bytes| place(bytes, registered_input.as_ref(), 0));
        let mut output = output.map(|bytes| place(bytes, registered_output.as_ref(), start));
        if checked.operation == Operation::Bcast {
            // Its only buffer is the output, also at the root.
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
            counts: counts.as_deref().map(|counts| place(counts, None, counts_start)),
            plan: plan.to_owned(),
        };
        let output = registered_output.is_none().then_some(start);
        let registered =
            [registered_input, registered_output].into_iter().flatten().map(|(block, _)| block).collect();
        let id = self.send_call(name, |id| Body::Call(Call { id, ..call }))?;
        Ok(Request {
            session: Arc::clone(self),
            name,
            id,
            output,
            memory: Some(Memory { block, registered }),
        })
    }

    /// Starts to send or receive a message. What is to go out has been copied when this returns, unless it is registered memory.
    pub(crate) fn start_message(
        self: &Arc<Session>,
        message: &PointToPoint<'_>,
        timeout: Duration,
        blocking: Blocking,
    ) -> Result<Request, Error> {
        let name = message.name;
        self.check_process(name)?;
        let (data, bytes) = (message.data, message.data.len() as u64);
        let registered = self.registered(data, blocking);
        let block = self.reserve(name, if registered.is_some() { 0 } else { bytes })?;
        if message.sends && registered.is_none() {
            block.copy_in(0, data).map_err(|e| self.no_memory(name, e.into()))?;
        }
        let place = registered
            .as_ref()
            .map_or_else(|| block.slice(0, bytes), |(registered, at)| registered.slice(*at, bytes));
        let transfer = Transfer {
            id: 0,
            group: self.group,
            send: message.sends,
            peer: message.peer,
            tag: message.tag,
            dtype: Dtype::from(message.dtype).into(),
            data: Some(place),
            timeout_ms: milliseconds(timeout),
        };
        let output = registered.is_none().then_some(0);
        let registered = registered.into_iter().map(|(block, _)| block).collect();
        let id = self.send_call(name, |id| Body::Transfer(Transfer { id, ..transfer }))?;
        Ok(Request {
            session: Arc::clone(self),
            name,
            id,
            output,
            memory: Some(Memory { block, registered }),
        })
    }

    /// Registered memory: the program has it, and the agent reaches it too. Its address.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<(NonNull<u8>, Arc<Block>), Error> {
        let name = "alloc";
        self.check_process(name)?;
        let block = self.reserve(name, bytes)?;
        self.heap.register(block).map_err(|e| self.no_memory(name, e.into()))
    }

    /// The registered block that holds these bytes of the program, if a call may use them without a copy, and where in it.
    fn registered(&self, bytes: &[u8], blocking: Blocking) -> Option<(Arc<Block>, u64)> {
        if blocking == Blocking::Yes { self.heap.registration(bytes) } else { None }
    }

    fn no_memory(&self, operation: &'static str, source: RegionError) -> Error {
        Error::Memory { rank: self.rank, operation, source }
    }

    /// Memory for a call, known to the agent before the next frame goes.
    fn reserve(&self, name: &'static str, bytes: u64) -> Result<Block, Error> {
        let mut wire = self.wire();
        let (block, updates) = self.heap.take(bytes).map_err(|e| self.no_memory(name, e))?;
        for update in updates {
            match update {
                RegionUpdate::Map(number, region) => {
                    let map = Map { region: number, bytes: region.len() };
                    self.send(&mut wire, name, Body::Map(map), Some(region.descriptor()))?;
                }
                RegionUpdate::Unmap(region) => {
                    self.send(&mut wire, name, Body::Unmap(Unmap { region }), None)?
                }
            }
        }
        Ok(block)
    }

    /// Sends a call; its number.
    fn send_call(&self, name: &'static str, call: impl FnOnce(u64) -> Body) -> Result<u64, Error> {
        let mut wire = self.wire();
        if self.inbox.open() >= OPEN_CALLS {
            let reason = format!("{OPEN_CALLS} calls are under way; wait for some first");
            return Err(Error::Argument { rank: self.rank, operation: name, reason });
        }
        let id = wire.next_call;
        wire.next_call += 1;
        self.inbox.expect(id);
        self.send(&mut wire, name, call(id), None).inspect_err(|_| self.inbox.forget(id))?;
        Ok(id)
    }

    /// Sends what is no call and waits for the answer.
    fn ask(&self, doing: &'static str, question: Body) -> Result<Body, Error> {
        self.check_process(doing)?;
        let _one = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(&mut self.wire(), doing, question, None)?;
        self.inbox.answer(PATIENCE).map_err(|why| self.over(doing, why))
    }

    fn send(
        &self,
        wire: &mut Wire,
        doing: &'static str,
        body: Body,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        if let Some(over) = self.inbox.over() {
            return Err(self.over(doing, over));
        }
        wire.sender.send(body, descriptor).map_err(|e| match e {
            // An agent that hung up may have said why.
            SocketError::Closed => match self.inbox.answer(PATIENCE) {
                Err(why) => self.over(doing, why),
                Ok(_) => self.over(doing, inbox::unexpected()),
            },
            e => self.over(doing, Disconnected::Gone(Arc::new(e))),
        })
    }

    /// The session is over, with the words for it.
    fn over(&self, doing: &'static str, why: Disconnected) -> Error {
        self.inbox.close(why.clone());
        let (rank, socket) = (self.rank, self.socket.clone());
        match why {
            Disconnected::Gone(source) => Error::Agent { rank, doing, socket, source },
            Disconnected::Refused(message) => Error::Refused { rank, doing, socket, message },
        }
    }

    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The agent learns that the rank is done, and carries out its open calls without it; of a rank that panics, it
/// learns that it is lost. Whoever receives learns that there is nothing more.
impl Drop for Session {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        if !std::thread::panicking() {
            // Whose session is over already has nobody to tell.
            let _ = self.send(&mut self.wire(), "leave", Body::Leave(Leave {}), None);
        }
        self.wire().sender.close();
        self.inbox.close(Disconnected::Gone(Arc::new(SocketError::Closed)));
    }
}

impl Request {
    /// Waits until the agent has done the call, and copies what came to `output`.
    pub(crate) fn finish(mut self, output: Option<&mut [u8]>) -> Result<local::Stats, Error> {
        let (session, name) = (&self.session, self.name);
        session.check_process(name)?;
        let done = match session.inbox.wait(self.id) {
            Ok(done) => done,
            Err(why) => {
                let error = session.over(name, why);
                // An agent that only seems to be gone may go on with it one day.
                if self.memory.take().is_some_and(|memory| !memory.registered.is_empty()) {
                    session.heap.detach().map_err(|e| session.no_memory(name, e))?;
                }
                return Err(error);
            }
        };
        let memory = self.memory.take();
        if let Some(failure) = done.failure {
            return Err(Error::Collective {
                rank: session.rank,
                operation: name,
                failure: failure.kind().into(),
                ranks: ranks(&failure.ranks),
                message: failure.message,
            });
        }
        let stats = done.stats.unwrap_or_default();
        // Of a message, as much as came.
        let came = stats.arrived.map_or(usize::MAX, |arrived| arrived.bytes as usize);
        if let (Some(output), Some(from), Some(memory)) = (output, self.output, &memory) {
            let came = came.min(output.len());
            let copied = memory.block.copy_out(from, &mut output[..came]);
            copied.map_err(|e| session.no_memory(name, e.into()))?;
        }
        Ok(stats)
    }

    /// Whether [`Request::finish`] would return at once; else `waker` is told when.
    pub(crate) fn poll(&self, waker: Option<&Waker>) -> Result<bool, Error> {
        self.session.check_process(self.name)?;
        let rank = self.session.rank;
        self.session.inbox.poll(self.id, waker).map_err(|source| Error::Thread {
            rank,
            operation: self.name,
            source,
        })
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        match self.memory.take() {
            // Its heap may be locked for ever.
            Some(memory) if self.session.is_forked() => std::mem::forget(memory),
            Some(memory) => self.session.inbox.leave(self.id, memory),
            None => {}
        }
    }
}
