//! The operations, started and not waited for. What each does is said where it waits: at [`Comm`].

use super::Comm;
use super::Pending;
use crate::call::{Arrays, Blocking, Collective};
use crate::element::Element;
use crate::error::Error;
use crate::{Op, Operation};
use std::time::Duration;

/// Starts calls; made by [`Comm::start`]. Each operation is as that of the same name at [`Comm`], but returns
/// when it has begun. Errors of arguments come at once, all others from [`Pending::wait`].
#[derive(Clone, Copy, Debug)]
pub struct Start<'c> {
    comm: &'c Comm,
    timeout: Option<Duration>,
    blocking: Blocking,
}

impl<'c> Start<'c> {
    pub(super) fn new(comm: &'c Comm, blocking: Blocking) -> Start<'c> {
        Start { comm, timeout: comm.timeout, blocking }
    }

    pub(super) fn parts(self) -> (&'c Comm, Option<Duration>, Blocking) {
        (self.comm, self.timeout, self.blocking)
    }

    /// Lets the call fail when it makes no progress for this long, in place of [`Comm::set_timeout`].
    pub fn timeout(self, timeout: Duration) -> Start<'c> {
        Start { timeout: Some(timeout), ..self }
    }

    /// Any operation, on arrays whose types are known only when the program runs.
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn collective<'a>(self, collective: Collective<'_, 'a>) -> Result<Pending<'a>, Error> {
        self.comm.inner.start(collective, self.timeout, self.blocking)
    }

    /// [`Comm::bcast`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn bcast<'a, T: Element>(self, data: &'a mut [T], root: usize) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            root,
            ..Collective::new(Operation::Bcast, Arrays::InPlace(data.into()))
        })
    }

    /// [`Comm::reduce`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::reduce_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::allreduce`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::allreduce_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn allreduce_in_place<'a, T: Element>(self, data: &'a mut [T], op: Op) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Allreduce, Arrays::InPlace(data.into()))
        })
    }

    /// [`Comm::reduce_scatter`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::reduce_scatter_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::reduce_scatter_counts`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::reduce_scatter_counts_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::scan`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn scan<'a, T: Element>(self, send: &[T], recv: &'a mut [T], op: Op) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Scan, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// [`Comm::scan_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn scan_in_place<'a, T: Element>(self, data: &'a mut [T], op: Op) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Scan, Arrays::InPlace(data.into()))
        })
    }

    /// [`Comm::exscan`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn exscan<'a, T: Element>(self, send: &[T], recv: &'a mut [T], op: Op) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Exscan, Arrays::Apart(Some(send.into()), Some(recv.into())))
        })
    }

    /// [`Comm::exscan_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn exscan_in_place<'a, T: Element>(self, data: &'a mut [T], op: Op) -> Result<Pending<'a>, Error> {
        self.collective(Collective {
            op: Some(op),
            ..Collective::new(Operation::Exscan, Arrays::InPlace(data.into()))
        })
    }

    /// [`Comm::gather`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::gather_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::gatherv`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::gatherv_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::allgather`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn allgather<'a, T: Element>(self, send: &[T], recv: &'a mut [T]) -> Result<Pending<'a>, Error> {
        self.collective(Collective::new(
            Operation::Allgather,
            Arrays::Apart(Some(send.into()), Some(recv.into())),
        ))
    }

    /// [`Comm::allgather_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn allgather_in_place<'a, T: Element>(self, data: &'a mut [T]) -> Result<Pending<'a>, Error> {
        self.collective(Collective::new(Operation::Allgather, Arrays::InPlace(data.into())))
    }

    /// [`Comm::allgatherv`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::allgatherv_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::scatter`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::scatter_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::scatterv`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::scatterv_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::alltoall`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn alltoall<'a, T: Element>(self, send: &[T], recv: &'a mut [T]) -> Result<Pending<'a>, Error> {
        self.collective(Collective::new(
            Operation::Alltoall,
            Arrays::Apart(Some(send.into()), Some(recv.into())),
        ))
    }

    /// [`Comm::alltoall_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
    pub fn alltoall_in_place<'a, T: Element>(self, data: &'a mut [T]) -> Result<Pending<'a>, Error> {
        self.collective(Collective::new(Operation::Alltoall, Arrays::InPlace(data.into())))
    }

    /// [`Comm::alltoallv`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::alltoallv_in_place`].
    ///
    /// # Errors
    /// If the arguments make no sense, or the agent is gone.
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

    /// [`Comm::barrier`].
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn barrier(self) -> Result<Pending<'static>, Error> {
        self.collective(Collective::new(Operation::Barrier, Arrays::None))
    }
}
