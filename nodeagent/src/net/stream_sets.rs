//! Connections of several TCP streams, not all of which have arrived.

use super::handshake::{GreetedStream, RecordCiphers};
use cool_transport::unicast::AgentId;
use cool_transport::unicast::handshake::{StreamPlace, TOKEN_BYTES};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Maximum number of incomplete connections. A further one replaces the oldest. Only agents that
/// know this agent's key can begin one.
const SETS_MAX: usize = 256;

/// How long the streams of a connection may take to arrive, from the first to the last. The other
/// side tries to connect for about as long.
const COLLECT_TIME: Duration = Duration::from_secs(10);

/// The properties that the streams of a connection have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SetName {
    token: [u8; TOKEN_BYTES],
    count: u8,
    agent: AgentId,
    ip: IpAddr,
}

struct StreamSet {
    name: SetName,
    /// The streams that have arrived, by index.
    streams: Vec<Option<TcpStream>>,
    /// The ciphers of the first stream, which encrypt the whole connection.
    records: Option<RecordCiphers>,
    /// Dropped with the set, so that nothing waits for it any more.
    _ended: oneshot::Sender<()>,
}

/// A connection of several streams, all of which have arrived.
pub(super) struct CompleteSet {
    pub(super) streams: Vec<TcpStream>,
    pub(super) records: Option<RecordCiphers>,
}

/// The reasons why a stream becomes no part of a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamSetError {
    #[error("a stream with index {0} has arrived before; all streams of a connection need different ones")]
    Repeated(u8),
    #[error("only {arrived} of its {count} streams have arrived within {time_max:?}; it must connect again")]
    Incomplete { arrived: usize, count: u8, time_max: Duration },
}

/// The incomplete connections of an agent.
#[derive(Clone)]
pub(super) struct StreamSets {
    sets: Arc<Mutex<VecDeque<StreamSet>>>,
    /// How long the streams of a connection may take to arrive.
    time_max: Duration,
}

impl Default for StreamSets {
    fn default() -> StreamSets {
        StreamSets { sets: Arc::default(), time_max: COLLECT_TIME }
    }
}

impl StreamSets {
    /// Adds the stream of an agent at its place. Returns the connection if it is complete now. If
    /// the stream is the first of its connection, `report` is called if the others do not arrive.
    ///
    /// # Errors
    /// Returns an error if a stream with this index has arrived before.
    pub(super) fn add(
        &self,
        (agent, ip): (AgentId, IpAddr),
        GreetedStream { stream, records }: GreetedStream,
        StreamPlace { token, index, count }: StreamPlace,
        report: impl FnOnce(StreamSetError) + Send + 'static,
    ) -> Result<Option<CompleteSet>, StreamSetError> {
        let name = SetName { token, count, agent, ip };
        let mut sets = self.lock();
        let known = sets.iter().position(|set| set.name == name);
        let at = known.unwrap_or_else(|| {
            if sets.len() >= SETS_MAX {
                sets.pop_front();
            }
            let (ended, end) = oneshot::channel();
            let streams = (0..count).map(|_| None).collect();
            sets.push_back(StreamSet { name: name.clone(), streams, records: None, _ended: ended });
            tokio::spawn(self.clone().expire(name, end, report));
            sets.len() - 1
        });
        let set = &mut sets[at];
        let place = &mut set.streams[usize::from(index)];
        if place.is_some() {
            return Err(StreamSetError::Repeated(index));
        }
        *place = Some(stream);
        if index == 0 {
            set.records = records;
        }
        if set.streams.iter().any(Option::is_none) {
            return Ok(None);
        }
        let complete = sets.remove(at);
        Ok(complete.map(|set| CompleteSet {
            streams: set.streams.into_iter().flatten().collect(),
            records: set.records,
        }))
    }

    /// Removes a set if it is still incomplete when its time is over.
    async fn expire(self, name: SetName, end: oneshot::Receiver<()>, report: impl FnOnce(StreamSetError)) {
        if timeout(self.time_max, end).await.is_ok() {
            return;
        }
        let mut sets = self.lock();
        let Some(at) = sets.iter().position(|set| set.name == name) else { return };
        if let Some(set) = sets.remove(at) {
            let arrived = set.streams.iter().flatten().count();
            let time_max = self.time_max;
            report(StreamSetError::Incomplete { arrived, count: name.count, time_max });
        }
    }

    // A panic elsewhere leaves no set half changed, so the poisoning of the lock can be ignored.
    fn lock(&self) -> MutexGuard<'_, VecDeque<StreamSet>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    fn agent(node: &str) -> AgentId {
        AgentId { node: node.to_owned(), incarnation: 1 }
    }

    fn place(token: u8, index: u8, count: u8) -> StreamPlace {
        StreamPlace { token: [token; 16], index, count }
    }

    /// Adds a stream of an agent on loopback. Returns the number of streams of the connection if it
    /// is complete.
    async fn add(
        sets: &StreamSets,
        node: &str,
        place: StreamPlace,
        report: &mpsc::UnboundedSender<String>,
    ) -> Result<Option<usize>, StreamSetError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (from, report) = ((agent(node), Ipv4Addr::LOCALHOST.into()), report.clone());
        let greeted = GreetedStream { stream, records: None };
        let complete =
            sets.add(from, greeted, place, move |error| report.send(error.to_string()).unwrap())?;
        Ok(complete.map(|set| set.streams.len()))
    }

    #[tokio::test]
    async fn streams_form_a_connection_in_any_order() {
        let (sets, (report, _)) = (StreamSets::default(), mpsc::unbounded_channel());
        assert!(matches!(add(&sets, "h1", place(7, 2, 3), &report).await, Ok(None)));
        assert!(matches!(add(&sets, "h1", place(7, 0, 3), &report).await, Ok(None)));
        let again = add(&sets, "h1", place(7, 2, 3), &report).await;
        assert!(matches!(again, Err(StreamSetError::Repeated(2))));
        // These belong to other connections.
        assert!(matches!(add(&sets, "h1", place(8, 1, 3), &report).await, Ok(None)));
        assert!(matches!(add(&sets, "h2", place(7, 1, 3), &report).await, Ok(None)));
        assert!(matches!(add(&sets, "h1", place(7, 1, 2), &report).await, Ok(None)));
        assert_eq!(add(&sets, "h1", place(7, 1, 3), &report).await.unwrap(), Some(3));
        assert_eq!(sets.lock().len(), 3);
    }

    #[tokio::test]
    async fn an_incomplete_connection_is_dropped_after_a_while() {
        let (report, mut reports) = mpsc::unbounded_channel();
        let sets = StreamSets { time_max: Duration::from_millis(50), ..StreamSets::default() };
        assert!(matches!(add(&sets, "h1", place(7, 0, 2), &report).await, Ok(None)));
        let reported = reports.recv().await.unwrap();
        assert!(reported.contains("only 1 of its 2 streams"), "{reported}");
        assert!(sets.lock().is_empty());
    }

    #[tokio::test]
    async fn the_oldest_of_too_many_connections_is_dropped() {
        let (sets, (report, _)) = (StreamSets::default(), mpsc::unbounded_channel());
        for number in 0..=SETS_MAX as u16 {
            let token =
                StreamPlace { index: 0, count: 2, token: std::array::from_fn(|at| (number >> at) as u8) };
            assert!(matches!(add(&sets, "h1", token, &report).await, Ok(None)));
        }
        let first = StreamPlace { index: 1, count: 2, token: [0; 16] };
        assert!(matches!(add(&sets, "h1", first, &report).await, Ok(None)));
        assert_eq!(sets.lock().len(), SETS_MAX);
    }
}
