//! Job control: what ends a job from outside, or reaches into it. The time limit, and requests of operators.

use crate::groups::{Place, by_node};
use crate::jobs::job::JobFailure;
use cool_proto::control::{SignalRequest, controller_message::Body};
use std::future::pending;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// The status of a job whose time is over, as timeout(1) has it.
const TIME_OVER: i32 = 124;
/// The status of a job that was cancelled: as if ended by SIGTERM.
const CANCELLED: i32 = 128 + 15;

/// What an operator wants of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// That it ends; who wants it.
    Cancel(String),
    /// That its processes get this signal.
    Signal(i32),
}

/// The requests and limits that reach one job from outside.
#[derive(Debug)]
pub struct JobControl {
    orders: mpsc::Receiver<ControlRequest>,
    /// When its time is over, and how much it was.
    limit: Option<(Instant, Duration)>,
    /// It ends already.
    ignored: bool,
}

impl JobControl {
    /// No time limit yet.
    pub fn new(orders: mpsc::Receiver<ControlRequest>) -> JobControl {
        JobControl { orders, limit: None, ignored: false }
    }

    /// The time that the job may take from now on; zero: as long as it wants.
    pub(crate) fn limit(&mut self, limit: Duration) {
        let end = (!limit.is_zero()).then(|| Instant::now().checked_add(limit)).flatten();
        self.limit = end.map(|end| (end, limit));
    }

    /// Nothing can end the job any more than it is.
    pub(crate) fn ignore(&mut self) {
        self.ignored = true;
    }

    /// Waits for a reason to end the job; signals are passed on meanwhile. May be dropped and called again.
    pub(crate) async fn stop(&mut self, job: u64, places: &[Place]) -> JobFailure {
        if self.ignored {
            pending::<()>().await;
        }
        loop {
            let order = tokio::select! {
                over = over(self.limit) => {
                    let reason = format!("its time limit of {over:?} is over");
                    return JobFailure { code: TIME_OVER, ..JobFailure::new(reason) };
                }
                order = self.orders.recv() => order,
            };
            match order {
                Some(ControlRequest::Cancel(by)) => {
                    return JobFailure { code: CANCELLED, ..JobFailure::new(format!("cancelled by {by}")) };
                }
                Some(ControlRequest::Signal(signal)) => {
                    for (session, _) in by_node(places).into_values() {
                        // If the agent is gone, the session's end says so to the job.
                        let _ = session.send(Body::Signal(SignalRequest { job, signal }));
                    }
                }
                None => return JobFailure::new("the job was dropped"),
            }
        }
    }
}

async fn over(limit: Option<(Instant, Duration)>) -> Duration {
    match limit {
        Some((end, limit)) => {
            sleep_until(end).await;
            limit
        }
        None => pending().await,
    }
}
