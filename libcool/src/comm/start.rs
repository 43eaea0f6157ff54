//! The operations in their non-blocking form. Each is documented at the method of [`Comm`] with the
//! same name.

use super::Comm;
use super::Pending;
use crate::call::{Arrays, CallBlocking, Collective};
use crate::element::Element;
use crate::error::Error;
use crate::{Op, Operation};
use std::time::Duration;

/// Starts calls. [`Comm::start`] returns it.
///
/// Each method corresponds to the method of [`Comm`] with the same name, but returns a [`Pending`]
/// once the call has started. Invalid arguments are reported at once, all other errors by
/// [`Pending::wait`]. If 1024 calls are pending, the method first waits until one of them
/// completes, but at most for the timeout. If another rank of the node blocks in the call already,
/// the method returns only when the call is complete.
#[derive(Clone, Copy, Debug)]
pub struct Start<'c> {
    comm: &'c Comm,
    timeout: Option<Duration>,
    blocking: CallBlocking,
}

impl<'c> Start<'c> {
    pub(super) fn new(comm: &'c Comm, blocking: CallBlocking) -> Start<'c> {
        Start { comm, timeout: comm.timeout, blocking }
    }

    pub(super) fn parts(self) -> (&'c Comm, Option<Duration>, CallBlocking) {
        (self.comm, self.timeout, self.blocking)
    }

    /// Sets the time without progress after which the call fails, instead of that of
    /// [`Comm::set_timeout`].
    pub fn timeout(self, timeout: Duration) -> Start<'c> {
        Start { timeout: Some(timeout), ..self }
    }

