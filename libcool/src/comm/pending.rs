//! A call that was started: it can be waited for, polled, or awaited as a future.

use super::started_fold::StartedFold;
use super::{Received, SharedComm};
use crate::call::CheckedCollective;
use crate::element::divide;
use crate::error::{Error, FailureKind};
use crate::session::AgentRequest;
use crate::{Op, PairType, Type};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A call that was started with [`Comm::start`](crate::Comm::start).
///
/// The agents execute the call in the background. The program may change the sent data at once.
/// Received data is available after [`Pending::wait`] returns, or after the value was awaited as a
/// future by any executor.
///
/// Dropping a `Pending` discards its result. The call is still executed, and completes at the other
/// ranks.
#[derive(Debug)]
#[must_use = "what is received is there only after it was waited for"]
pub struct Pending<'a> {
    comm: Arc<SharedComm>,
    /// The request to the agent, or `None` once the call is complete or its result was returned.
    request: Option<AgentRequest>,
    output: Option<&'a mut [u8]>,
    /// Final step on the received data.
    last_step: Option<LastStep>,
    /// Element type, for messages.
    dtype: Option<Type>,
    /// The received message, once the call was waited for.
    received: Received,
    /// State of a reduction by a function of the program.
    folding: Option<StartedFold<'a>>,
}

/// Final step of a rank on the data that the agents combined.
#[derive(Clone, Copy, Debug)]
enum LastStep {
    /// Division by the number of ranks.
    Average(Type),
    /// Conversion to pairs.
    Pairs(PairType),
}

impl LastStep {
    fn for_call(checked: &CheckedCollective<'_, '_>) -> Option<LastStep> {
        let average = checked.dtype.filter(|_| checked.op == Some(Op::Average)).map(LastStep::Average);
        checked.pairs.map(LastStep::Pairs).or(average)
    }

    fn apply(self, output: &mut [u8], ranks: usize) {
        match self {
            LastStep::Average(dtype) => divide(dtype, output, ranks),
            LastStep::Pairs(pairs) => pairs.decode(output),
        }
    }
}

/// Returned by [`Pending::received`] for calls that are not receives.
const NO_MESSAGE: Received = Received { source: 0, tag: 0, count: 0 };

