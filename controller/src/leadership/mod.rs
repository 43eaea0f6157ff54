//! Leadership among several controllers.
//!
//! A single controller always leads. Of a pair, the election in etcd determines the leader. A
//! standby controller accepts the connections of switches, takes no control of them, and serves no
//! agents and tools.

mod election;
mod etcd;
mod last_generation;
mod options;
pub mod state_store;

use cool_daemon::clock::Clock;
use cool_machine::{Machine, Poll};
use cool_proto::job_ids;
pub use election::LeadershipLost;
use election::{Election, Input, Output};
use etcd::Etcd;
pub use options::{LeadershipOptions, LeadershipOptionsError};
use state_store::{PairStore, StateStore};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// Time within which the core of the controller must answer. A leader that hangs must not keep the
/// leadership, because nothing else would end it without a service manager.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which the core is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long revoking the lease may take. Otherwise the lease expires.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(1);

/// Role of a controller in the election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeadershipState {
    /// Standby. Contains the name of the leader, if known.
    Standby(Option<String>),
    /// Leader with this generation.
    Leading(u64),
    /// No longer the leader.
    Lost(LeadershipLost),
    /// Resigned at shutdown.
    Resigned,
}

/// This controller's participation in the election.
#[derive(Debug)]
pub struct Leadership {
    state: watch::Receiver<LeadershipState>,
    resign: Option<oneshot::Sender<()>>,
    store: StateStore,
}

impl Leadership {
    /// Starts the election under `name`. Without `--lead-by`, this controller leads immediately. A
    /// member of a pair loses the leadership if `check`, which must complete while the core of the
    /// controller works, takes too long.
    ///
    /// # Errors
    /// Returns an error if the options contradict each other.
    pub fn start<F>(
        options: &LeadershipOptions,
        name: String,
        check: impl Fn() -> F + Send + 'static,
    ) -> Result<Leadership, LeadershipOptionsError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(addresses) = &options.lead_by else {
            let generation = last_generation::next(options.state.as_deref(), job_ids::now());
            let state = watch::channel(LeadershipState::Leading(generation)).1;
            let store = options.state.clone().map_or(StateStore::Volatile, StateStore::Directory);
            return Ok(Leadership { state, resign: None, store });
        };
        let etcd = Arc::new(Etcd::new(options.connector(addresses)?, &options.lead_prefix, name));
        let store = StateStore::Pair(Arc::new(PairStore(etcd.clone())));
        let (state_sender, state) = watch::channel(LeadershipState::Standby(None));
        let (resign, resigning) = oneshot::channel();
        let election = Election::new(options.ttl());
        tokio::spawn(async move {
            let hung = async {
                until_hung(check, HANG_TIMEOUT, CHECK_INTERVAL).await;
                LeadershipState::Lost(LeadershipLost::Hung(HANG_TIMEOUT))
            };
            // Without further renewals, the lease expires and another controller leads.
            let end = tokio::select! {
                end = run_election(election, etcd, &state_sender, resigning) => end,
                hung = hung => {
                    warn!("the core of this controller hangs; giving up the leadership");
                    hung
                }
            };
            state_sender.send_replace(end);
        });
        Ok(Leadership { state, resign: Some(resign), store })
    }

    /// Returns the place of state for later runs.
    pub fn store(&self) -> StateStore {
        self.store.clone()
    }

    /// Returns the current role and its changes.
    pub fn state(&self) -> watch::Receiver<LeadershipState> {
        self.state.clone()
    }

    /// Waits until this controller leads. Returns its generation.
    pub async fn won(&self) -> u64 {
        let mut state = self.state();
        let won = state.wait_for(|state| matches!(state, LeadershipState::Leading(_))).await;
        match won.as_deref() {
            Ok(LeadershipState::Leading(generation)) => *generation,
            _ => pending().await,
        }
    }

    /// Waits until this controller must stop leading.
    pub async fn lost(&self) -> LeadershipLost {
        let mut state = self.state();
        let lost = state.wait_for(|state| matches!(state, LeadershipState::Lost(_))).await;
        match lost.as_deref() {
            Ok(LeadershipState::Lost(why)) => why.clone(),
            _ => pending().await,
        }
    }

    /// Gives up the leadership, so that another controller can lead immediately.
    pub async fn resign(mut self) {
        let Some(resign) = self.resign.take() else { return };
        // If the election has ended, there is no lease to revoke.
        let _ = resign.send(());
        let resigned = self.state.wait_for(|state| matches!(state, LeadershipState::Resigned));
        if timeout(RESIGN_TIMEOUT, resigned).await.is_err() {
            warn!("etcd did not revoke the lease within {RESIGN_TIMEOUT:?}; it will expire");
        }
    }
}

