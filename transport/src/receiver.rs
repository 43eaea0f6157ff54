//! A receiver of a stream.

use crate::machine::{Input, Output};
use crate::spec::{SpecError, StreamSpec};
use cool_machine::{Duration, Machine, Poll, Time};

/// A receiver of a stream: stores what comes, pulls what is missing, feeds the nodes behind it.
#[derive(Debug)]
pub struct Receiver {
    spec: StreamSpec,
}

impl Receiver {
    /// Opens the stream at a position of its chain; the buffer is as long as the message.
    ///
    /// # Errors
    /// If the specification contradicts itself.
    pub fn new(now: Time, spec: StreamSpec, me: u16) -> Result<Receiver, SpecError> {
        let _ = (now, me);
        spec.check()?;
        Ok(Receiver { spec })
    }

    /// The retry timer as measured by now, for [`crate::Timers::initial_rto`] of the next stream.
    pub fn retry_timer(&self) -> Duration {
        self.spec.timers.initial_rto
    }
}

impl Machine for Receiver {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, _now: Time, _input: Input<'_>) {}

    fn poll(&mut self, _now: Time) -> Poll<Output> {
        Poll::Idle(None)
    }
}
