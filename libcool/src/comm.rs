//! The communicator: the operations on slices, with their arguments checked before anything is sent.

use crate::element::{Element, Op};
use crate::environment::Environment;
use crate::error::Error;
use crate::session::{Request, Session};
use cool_proto::local::{Dtype, Operation};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a call may make no progress, unless [`Comm::set_timeout`] says otherwise. Generous, because
/// ranks may compute for long before they call; a rank that dies is noticed at once.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A rank's place in its group, and the way to the others.
///
/// Calls on one `Comm` run one after the other, also from several threads; which thread comes first
/// is then open, so let one thread of a rank do the calling. Dropping it tells the agent that the rank
/// is done.
#[derive(Debug)]
pub struct Comm {
    rank: usize,
    places: Vec<Place>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    session: Session,
    timeout: Duration,
    stats: Stats,
}

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its node, counted over the group with racks in order.
    pub node: usize,
    /// Its rack.
    pub rack: usize,
    /// The node's name.
    pub name: String,
}

/// What the calls so far cost this rank's node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls that were done without an error.
    pub calls: u64,
    /// Time between the agent's taking and finishing them.
    pub time: Duration,
    /// Payload bytes sent by multicast.
    pub multicast_bytes: u64,
    /// Payload bytes sent by unicast, repairs excluded.
    pub unicast_bytes: u64,
    /// Chunks that this node lacked and got by repair.
    pub chunks_repaired: u64,
    /// Chunks that this node sent as repair.
    pub chunks_resent: u64,
}

impl Comm {
    /// All ranks of the program, as `cool run` started them.
    ///
    /// # Errors
    /// If the process was not started by COOL, or its agent does not answer.
    pub fn world() -> Result<Comm, Error> {
        let Environment { socket, group, rank, size } = Environment::read(|name| std::env::var_os(name))?;
        let comm = Comm::attach(&socket, group, rank)?;
        if comm.size() != size {
            return Err(Error::Environment {
                variable: "COOL_SIZE",
                value: size.to_string(),
                expected: format!("{}, the size of group {group}", comm.size()),
            });
        }
        Ok(comm)
    }

    /// A rank of a group, by the agent at `socket`.
    pub(crate) fn attach(socket: &Path, group: u64, rank: u32) -> Result<Comm, Error> {
        let (session, attached) = Session::attach(socket, group, rank)?;
        let places = attached.places.into_iter().map(|p| Place {
            node: p.node as usize,
            rack: p.rack as usize,
            name: p.name,
        });
        Ok(Comm {
            rank: rank as usize,
            places: places.collect(),
            state: Mutex::new(State { session, timeout: DEFAULT_TIMEOUT, stats: Stats::default() }),
        })
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.places.len()
    }

    /// Where a rank runs; `None` if there is no such rank.
    pub fn place(&self, rank: usize) -> Option<&Place> {
        self.places.get(rank)
    }

    /// Lets later calls fail when they make no progress for this long; 5 minutes if never set. The
    /// shortest that counts is a millisecond.
    pub fn set_timeout(&self, timeout: Duration) {
        self.state().timeout = timeout;
    }

    /// What the calls so far cost, summed up.
    pub fn stats(&self) -> Stats {
        self.state().stats
    }

