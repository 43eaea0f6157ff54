//! The failure of a job.

/// The failure that ends a job: its exit status, the rank that failed first, and the reason.
#[derive(Debug)]
pub(crate) struct JobFailure {
    pub(crate) code: i32,
    pub(crate) rank: Option<u32>,
    pub(crate) reason: String,
}

impl JobFailure {
    pub(crate) fn new(reason: impl Into<String>) -> JobFailure {
        JobFailure { code: 1, rank: None, reason: reason.into() }
    }
}
