//! Collects traces of the latest calls from all agents and forwards them to the tool that requested
//! them. The controller keeps no traces.

use crate::agents::{AgentRegistry, Session};
use cool_proto::control::{TraceEvent, TraceRequest, Traced, controller_message::Body};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Status;
use tracing::debug;

/// Maximum time without any message before the remaining agents are skipped.
const AGENT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the tool may leave events unread. Meanwhile, agents with more events wait.
const RECEIVER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of simultaneous requests.
const MAX_REQUESTS: usize = 8;
/// Maximum number of waiting messages of agents, per request.
const MAX_PIECES: usize = 16;

/// Channel to the tool that requested the traces.
pub type TraceReceiver = mpsc::Sender<Result<TraceEvent, Status>>;

/// Too many requests are in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_REQUESTS} traces are already being collected; try again")]
pub struct TooManyTraces;

/// All requests in progress.
pub struct Traces {
    agents: Arc<AgentRegistry>,
    state: Mutex<OpenTraces>,
}

#[derive(Default)]
struct OpenTraces {
    last: u64,
    /// For each request, the channel for its agents' messages, each with a session number.
    open: BTreeMap<u64, mpsc::Sender<(u32, Traced)>>,
}

impl Traces {
    /// Returns a collector without requests.
    pub fn new(agents: Arc<AgentRegistry>) -> Traces {
        Traces { agents, state: Mutex::default() }
    }

    /// Requests traces from all agents and forwards them to `receiver`. Closes `receiver` once all
    /// agents have responded or are skipped.
    ///
    /// # Errors
    /// Returns an error if too many requests are in progress.
    pub fn start(
        self: &Arc<Traces>,
        request: TraceRequest,
        receiver: TraceReceiver,
    ) -> Result<(), TooManyTraces> {
        let (sender, pieces) = mpsc::channel(MAX_PIECES);
        let id = {
            let mut state = self.state.lock();
            if state.open.len() >= MAX_REQUESTS {
                return Err(TooManyTraces);
            }
            state.last += 1;
            let id = state.last;
            state.open.insert(id, sender);
            id
        };
        let (mut waiting, mut silent) = (BTreeMap::new(), Vec::new());
        for session in self.agents.all() {
            let name = session.agent.name.clone();
            let requested =
                !session.is_away() && session.send(Body::Trace(TraceRequest { id, ..request })).is_ok();
            match requested {
                true => drop(waiting.insert(session.number, name)),
                false => silent.push(name),
            }
        }
        let traces = self.clone();
        tokio::spawn(async move {
            collect(waiting, silent, pieces, &receiver).await;
            traces.state.lock().open.remove(&id);
        });
        Ok(())
    }

    /// Handles an agent's message.
    pub async fn receive(&self, session: &Session, traced: Traced) {
        let id = traced.id;
        let Some(open) = self.state.lock().open.get(&id).cloned() else {
            return debug!(id, "a trace that was no longer requested");
        };
        if open.send_timeout((session.number, traced), RECEIVER_TIMEOUT).await.is_err() {
            self.state.lock().open.remove(&id);
        }
    }
}

/// Forwards events until all agents have responded, no more arrive in time, or the receiver is
/// closed.
async fn collect(
    mut waiting: BTreeMap<u32, String>,
    mut silent: Vec<String>,
    mut pieces: mpsc::Receiver<(u32, Traced)>,
    receiver: &TraceReceiver,
) {
    while !waiting.is_empty() {
        let Ok(Some((from, traced))) = timeout(AGENT_TIMEOUT, pieces.recv()).await else { break };
        let Some(node) = waiting.get(&from).cloned() else { continue };
        if traced.end {
            waiting.remove(&from);
        }
        let event = TraceEvent { node, records: traced.records, silent: Vec::new() };
        if !event.records.is_empty() && receiver.send_timeout(Ok(event), RECEIVER_TIMEOUT).await.is_err() {
            return;
        }
    }
    silent.extend(waiting.into_values());
    // The tool may have disconnected.
    let _ = receiver.send_timeout(Ok(TraceEvent { silent, ..TraceEvent::default() }), RECEIVER_TIMEOUT).await;
}
