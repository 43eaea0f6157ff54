//! Traces of the latest calls, asked of all agents and passed on as they come. Nothing of them is kept here.

use crate::agents::{Agents, Session};
use cool_proto::control::{TraceEvent, TraceRequest, Traced, controller_message::Body};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Status;
use tracing::debug;

/// How long agents, all together, may be silent before those that have not answered are given up.
const SILENCE: Duration = Duration::from_secs(5);
/// How long whoever asks may leave events unread; meanwhile agents wait that have more to say.
const UNREAD: Duration = Duration::from_secs(2);
/// Requests at once.
const REQUESTS: usize = 8;
/// Pieces of agents that wait to be passed on, for each request.
const PIECES: usize = 16;

/// To whoever asks.
pub type Asker = mpsc::Sender<Result<TraceEvent, Status>>;

/// There are too many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{REQUESTS} traces are being collected already; try again")]
pub struct Busy;

/// The traces that are being collected.
pub struct Traces {
    agents: Arc<Agents>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    /// By request: where what the session of a number says goes.
    open: BTreeMap<u64, mpsc::Sender<(u32, Traced)>>,
}

impl Traces {
    /// None yet.
    pub fn new(agents: Arc<Agents>) -> Traces {
        Traces { agents, state: Mutex::default() }
    }

    /// Asks all agents; what they say goes to `asker`, which is closed when all have answered or are given up.
    ///
    /// # Errors
    /// If too many ask.
    pub fn ask(self: &Arc<Traces>, request: TraceRequest, asker: Asker) -> Result<(), Busy> {
        let (sender, pieces) = mpsc::channel(PIECES);
        let id = {
            let mut state = self.state.lock();
            if state.open.len() >= REQUESTS {
                return Err(Busy);
            }
            state.last += 1;
            let id = state.last;
            state.open.insert(id, sender);
            id
        };
        let (mut waiting, mut silent) = (BTreeMap::new(), Vec::new());
        for session in self.agents.all() {
            let name = session.agent.name.clone();
            let asked =
                !session.is_away() && session.send(Body::Trace(TraceRequest { id, ..request })).is_ok();
            match asked {
                true => drop(waiting.insert(session.number, name)),
                false => silent.push(name),
            }
        }
        let traces = self.clone();
        tokio::spawn(async move {
            collect(waiting, silent, pieces, &asker).await;
            traces.state.lock().open.remove(&id);
        });
        Ok(())
    }

    /// An agent answers.
    pub async fn hear(&self, session: &Session, traced: Traced) {
        let id = traced.id;
        let Some(open) = self.state.lock().open.get(&id).cloned() else {
            return debug!(id, "a trace that nobody asks for any more");
        };
        if open.send_timeout((session.number, traced), UNREAD).await.is_err() {
            self.state.lock().open.remove(&id);
        }
    }
}

/// Passes on what agents say until all have answered, none says more, or nobody listens.
async fn collect(
    mut waiting: BTreeMap<u32, String>,
    mut silent: Vec<String>,
    mut pieces: mpsc::Receiver<(u32, Traced)>,
    asker: &Asker,
) {
    while !waiting.is_empty() {
        let Ok(Some((from, traced))) = timeout(SILENCE, pieces.recv()).await else { break };
        let Some(node) = waiting.get(&from).cloned() else { continue };
        if traced.end {
            waiting.remove(&from);
        }
        let event = TraceEvent { node, records: traced.records, silent: Vec::new() };
        if !event.records.is_empty() && asker.send_timeout(Ok(event), UNREAD).await.is_err() {
            return;
        }
    }
    silent.extend(waiting.into_values());
    // Whoever asked may have gone.
    let _ = asker.send_timeout(Ok(TraceEvent { silent, ..TraceEvent::default() }), UNREAD).await;
}