impl<'a> Pending<'a> {
    pub(crate) fn new(
        comm: Arc<SharedComm>,
        request: AgentRequest,
        checked: CheckedCollective<'_, 'a>,
    ) -> Pending<'a> {
        let last_step = LastStep::for_call(&checked);
        Pending {
            comm,
            request: Some(request),
            output: checked.into_output(),
            last_step,
            dtype: None,
            received: NO_MESSAGE,
            folding: None,
        }
    }

    /// Returns a call that is already complete.
    pub(crate) fn done(comm: Arc<SharedComm>, checked: CheckedCollective<'_, 'a>) -> Pending<'a> {
        if let Some((last_step, output)) = LastStep::for_call(&checked).zip(checked.into_output()) {
            last_step.apply(output, comm.size());
        }
        Pending::complete(comm)
    }

    fn complete(comm: Arc<SharedComm>) -> Pending<'a> {
        let (last_step, received, folding) = (None, NO_MESSAGE, None);
        Pending { comm, request: None, output: None, last_step, dtype: None, received, folding }
    }

    /// Returns a reduction by a function of the program, for which all vectors have arrived.
    pub(crate) fn folded(
        comm: Arc<SharedComm>,
        folding: StartedFold<'a>,
        checked: CheckedCollective<'_, 'a>,
    ) -> Pending<'a> {
        let last_step = LastStep::for_call(&checked);
        if let Some(output) = checked.into_output() {
            folding.finish(output);
            last_step.into_iter().for_each(|step| step.apply(output, comm.size()));
        }
        Pending::complete(comm)
    }

    pub(crate) fn for_message(
        comm: Arc<SharedComm>,
        request: AgentRequest,
        dtype: Type,
        output: Option<&'a mut [u8]>,
    ) -> Pending<'a> {
        let (last_step, received, folding) = (None, NO_MESSAGE, None);
        Pending { comm, request: Some(request), output, last_step, dtype: Some(dtype), received, folding }
    }

    pub(crate) fn folding(
        comm: Arc<SharedComm>,
        request: AgentRequest,
        folding: StartedFold<'a>,
        checked: CheckedCollective<'_, 'a>,
    ) -> Pending<'a> {
        Pending { folding: Some(folding), ..Pending::new(comm, request, checked) }
    }

    /// Waits until the call is complete.
    ///
    /// # Errors
    /// If the call failed.
    pub fn wait(mut self) -> Result<(), Error> {
        self.finish().map(drop)
    }

    /// Waits until the call is complete and returns the received message. For calls other than
    /// [`recv`](crate::Comm::recv), returns a message of 0 elements from rank 0.
    ///
    /// # Errors
    /// If the call failed.
    pub fn received(mut self) -> Result<Received, Error> {
        self.finish()
    }

    /// Waits until the call is complete, but at most for `at_most`. Returns whether it is complete.
    ///
    /// Once it has returned `true`, received data is available, and [`Pending::wait`] and
    /// [`Pending::received`] return at once. A program with other work can call this repeatedly
    /// with short waits; a wait of zero only polls.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// let mut sum = [0];
    /// let mut call = comm.start().allreduce(&[1], &mut sum, cool::Op::Sum)?;
    /// while !call.wait_for(std::time::Duration::from_micros(200))? {
    ///     // Do other work here.
    /// }
    /// call.wait()?;
    /// assert_eq!(sum, [4]);
    /// # Ok(())
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the call failed. The error is returned once; the call counts as complete afterwards.
    pub fn wait_for(&mut self, at_most: Duration) -> Result<bool, Error> {
        let Some(request) = &self.request else { return Ok(true) };
        if !request.wait_for(at_most)? {
            return Ok(false);
        }
        self.received = self.finish()?;
        Ok(true)
    }

    /// Cancels a [`recv`](crate::Comm::recv). Returns `None` if the receive was canceled, or the
    /// message if one had already matched it, as [`Pending::received`].
    ///
    /// # Errors
    /// If the call is not a receive, if it has failed, or if the agent is of an earlier release. A
    /// call that has not failed continues, but its result is lost.
    pub fn cancel(mut self) -> Result<Option<Received>, Error> {
        let receives = self.dtype.is_some() && self.output.is_some();
        match self.request.as_ref().filter(|_| receives) {
            Some(request) => {
                self.comm.check_probes("cancel")?;
                request.cancel()?;
            }
            None => {
                return Err(self.comm.argument_error("cancel", "only a receive can be cancelled".to_owned()));
            }
        }
        match self.finish() {
            Ok(received) => Ok(Some(received)),
            Err(Error::Collective { failure: FailureKind::Cancelled, .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Returns whether [`Pending::wait`] would return at once.
    ///
    /// # Errors
    /// If this process was forked from the process of the rank.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.request.as_ref().map_or(Ok(true), |request| request.wait_for(Duration::ZERO))
    }

    /// Returns whether the call is complete. Otherwise the last waker that was passed is woken on
    /// completion.
    pub(crate) fn wake_when_done(&self, waker: &Waker) -> Result<bool, Error> {
        self.request.as_ref().map_or(Ok(true), |request| request.poll(waker))
    }

    fn finish(&mut self) -> Result<Received, Error> {
        let Some(request) = self.request.take() else { return Ok(self.received) };
        let (mut output, mut folding) = (self.output.take(), self.folding.take());
        let cost = match &mut folding {
            Some(folding) => request.finish(Some(folding.vectors()))?,
            None => request.finish(output.as_deref_mut())?,
        };
        if let (Some(folding), Some(output)) = (folding, output.as_deref_mut()) {
            folding.finish(output);
        }
        let received = cost.arrived.zip(self.dtype).map_or(NO_MESSAGE, |(arrived, dtype)| Received {
            source: arrived.source as usize,
            tag: arrived.tag,
            count: arrived.bytes as usize / dtype.bytes(),
        });
        if let (Some(last_step), Some(output)) = (self.last_step, output) {
            last_step.apply(output, self.comm.size());
        }
        self.comm.account(cost);
        Ok(received)
    }
}

impl Future for Pending<'_> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self.wake_when_done(context.waker()) {
            Ok(true) => Poll::Ready(self.finish().map(drop)),
            Ok(false) => Poll::Pending,
            Err(e) => Poll::Ready(Err(e)),
        }
    }
}

/// Waits for all of several calls.
///
/// # Errors
/// If any call failed, returns the first error, after all calls have completed.
pub fn wait_all<'a>(calls: impl IntoIterator<Item = Pending<'a>>) -> Result<(), Error> {
    let mut first = Ok(());
    for call in calls {
        first = first.and(call.wait());
    }
    first
}