    /// Sends the root's `data` to all: at the other ranks, `data` is overwritten with it.
    ///
    /// # Errors
    /// If there is no such root, or the call fails.
    pub fn bcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        let name = "bcast";
        let root = self.checked_root(name, root)?;
        let count = data.len() as u64;
        let bytes = bytemuck::cast_slice_mut(data);
        let (send, receive) =
            if root as usize == self.rank { (Some(&*bytes), None) } else { (None, Some(bytes)) };
        self.call(Request {
            name,
            operation: Operation::Bcast,
            dtype: T::DTYPE,
            root,
            op: None,
            count,
            send,
            receive,
        })
    }

    /// Combines all ranks' `send`, element by element, into the root's `recv`. Only the root's `recv` is
    /// looked at; the others may pass `&mut []`.
    ///
    /// # Errors
    /// If the root's `recv` is not as long as its `send`, there is no such root, or the call fails.
    pub fn reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op, root: usize) -> Result<(), Error> {
        let name = "reduce";
        let root = self.checked_root(name, root)?;
        let receive = self.at_root(root, recv);
        if let Some(recv) = &receive {
            self.same_length(name, send.len(), recv.len())?;
        }
        self.call(Request {
            name,
            operation: Operation::Reduce,
            dtype: T::DTYPE,
            root,
            op: Some(op),
            count: send.len() as u64,
            send: Some(bytemuck::cast_slice(send)),
            receive: receive.map(bytemuck::cast_slice_mut),
        })
    }

    /// Combines all ranks' `send`, element by element, into every rank's `recv`.
    ///
    /// # Errors
    /// If `recv` is not as long as `send`, or the call fails.
    pub fn allreduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), Error> {
        let name = "allreduce";
        self.same_length(name, send.len(), recv.len())?;
        self.call(Request {
            name,
            operation: Operation::Allreduce,
            dtype: T::DTYPE,
            root: 0,
            op: Some(op),
            count: send.len() as u64,
            send: Some(bytemuck::cast_slice(send)),
            receive: Some(bytemuck::cast_slice_mut(recv)),
        })
    }

    /// Puts all ranks' `send`, in rank order, into the root's `recv`. Only the root's `recv` is looked at;
    /// the others may pass `&mut []`.
    ///
    /// # Errors
    /// If the root's `recv` is not `size()` times as long as `send`, there is no such root, or the call
    /// fails.
    pub fn gather<T: Element>(&self, send: &[T], recv: &mut [T], root: usize) -> Result<(), Error> {
        let name = "gather";
        let root = self.checked_root(name, root)?;
        let receive = self.at_root(root, recv);
        if let Some(recv) = &receive {
            self.parts(name, "recv", recv.len(), "send", send.len())?;
        }
        self.call(Request {
            name,
            operation: Operation::Gather,
            dtype: T::DTYPE,
            root,
            op: None,
            count: send.len() as u64,
            send: Some(bytemuck::cast_slice(send)),
            receive: receive.map(bytemuck::cast_slice_mut),
        })
    }

    /// Puts all ranks' `send`, in rank order, into every rank's `recv`.
    ///
    /// # Errors
    /// If `recv` is not `size()` times as long as `send`, or the call fails.
    pub fn allgather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), Error> {
        let name = "allgather";
        self.parts(name, "recv", recv.len(), "send", send.len())?;
        self.call(Request {
            name,
            operation: Operation::Allgather,
            dtype: T::DTYPE,
            root: 0,
            op: None,
            count: send.len() as u64,
            send: Some(bytemuck::cast_slice(send)),
            receive: Some(bytemuck::cast_slice_mut(recv)),
        })
    }

    /// Deals the root's `send` out in `size()` equal parts: rank i's `recv` gets the i-th. Only the root's
    /// `send` is looked at; the others may pass `&[]`.
    ///
    /// # Errors
    /// If the root's `send` is not `size()` times as long as `recv`, there is no such root, or the call
    /// fails.
    pub fn scatter<T: Element>(&self, send: &[T], recv: &mut [T], root: usize) -> Result<(), Error> {
        let name = "scatter";
        let root = self.checked_root(name, root)?;
        let send = (root as usize == self.rank).then_some(send);
        if let Some(send) = send {
            self.parts(name, "send", send.len(), "recv", recv.len())?;
        }
        self.call(Request {
            name,
            operation: Operation::Scatter,
            dtype: T::DTYPE,
            root,
            op: None,
            count: recv.len() as u64,
            send: send.map(bytemuck::cast_slice),
            receive: Some(bytemuck::cast_slice_mut(recv)),
        })
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// If the call fails.
    pub fn barrier(&self) -> Result<(), Error> {
        self.call(Request {
            name: "barrier",
            operation: Operation::Barrier,
            dtype: Dtype::Unspecified,
            root: 0,
            op: None,
            count: 0,
            send: None,
            receive: None,
        })
    }

    fn call(&self, request: Request<'_>) -> Result<(), Error> {
        let mut state = self.state();
        let timeout = state.timeout;
        let cost = state.session.call(request, timeout)?;
        let stats = &mut state.stats;
        stats.calls += 1;
        stats.time += Duration::from_nanos(cost.nanoseconds);
        stats.multicast_bytes += cost.bytes_multicast;
        stats.unicast_bytes += cost.bytes_unicast;
        stats.chunks_repaired += cost.chunks_repaired;
        stats.chunks_resent += cost.chunks_resent;
        Ok(())
    }

    /// The session, even after a panic in a call: it refuses what no longer makes sense by itself.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at_root<'a, T>(&self, root: u32, recv: &'a mut [T]) -> Option<&'a mut [T]> {
        (root as usize == self.rank).then_some(recv)
    }

    fn checked_root(&self, operation: &'static str, root: usize) -> Result<u32, Error> {
        match u32::try_from(root) {
            Ok(number) if root < self.size() => Ok(number),
            _ => Err(self.wrong(
                operation,
                format!("there is no rank {root} to be the root; the ranks are 0 to {}", self.size() - 1),
            )),
        }
    }

    fn same_length(&self, operation: &'static str, send: usize, recv: usize) -> Result<(), Error> {
        if send == recv {
            return Ok(());
        }
        let reason = format!("recv has {recv} elements, but send has {send}; they must be equally long");
        Err(self.wrong(operation, reason))
    }

    fn parts(
        &self,
        operation: &'static str,
        whole: &'static str,
        whole_len: usize,
        part: &'static str,
        part_len: usize,
    ) -> Result<(), Error> {
        let size = self.size();
        if part_len.checked_mul(size) == Some(whole_len) {
            return Ok(());
        }
        let reason = format!(
            "{whole} has {whole_len} elements, but must have {size} times the {part_len} of {part}, \
             one part for each rank"
        );
        Err(self.wrong(operation, reason))
    }

    fn wrong(&self, operation: &'static str, reason: String) -> Error {
        Error::Argument { rank: self.rank, operation, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::frame::{Decoder, MAX_TO_AGENT, MAX_TO_RANK, encode};
    use cool_proto::local::{self, Attached, frame::Body};
    use std::collections::VecDeque;
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};

    /// The next frame that a rank sends.
    fn heard(stream: &UnixStream, decoder: &mut Decoder) -> Body {
        loop {
            if let Some(body) = decoder.take().unwrap() {
                return body;
            }
            let mut buffer = [0; 4096];
            let n = cool_proto::socket::receive(stream, &mut buffer, &mut VecDeque::new()).unwrap();
            assert_ne!(n, 0, "the rank hung up");
            decoder.push(&buffer[..n]);
        }
    }

    /// A rank alone with an agent that attaches it and then does `then`.
    fn with_agent<R>(
        then: impl FnOnce(UnixStream, Decoder) + Send,
        rank: impl FnOnce(Comm, &Path) -> R,
    ) -> R {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, mut decoder) = (listener.accept().unwrap().0, Decoder::new(MAX_TO_AGENT));
                heard(&stream, &mut decoder);
                let place = local::Place { node: 0, rack: 0, name: "h1".into() };
                let attached = Attached { version: 1, size: 1, places: vec![place] };
                stream.write_all(&encode(Body::Attached(attached), MAX_TO_RANK).unwrap()).unwrap();
                then(stream, decoder);
            });
            rank(Comm::attach(&path, 1, 0).unwrap(), &path)
        })
    }

    #[test]
    fn an_agent_that_is_not_there_is_named_by_its_socket() {
        let e = Comm::attach(Path::new("/no/agent.sock"), 1, 3).unwrap_err().to_string();
        assert!(e.starts_with("rank 3: attach: no agent at /no/agent.sock"), "{e}");
    }

    #[test]
    fn an_agent_that_dies_in_a_call_is_named_by_its_socket() {
        let dies = |stream: UnixStream, mut decoder: Decoder| {
            while !matches!(heard(&stream, &mut decoder), Body::Call(_)) {}
        };
        with_agent(dies, |comm, path| {
            for _ in 0..2 {
                let e = comm.barrier().unwrap_err().to_string();
                assert!(e.starts_with(&format!("rank 0: barrier: no agent at {}", path.display())), "{e}");
            }
        });
    }

    #[test]
    fn a_refusal_is_passed_on_in_the_agents_words() {
        let refuses = |mut stream: UnixStream, mut decoder: Decoder| {
            while !matches!(heard(&stream, &mut decoder), Body::Call(_)) {}
            let refused = Body::Refused(local::Refused { message: "no more calls today".into() });
            stream.write_all(&encode(refused, MAX_TO_RANK).unwrap()).unwrap();
        };
        with_agent(refuses, |comm, _| {
            let e = comm.barrier().unwrap_err();
            assert!(matches!(&e, Error::Refused { message, .. } if message == "no more calls today"), "{e}");
        });
    }

    #[test]
    fn a_failure_names_the_ranks_and_the_answer_to_another_call_is_not_ours() {
        let answers = |mut stream: UnixStream, mut decoder: Decoder| {
            let mut answer = |body| stream.write_all(&encode(body, MAX_TO_RANK).unwrap()).unwrap();
            let failure = local::Failure {
                kind: local::failure::Kind::Lost.into(),
                message: "rank 5 is gone".into(),
                ranks: vec![5],
            };
            answer(Body::Running(local::Running {}));
            answer(Body::Done(local::Done { id: 0, failure: Some(failure), stats: None }));
            answer(Body::Done(local::Done { id: 77, failure: None, stats: None }));
            for _ in 0..3 {
                heard(&stream, &mut decoder);
            }
        };
        with_agent(answers, |comm, _| {
            let e = comm.barrier().unwrap_err();
            assert_eq!(e.to_string(), "rank 0: barrier: rank 5 is gone");
            assert!(
                matches!(e, Error::Collective { failure: crate::Failure::Lost, ranks, .. } if ranks == [5])
            );
            assert!(matches!(comm.barrier().unwrap_err(), Error::Agent { .. }));
        });
    }
}
