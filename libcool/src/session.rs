//! A rank's session with its agent: attach, share memory, call. Which arguments make sense is checked
//! before, in [`crate::comm`].

use crate::element::{Element, Op};
use crate::error::Error;
use crate::operation::Operation;
use cool_proto::frame::{FrameError, MAX_PLAN};
use cool_proto::local::{self, Attach, Call, CheckPlan, Map, ReduceOp, Slice, Unmap, frame::Body};
use cool_proto::region::{OutOfBounds, Region};
use cool_proto::socket::{Connection, SocketError};
use cool_proto::{RUNNING_INTERVAL, VERSION};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the agent may take for what needs no other node.
const PATIENCE: Duration = Duration::from_secs(30);

/// An agent from which nothing is heard for this long while it works on a call is gone.
const SILENCE: Duration = RUNNING_INTERVAL.saturating_mul(6);

/// Buffers begin at multiples of this, so that the agent's vector units like them.
const ALIGN: u64 = 64;

/// The first region's size, so that small calls share one.
const FIRST_REGION: u64 = 64 << 10;

/// A rank's session with its agent.
#[derive(Debug)]
pub(crate) struct Session {
    rank: usize,
    group: u64,
    socket: PathBuf,
    connection: Connection,
    region: Option<(u32, Region)>,
    next_region: u32,
    next_call: u64,
}

/// One collective, its arguments checked: what goes out, what comes in, and the rest of the frame.
pub(crate) struct Request<'a> {
    pub(crate) name: &'static str,
    pub(crate) operation: Operation,
    pub(crate) root: u32,
    pub(crate) dtype: local::Dtype,
    pub(crate) op: Option<Op>,
    pub(crate) count: u64,
    /// Of each part, in place of `count`.
    pub(crate) counts: Option<&'a [usize]>,
    pub(crate) send: Option<&'a [u8]>,
    pub(crate) receive: Option<&'a mut [u8]>,
}

impl<'a> Request<'a> {
    /// A call on elements of one type, as far as most have it.
    pub(crate) fn of<T: Element>(
        name: &'static str,
        operation: Operation,
        count: usize,
        send: Option<&'a [T]>,
        receive: Option<&'a mut [T]>,
    ) -> Request<'a> {
        Request {
            name,
            operation,
            root: 0,
            dtype: T::DTYPE,
            op: None,
            count: count as u64,
            counts: None,
            send: send.map(bytemuck::cast_slice),
            receive: receive.map(bytemuck::cast_slice_mut),
        }
    }

    /// The call that carries nothing.
    pub(crate) fn barrier() -> Request<'a> {
        let dtype = local::Dtype::Unspecified;
        Request { dtype, ..Request::of::<u8>("barrier", Operation::Barrier, 0, None, None) }
    }
}

impl Session {
    /// Connects to the agent and attaches as a rank of a group.
    pub(crate) fn attach(socket: &Path, group: u64, rank: u32) -> Result<(Session, local::Attached), Error> {
        let agent = |source| Error::Agent {
            rank: rank as usize,
            doing: "attach",
            socket: socket.to_path_buf(),
            source,
        };
        let mut session = Session {
            rank: rank as usize,
            group,
            socket: socket.to_path_buf(),
            connection: Connection::open(socket, PATIENCE).map_err(agent)?,
            region: None,
            next_region: 0,
            next_call: 0,
        };
        session.send("attach", Body::Attach(Attach { version: VERSION, group, rank }), None)?;
        match session.receive("attach", PATIENCE)? {
            Body::Attached(attached) if attached.places.len() > rank as usize => Ok((session, attached)),
            _ => Err(session.unexpected("attach")),
        }
    }

    /// What keeps a plan from carrying out calls of an operation; `None` if it can.
    pub(crate) fn check_plan(&mut self, operation: Operation, plan: &str) -> Result<Option<String>, Error> {
        if plan.len() > MAX_PLAN {
            return Ok(Some(format!(
                "a text of {} bytes is no plan; the longest has {MAX_PLAN}",
                plan.len()
            )));
        }
        let doing = "set_plan";
        let check = CheckPlan { operation: operation.code().into(), plan: plan.to_owned() };
        self.send(doing, Body::CheckPlan(check), None)?;
        match self.receive(doing, PATIENCE)? {
            Body::PlanChecked(checked) => Ok((!checked.wrong.is_empty()).then_some(checked.wrong)),
            _ => Err(self.unexpected(doing)),
        }
    }