/// Returns when a check has taken longer than `limit`. The next one begins `interval` after the
/// last.
async fn until_hung<F: Future<Output = ()>>(check: impl Fn() -> F, limit: Duration, interval: Duration) {
    while timeout(limit, check()).await.is_ok() {
        sleep(interval).await;
    }
}

/// Drives the election until it ends. Returns the final state.
async fn run_election(
    mut election: Election,
    etcd: Arc<Etcd>,
    state_sender: &watch::Sender<LeadershipState>,
    mut resigning: oneshot::Receiver<()>,
) -> LeadershipState {
    let clock = Clock::start();
    let mut in_flight: Option<Pin<Box<dyn Future<Output = _> + Send + '_>>> = None;
    let mut resigns = false;
    let mut reachable = true;
    loop {
        let deadline = loop {
            match election.poll(clock.now()) {
                Poll::Output(Output::Send(request, within)) => {
                    let etcd = &etcd;
                    in_flight = Some(Box::pin(async move { etcd.send(&request, within).await }));
                }
                Poll::Output(output) => {
                    if let Some(end) = announce(output, state_sender) {
                        return end;
                    }
                }
                Poll::Idle(deadline) => break deadline,
            }
        };
        let response = async {
            match &mut in_flight {
                Some(result) => result.await,
                None => pending().await,
            }
        };
        tokio::select! {
            result = response => {
                in_flight = None;
                match &result {
                    Ok(_) if !reachable => info!("etcd responds again"),
                    // Log this once, not at every attempt.
                    Err(why) if reachable => warn!("etcd does not respond: {why}; retrying"),
                    _ => {}
                }
                reachable = result.is_ok();
                election.handle(clock.now(), Input::Responded(result.ok()));
            }
            _ = &mut resigning, if !resigns => {
                resigns = true;
                election.handle(clock.now(), Input::Resign);
            }
            () = clock.wait(deadline) => {}
        }
    }
}

/// Publishes an output of the election. Returns the final state if it was the last one.
fn announce(output: Output, state_sender: &watch::Sender<LeadershipState>) -> Option<LeadershipState> {
    match output {
        Output::Send(..) => {}
        Output::StandBy(leader) => {
            if let Some(leader) = &leader {
                info!(%leader, "standing by: {leader} leads");
            }
            state_sender.send_replace(LeadershipState::Standby(leader));
        }
        Output::Lead(generation) => {
            info!(generation, "leading");
            state_sender.send_replace(LeadershipState::Leading(generation));
        }
        Output::Lost(why) => {
            warn!(%why, "leadership lost");
            return Some(LeadershipState::Lost(why));
        }
        Output::Resigned => return Some(LeadershipState::Resigned),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn a_core_that_stops_answering_hangs() {
        let answers = Cell::new(3);
        let check = || {
            answers.set(answers.get() - 1);
            let hangs = answers.get() == 0;
            async move {
                if hangs {
                    pending::<()>().await;
                }
            }
        };
        until_hung(check, Duration::from_millis(50), Duration::ZERO).await;
        assert_eq!(answers.get(), 0, "it answered twice before");
    }
}
