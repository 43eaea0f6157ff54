//! Control of a job from outside: its time limit, and requests of operators and users.

use crate::groups::{MemberPlace, by_node};
use crate::jobs::errors::JobError;
use crate::jobs::job_failure::JobFailure;
use std::future::pending;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, sleep_until};

/// Exit status of a job that exceeded its time limit, as in timeout(1).
const TIMED_OUT: i32 = 124;
/// Exit status of a canceled job, as if killed by SIGTERM.
const CANCELED: i32 = 128 + 15;

/// A request of an operator or user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// End the job. Contains the name of the requesting user.
    Cancel(String),
    /// Send this signal to the job's processes.
    Signal(i32),
}

/// Receives the requests to one job and applies its time limit.
#[derive(Debug)]
pub struct JobControl {
    requests: mpsc::Receiver<ControlRequest>,
    /// End of the time limit, and its length.
    limit: Option<(Instant, Duration)>,
    /// Whether the job is already ending.
    disabled: bool,
}

impl JobControl {
    /// Returns a control without a time limit.
    pub fn new(requests: mpsc::Receiver<ControlRequest>) -> JobControl {
        JobControl { requests, limit: None, disabled: false }
    }

    /// Starts the time limit. Zero means no limit.
    pub(crate) fn start_time_limit(&mut self, limit: Duration) {
        let end = (!limit.is_zero()).then(|| Instant::now().checked_add(limit)).flatten();
        self.limit = end.map(|end| (end, limit));
    }

    /// Ignores the time limit and all further requests, signals included, because the job is
    /// ending.
    pub(crate) fn disable(&mut self) {
        self.disabled = true;
    }

    /// Waits for a reason to end the job, and forwards signals meanwhile. Cancel-safe.
    pub(crate) async fn wait_for_end(&mut self, job: u64, places: &[MemberPlace]) -> JobFailure {
        if self.disabled {
            pending::<()>().await;
        }
        loop {
            let request = tokio::select! {
                limit = expired(self.limit) => {
                    let reason = format!("it exceeded its time limit of {limit:?}");
                    return JobFailure { code: TIMED_OUT, ..JobFailure::new(reason) };
                }
                request = self.requests.recv() => request,
            };
            match request {
                Some(ControlRequest::Cancel(by)) => {
                    return JobFailure { code: CANCELED, ..JobFailure::new(format!("canceled by {by}")) };
                }
                Some(ControlRequest::Signal(signal)) => {
                    for (session, _) in by_node(places).into_values() {
                        // If the session has ended, the job is informed separately.
                        session.send_signal(job, signal);
                    }
                }
                None => return JobFailure::new("the controller dropped the job"),
            }
        }
    }
}

/// Adds a request to the queue of a job. A cancellation is always accepted, because signals do not
/// use the last place.
///
/// # Errors
/// Returns an error if too many signals are waiting, or if the job has ended.
pub(super) fn enqueue(
    requests: &mpsc::Sender<ControlRequest>,
    job: u64,
    request: ControlRequest,
) -> Result<(), JobError> {
    if matches!(request, ControlRequest::Signal(_)) && requests.capacity() <= 1 {
        return Err(JobError::Busy(job));
    }
    match requests.try_send(request) {
        // A full queue contains a cancellation already.
        Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
        Err(TrySendError::Closed(_)) => Err(JobError::NoJob(job)),
    }
}

async fn expired(limit: Option<(Instant, Duration)>) -> Duration {
    match limit {
        Some((end, limit)) => {
            sleep_until(end).await;
            limit
        }
        None => pending().await,
    }
}