    /// Runs one collective to its end.
    pub(crate) fn call(
        &mut self,
        request: Request<'_>,
        plan: &str,
        timeout: Duration,
    ) -> Result<local::Stats, Error> {
        let name = request.name;
        // In the region, one after the other: what goes out, what comes in, the counts.
        let sent = request.send.map_or(0, |s| s.len() as u64);
        let received = request.receive.as_ref().map_or(0, |r| r.len() as u64);
        let counts =
            request.counts.map(|c| c.iter().flat_map(|n| (*n as u64).to_ne_bytes()).collect::<Vec<u8>>());
        let counted = counts.as_ref().map_or(0, |c| c.len() as u64);
        let start = sent.next_multiple_of(ALIGN);
        let counts_start = (start + received).next_multiple_of(ALIGN);
        let rank = self.rank;
        let memory = |source: OutOfBounds| Error::Memory { rank, operation: name, source: source.into() };
        let region = self.share(name, counts_start + counted)?;
        if let Some((_, region)) = &self.region {
            region.copy_in(0, request.send.unwrap_or_default()).map_err(memory)?;
            region.copy_in(counts_start, counts.as_deref().unwrap_or_default()).map_err(memory)?;
        }

        let part = |offset, bytes| Slice { region, offset, bytes };
        let (input, output) = match request.operation {
            // Its only buffer is the output, also at the root.
            Operation::Bcast => (None, Some(part(0, sent + received))),
            _ => {
                (request.send.map(|_| part(0, sent)), request.receive.as_ref().map(|_| part(start, received)))
            }
        };
        let id = self.next_call;
        self.next_call += 1;
        let call = Call {
            id,
            group: self.group,
            operation: request.operation.code().into(),
            root: request.root,
            dtype: request.dtype.into(),
            reduce: request.op.map_or(ReduceOp::Unspecified, Op::code).into(),
            count: request.count,
            input,
            output,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1),
            counts: counts.map(|_| part(counts_start, counted)),
            plan: plan.to_owned(),
        };
        self.send(name, Body::Call(call), None)?;
        let stats = self.finish(name, id)?;

        if let (Some(data), Some((_, region))) = (request.receive, &self.region) {
            region.copy_out(start, data).map_err(memory)?;
        }
        Ok(stats)
    }

    /// Waits until the agent has done a call.
    fn finish(&mut self, name: &'static str, id: u64) -> Result<local::Stats, Error> {
        loop {
            match self.receive(name, SILENCE)? {
                Body::Running(_) => {}
                Body::Done(local::Done { id: done, failure: None, stats }) if done == id => {
                    return Ok(stats.unwrap_or_default());
                }
                Body::Done(local::Done { id: done, failure: Some(failure), .. }) if done == id => {
                    return Err(Error::Collective {
                        rank: self.rank,
                        operation: name,
                        failure: failure.kind().into(),
                        ranks: failure.ranks.iter().map(|r| *r as usize).collect(),
                        message: failure.message,
                    });
                }
                _ => return Err(self.unexpected(name)),
            }
        }
    }

    /// Makes sure that a region of at least `bytes` is shared; its number.
    fn share(&mut self, name: &'static str, bytes: u64) -> Result<u32, Error> {
        if let Some((number, region)) = &self.region
            && region.len() >= bytes
        {
            return Ok(*number);
        }
        // Pages that are never touched cost nothing, so growing in powers of two wastes no memory.
        let size = bytes.max(FIRST_REGION).checked_next_power_of_two().unwrap_or(bytes);
        if let Some((old, _)) = self.region.take() {
            self.send(name, Body::Unmap(Unmap { region: old }), None)?;
        }
        let region = Region::create(size).map_err(|source| Error::Memory {
            rank: self.rank,
            operation: name,
            source,
        })?;
        let number = self.next_region;
        self.next_region = self.next_region.wrapping_add(1);
        self.send(name, Body::Map(Map { region: number, bytes: size }), Some(region.descriptor()))?;
        self.region = Some((number, region));
        Ok(number)
    }

    fn send(
        &mut self,
        doing: &'static str,
        body: Body,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        match self.connection.send(body, descriptor) {
            Ok(()) => Ok(()),
            // An agent that hung up may have said why.
            Err(SocketError::Closed) => match self.connection.receive(PATIENCE) {
                Ok(Body::Refused(refused)) => Err(self.refused(doing, refused)),
                _ => Err(self.gone(doing, SocketError::Closed)),
            },
            Err(source) => Err(self.gone(doing, source)),
        }
    }

    fn receive(&mut self, doing: &'static str, timeout: Duration) -> Result<Body, Error> {
        match self.connection.receive(timeout) {
            Ok(Body::Refused(refused)) => Err(self.refused(doing, refused)),
            Ok(body) => Ok(body),
            Err(source) => Err(self.gone(doing, source)),
        }
    }

    /// The session is over: what comes later would be taken for the answer to something else.
    fn gone(&mut self, doing: &'static str, source: SocketError) -> Error {
        self.connection.close();
        Error::Agent { rank: self.rank, doing, socket: self.socket.clone(), source }
    }

    fn refused(&mut self, doing: &'static str, refused: local::Refused) -> Error {
        self.connection.close();
        Error::Refused { rank: self.rank, doing, socket: self.socket.clone(), message: refused.message }
    }

    fn unexpected(&mut self, doing: &'static str) -> Error {
        self.gone(doing, SocketError::Frame(FrameError::Unknown))
    }
}
