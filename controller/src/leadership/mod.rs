//! Leadership among several controllers.
//!
//! A single controller always leads. Of a pair, the election in etcd determines the leader. A
//! standby controller accepts the connections of switches, takes no control of them, and serves no
//! agents and tools.

mod election;
mod etcd;
mod options;

use cool_daemon::clock::Clock;
use cool_machine::{Machine, Poll};
use cool_proto::job_ids;
pub use election::LeadershipLost;
use election::{Election, Input, Output};
use etcd::Etcd;
pub use options::{LeadershipOptions, LeadershipOptionsError};
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tracing::{info, warn};

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
}

impl Leadership {
    /// Starts the election under `name`. Without `--lead-by`, this controller leads immediately.
    ///
    /// # Errors
    /// Returns an error if the options contradict each other.
    pub fn start(options: &LeadershipOptions, name: String) -> Result<Leadership, LeadershipOptionsError> {
        let Some(addresses) = &options.lead_by else {
            let state = watch::channel(LeadershipState::Leading(job_ids::now())).1;
            return Ok(Leadership { state, resign: None });
        };
        let etcd = Etcd::new(options.connector(addresses)?, &options.lead_prefix, name);
        let (state_sender, state) = watch::channel(LeadershipState::Standby(None));
        let (resign, resigning) = oneshot::channel();
        tokio::spawn(run_election(Election::new(options.ttl()), etcd, state_sender, resigning));
        Ok(Leadership { state, resign: Some(resign) })
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

/// Drives the election until it ends.
async fn run_election(
    mut election: Election,
    etcd: Etcd,
    state_sender: watch::Sender<LeadershipState>,
    mut resigning: oneshot::Receiver<()>,
) {
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
                    if let Some(end) = announce(output, &state_sender) {
                        state_sender.send_replace(end);
                        return;
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