    /// Starts any operation, on arrays of types that are known only at run time.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn collective<'a>(self, collective: Collective<'_, 'a>) -> Result<Pending<'a>, Error> {
        self.comm.inner.start(collective, self.timeout, self.blocking)
    }

    /// Starts [`Comm::bcast`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn bcast<'a, T: Element>(self, data: &'a mut [T], root: usize) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            root,
            ..Collective::new(Operation::Bcast, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::reduce`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn reduce<'a, T: Element>(
        self,
        send: &[T],
        recv: &'a mut [T],
        op: Op,
        root: usize,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            root,
            op: Some(op),
            ..Collective::new(Operation::Reduce, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::reduce_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn reduce_in_place<'a, T: Element>(
        self,
        data: &'a mut [T],
        op: Op,
        root: usize,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            root,
            op: Some(op),
            ..Collective::new(Operation::Reduce, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::allreduce`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn allreduce<'a, T: Element>(
        self,
        send: &[T],
        recv: &'a mut [T],
        op: Op,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Allreduce, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::allreduce_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn allreduce_in_place<'a, T: Element>(self, data: &'a mut [T], op: Op) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Allreduce, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::reduce_scatter`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn reduce_scatter<'a, T: Element>(
        self,
        send: &[T],
        recv: &'a mut [T],
        op: Op,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::ReduceScatter, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::reduce_scatter_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn reduce_scatter_in_place<'a, T: Element>(
        self,
        data: &'a mut [T],
        op: Op,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::ReduceScatter, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::reduce_scatter_counts`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn reduce_scatter_counts<'a, T: Element>(
        self,
        send: &[T],
        recv: &'a mut [T],
        counts: &[usize],
        op: Op,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            counts: Some(counts),
            ..Collective::new(Operation::ReduceScatter, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::reduce_scatter_counts_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn reduce_scatter_counts_in_place<'a, T: Element>(
        self,
        data: &'a mut [T],
        counts: &[usize],
        op: Op,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            counts: Some(counts),
            op: Some(op),
            ..Collective::new(Operation::ReduceScatter, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::scan`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn scan<'a, T: Element>(self, send: &[T], recv: &'a mut [T], op: Op) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Scan, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::scan_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn scan_in_place<'a, T: Element>(self, data: &'a mut [T], op: Op) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Scan, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::exscan`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn exscan<'a, T: Element>(self, send: &[T], recv: &'a mut [T], op: Op) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Exscan, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::exscan_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn exscan_in_place<'a, T: Element>(self, data: &'a mut [T], op: Op) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Exscan, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::gather`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn gather<'a, T: Element>(
        self,
        send: &[T],
        recv: &'a mut [T],
        root: usize,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            root,
            ..Collective::new(Operation::Gather, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::gather_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn gather_in_place<'a, T: Element>(
        self,
        data: &'a mut [T],
        root: usize,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            root,
            ..Collective::new(Operation::Gather, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::gatherv`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn gatherv<'a, T: Element>(
        self,
        send: &[T],
        recv: &'a mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            root,
            counts: Some(counts),
            ..Collective::new(Operation::Gather, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::gatherv_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn gatherv_in_place<'a, T: Element>(
        self,
        data: &'a mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            counts: Some(counts),
            root,
            ..Collective::new(Operation::Gather, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::allgather`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn allgather<'a, T: Element>(self, send: &[T], recv: &'a mut [T]) -> Result<Pending<'a>, Error> {
        self.collective(Collective::new(
            Operation::Allgather,
            Arrays::Apart(Some(send.into()), Some(recv.into())),
        ))
    }

    /// Starts [`Comm::allgather_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn allgather_in_place<'a, T: Element>(self, data: &'a mut [T]) -> Result<Pending<'a>, Error> {
        self.collective(Collective::new(Operation::Allgather, Arrays::InPlace(data.into())))
    }

    /// Starts [`Comm::allgatherv`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn allgatherv<'a, T: Element>(
        self,
        send: &[T],
        recv: &'a mut [T],
        counts: &[usize],
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            counts: Some(counts),
            ..Collective::new(Operation::Allgather, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::allgatherv_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn allgatherv_in_place<'a, T: Element>(
        self,
        data: &'a mut [T],
        counts: &[usize],
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            counts: Some(counts),
            ..Collective::new(Operation::Allgather, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::scatter`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn scatter<'a, T: Element>(
        self,
        send: &[T],
        recv: &'a mut [T],
        root: usize,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            root,
            ..Collective::new(Operation::Scatter, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::scatter_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn scatter_in_place<'a, T: Element>(
        self,
        data: &'a mut [T],
        root: usize,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            root,
            ..Collective::new(Operation::Scatter, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::scatterv`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn scatterv<'a, T: Element>(
        self,
        send: &[T],
        recv: &'a mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            root,
            counts: Some(counts),
            ..Collective::new(Operation::Scatter, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::scatterv_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn scatterv_in_place<'a, T: Element>(
        self,
        data: &'a mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            counts: Some(counts),
            root,
            ..Collective::new(Operation::Scatter, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::alltoall`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn alltoall<'a, T: Element>(self, send: &[T], recv: &'a mut [T]) -> Result<Pending<'a>, Error> {
        self.collective(Collective::new(
            Operation::Alltoall,
            Arrays::Apart(Some(send.into()), Some(recv.into())),
        ))
    }

    /// Starts [`Comm::alltoall_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn alltoall_in_place<'a, T: Element>(self, data: &'a mut [T]) -> Result<Pending<'a>, Error> {
        self.collective(Collective::new(Operation::Alltoall, Arrays::InPlace(data.into())))
    }

    /// Starts [`Comm::alltoallv`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn alltoallv<'a, T: Element>(
        self,
        send: &[T],
        recv: &'a mut [T],
        counts: &[usize],
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            counts: Some(counts),
            ..Collective::new(Operation::Alltoall, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// Starts [`Comm::alltoallv_in_place`] and returns the pending call.
    ///
    /// # Errors
    /// If the arguments are invalid, or the agent is unreachable. Other errors are returned by
    /// [`Pending::wait`].
    pub fn alltoallv_in_place<'a, T: Element>(
        self,
        data: &'a mut [T],
        counts: &[usize],
    ) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            counts: Some(counts),
            ..Collective::new(Operation::Alltoall, Arrays::InPlace(data.into()))
        })
    }

    /// Starts [`Comm::barrier`] and returns the pending call.
    ///
    /// # Errors
    /// If the agent is unreachable. Other errors are returned by [`Pending::wait`].
    pub fn barrier(self) -> Result<Pending<'static>, Error> {
        self.collective(Collective::new(Operation::Barrier, Arrays::None))
    }
}
