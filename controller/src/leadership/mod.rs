//! Which of several controllers leads: alone, always this one; of a pair, whoever the election in etcd lets. Who
//! does not lead stands by: it takes the connections of switches, says no more to them than that it is there, and serves nobody.

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

/// How long it may take to give the lease back: it ends by itself.
const RESIGN_WITHIN: Duration = Duration::from_secs(1);

/// Where a controller stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It stands by; somebody leads, if this is known.
    By(Option<String>),
    /// It leads, as this generation.
    Leads(u64),
    /// It has led.
    Lost(LeadershipLost),
    /// It has given up what it had.
    Resigned,
}

/// The part of this controller in the election.
#[derive(Debug)]
pub struct Leadership {
    standing: watch::Receiver<Standing>,
    resign: Option<oneshot::Sender<()>>,
}

impl Leadership {
    /// Stands for election as the options say, and as `name`; if nobody is to be asked, leads from now on.
    ///
    /// # Errors
    /// If the options are wrong.
    pub fn start(options: &LeadershipOptions, name: String) -> Result<Leadership, LeadershipOptionsError> {
        let Some(addresses) = &options.lead_by else {
            let standing = watch::channel(Standing::Leads(job_ids::now())).1;
            return Ok(Leadership { standing, resign: None });
        };
        let etcd = Etcd::new(options.connector(addresses)?, &options.lead_prefix, name);
        let (tell, standing) = watch::channel(Standing::By(None));
        let (resign, resigning) = oneshot::channel();
        tokio::spawn(stand(Election::new(options.ttl()), etcd, tell, resigning));
        Ok(Leadership { standing, resign: Some(resign) })
    }

    /// Where this controller stands.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Waits until this controller leads; as which generation.
    pub async fn won(&self) -> u64 {
        let mut standing = self.standing();
        let won = standing.wait_for(|standing| matches!(standing, Standing::Leads(_))).await;
        match won.as_deref() {
            Ok(Standing::Leads(generation)) => *generation,
            _ => pending().await,
        }
    }

    /// Waits until this controller may lead no more.
    pub async fn lost(&self) -> LeadershipLost {
        let mut standing = self.standing();
        let lost = standing.wait_for(|standing| matches!(standing, Standing::Lost(_))).await;
        match lost.as_deref() {
            Ok(Standing::Lost(why)) => why.clone(),
            _ => pending().await,
        }
    }

    /// Lets somebody else lead at once.
    pub async fn resign(mut self) {
        let Some(resign) = self.resign.take() else { return };
        // If it has ended, it has nothing to give back.
        let _ = resign.send(());
        let resigned = self.standing.wait_for(|standing| matches!(standing, Standing::Resigned));
        if timeout(RESIGN_WITHIN, resigned).await.is_err() {
            warn!("etcd has not taken the lease back within {RESIGN_WITHIN:?}; it ends by itself");
        }
    }
}

/// Drives the election to its end.
async fn stand(
    mut election: Election,
    etcd: Etcd,
    tell: watch::Sender<Standing>,
    mut resigning: oneshot::Receiver<()>,
) {
    let clock = Clock::start();
    let mut asking: Option<Pin<Box<dyn Future<Output = _> + Send + '_>>> = None;
    let mut resigns = false;
    let mut reachable = true;
    loop {
        let deadline = loop {
            match election.poll(clock.now()) {
                Poll::Output(Output::Ask(request, within)) => {
                    let etcd = &etcd;
                    asking = Some(Box::pin(async move { etcd.ask(&request, within).await }));
                }
                Poll::Output(output) => {
                    if let Some(end) = told(output, &tell) {
                        tell.send_replace(end);
                        return;
                    }
                }
                Poll::Idle(deadline) => break deadline,
            }
        };
        let answered = async {
            match &mut asking {
                Some(answer) => answer.await,
                None => pending().await,
            }
        };
        tokio::select! {
            answer = answered => {
                asking = None;
                match &answer {
                    Ok(_) if !reachable => info!("etcd answers again"),
                    // Said once, not at every try.
                    Err(why) if reachable => warn!("etcd does not answer: {why}; trying again"),
                    _ => {}
                }
                reachable = answer.is_ok();
                election.handle(clock.now(), Input::Answered(answer.ok()));
            }
            _ = &mut resigning, if !resigns => {
                resigns = true;
                election.handle(clock.now(), Input::Resign);
            }
            () = clock.wait(deadline) => {}
        }
    }
}

/// Tells what has become of the election; returns how it has ended.
fn told(output: Output, tell: &watch::Sender<Standing>) -> Option<Standing> {
    match output {
        Output::Ask(..) => {}
        Output::StandBy(leader) => {
            if let Some(leader) = &leader {
                info!(%leader, "standing by: {leader} leads");
            }
            tell.send_replace(Standing::By(leader));
        }
        Output::Lead(generation) => {
            info!(generation, "leading");
            tell.send_replace(Standing::Leads(generation));
        }
        Output::Lost(why) => {
            warn!(%why, "leading no more");
            return Some(Standing::Lost(why));
        }
        Output::Resigned => return Some(Standing::Resigned),
    }
    None
}
