//! A call under way: waited for, asked whether it is done, or awaited as a future.

use crate::collective::Checked;
use crate::comm::{Inner, Received};
use crate::element::divide;
use crate::error::Error;
use crate::session::Request;
use crate::{Op, Type};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A call that was started with [`Comm::start`](crate::Comm::start). The agents carry it out meanwhile; what was
/// to be sent may be changed at once, what is received is there after [`Pending::wait`], or after it was awaited
/// as a future, by any executor.
///
/// One that is dropped goes on without its result: at the other ranks it is done all the same.
#[derive(Debug)]
#[must_use = "what is received is there only after it was waited for"]
pub struct Pending<'a> {
    comm: Arc<Inner>,
    /// Absent if the call is done, or once the future has given its result.
    request: Option<Request>,
    output: Option<&'a mut [u8]>,
    /// To be divided by the number of ranks.
    average: Option<Type>,
    /// Of a message's elements.
    dtype: Option<Type>,
    /// The message that came, if it was waited for already.
    received: Received,
}

/// What [`Pending::received`] gives for what is no message.
const NO_MESSAGE: Received = Received { source: 0, tag: 0, count: 0 };

impl<'a> Pending<'a> {
    pub(crate) fn new(comm: Arc<Inner>, request: Request, checked: Checked<'_, 'a>) -> Pending<'a> {
        let average = checked.dtype.filter(|_| checked.op == Some(Op::Average));
        Pending {
            comm,
            request: Some(request),
            output: checked.into_output(),
            average,
            dtype: None,
            received: NO_MESSAGE,
        }
    }

    /// One that is done already.
    pub(crate) fn done(comm: Arc<Inner>, checked: Checked<'_, 'a>) -> Pending<'a> {
        let average = checked.dtype.filter(|_| checked.op == Some(Op::Average));
        if let Some((dtype, output)) = average.zip(checked.into_output()) {
            divide(dtype, output, comm.size());
        }
        Pending { comm, request: None, output: None, average: None, dtype: None, received: NO_MESSAGE }
    }

    pub(crate) fn of_message(
        comm: Arc<Inner>,
        request: Request,
        dtype: Type,
        output: Option<&'a mut [u8]>,
    ) -> Pending<'a> {
        Pending {
            comm,
            request: Some(request),
            output,
            average: None,
            dtype: Some(dtype),
            received: NO_MESSAGE,
        }
    }

    /// Waits until the call is done.
    ///
    /// # Errors
    /// If it failed.
    pub fn wait(mut self) -> Result<(), Error> {
        self.finish().map(drop)
    }

    /// Waits until the call is done; what came, if it is a [`recv`](crate::Comm::recv), else a message of nothing
    /// from rank 0.
    ///
    /// # Errors
    /// If it failed.
    pub fn received(mut self) -> Result<Received, Error> {
        self.finish()
    }

    /// Waits until the call is done, but at most so long: whether it is done. What is received is there then, and
    /// [`Pending::wait`] and [`Pending::received`] return at once. It can be called again and again, with waits as short as
    /// one likes (zero: what has come is looked at), by a program that has other work to look after while it waits.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// let mut sum = [0];
    /// let mut call = comm.start().allreduce(&[1], &mut sum, cool::Op::Sum)?;
    /// while !call.wait_for(std::time::Duration::from_micros(200))? {
    ///     // Look after what else there is.
    /// }
    /// call.wait()?;
    /// assert_eq!(sum, [4]);
    /// # Ok(())
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    ///
    /// # Errors
    /// If it failed. That is told once; the call counts as done afterwards.
    pub fn wait_for(&mut self, at_most: Duration) -> Result<bool, Error> {
        let Some(request) = &self.request else { return Ok(true) };
        if !request.wait_for(at_most)? {
            return Ok(false);
        }
        self.received = self.finish()?;
        Ok(true)
    }

    /// Whether [`Pending::wait`] would return at once.
    ///
    /// # Errors
    /// If this process was forked off the rank's.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.request.as_ref().map_or(Ok(true), |request| request.wait_for(Duration::ZERO))
    }

    fn finish(&mut self) -> Result<Received, Error> {
        let Some(request) = self.request.take() else { return Ok(self.received) };
        let mut output = self.output.take();
        let cost = request.finish(output.as_deref_mut())?;
        let received = cost.arrived.zip(self.dtype).map_or(NO_MESSAGE, |(arrived, dtype)| Received {
            source: arrived.source as usize,
            tag: arrived.tag,
            count: arrived.bytes as usize / dtype.bytes(),
        });
        if let (Some(dtype), Some(output)) = (self.average, output) {
            divide(dtype, output, self.comm.size());
        }
        self.comm.account(cost);
        Ok(received)
    }
}

impl Future for Pending<'_> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let done = self.request.as_ref().map_or(Ok(true), |request| request.poll(context.waker()));
        match done {
            Ok(true) => Poll::Ready(self.finish().map(drop)),
            Ok(false) => Poll::Pending,
            Err(e) => Poll::Ready(Err(e)),
        }
    }
}

/// Waits for all of some calls.
///
/// # Errors
/// If one failed: the first that did. The others are waited for all the same.
pub fn wait_all<'a>(calls: impl IntoIterator<Item = Pending<'a>>) -> Result<(), Error> {
    let mut first = Ok(());
    for call in calls {
        first = first.and(call.wait());
    }
    first
}
