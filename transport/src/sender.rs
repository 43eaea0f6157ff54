//! The source's end of a stream.

use crate::machine::{Input, Output};
use crate::spec::{SpecError, StreamSpec};
use cool_machine::{Duration, Machine, Poll, Time};

/// The source of a stream: multicasts it, serves requests, and keeps it until all receivers have it.
#[derive(Debug)]
pub struct Sender {
    spec: StreamSpec,
}

impl Sender {
    /// Opens the stream; the message must be in its buffer.
    ///
    /// # Errors
    /// If the specification contradicts itself.
    pub fn new(now: Time, spec: StreamSpec) -> Result<Sender, SpecError> {
        let _ = now;
        spec.check()?;
        Ok(Sender { spec })
    }

    /// The retry timer as measured by now, for [`crate::Timers::initial_rto`] of the next stream.
    pub fn retry_timer(&self) -> Duration {
        self.spec.timers.initial_rto
    }
}

impl Machine for Sender {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, _now: Time, _input: Input<'_>) {}

    fn poll(&mut self, _now: Time) -> Poll<Output> {
        Poll::Idle(None)
    }
}
