//! An attached rank: its shared memory and its open calls. Converts its frames to requests of the
//! engine.

use super::session_end::SessionEnd;
use super::user::{CallPermit, ConnectionPermit};
use crate::agent::Attachment;
use crate::engine::{
    CommandPermit, MappedCallRequest, MappedTransferRequest, Mapping, RankCommand, RankRequest, SharedSlice,
    WatchReport,
};
use cool_engine::TransferKind;
use cool_proto::local::{
    Call, Done, Dtype, Failure, Operation, Probe, ReduceOp, Slice, Stats, Transfer, Watched,
    frame::Body,
    watched::{Differs, Overdue, StillWaits, Through, What},
};
use cool_shm::region::{Region, RegionError};
use cool_types::limits::{ALLTOALL_RANKS, OPEN_CALLS, WAITING_CALLS};
use cool_types::{ElementType, Operation as Collective};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Maximum number of regions of a rank. libcool uses few, because each new region is as large as
/// all earlier ones together.
const MAX_REGIONS: usize = 64;

/// The size of a count in shared memory.
pub(super) const COUNT_BYTES: u64 = size_of::<u64>() as u64;

/// Maximum timeout of a transfer in milliseconds: one year.
const LONGEST_MS: u64 = 365 * 24 * 60 * 60 * 1000;

/// An attached rank: its memory and its open calls.
pub(super) struct AttachedRank<'a> {
    attachment: &'a Attachment,
    permit: &'a ConnectionPermit,
    regions: BTreeMap<u32, Arc<Mapping>>,
    /// The calls that have not been answered to the rank. The permits count answers that the rank
    /// does not read, too.
    pub(super) calls: JoinSet<(Done, CallPermit)>,
    /// The number of each watched call in its group, by the `id` that the rank has given to the
    /// call.
    watched: BTreeMap<u64, u64>,
}

impl<'a> AttachedRank<'a> {
    pub(super) fn new(attachment: &'a Attachment, permit: &'a ConnectionPermit) -> AttachedRank<'a> {
        let (regions, calls, watched) = (BTreeMap::new(), JoinSet::new(), BTreeMap::new());
        AttachedRank { attachment, permit, regions, calls, watched }
    }

    /// Handles a frame. `permit` is for the command that the engine may receive because of it.
    pub(super) fn handle(
        &mut self,
        body: Body,
        permit: CommandPermit,
        descriptors: &mut VecDeque<OwnedFd>,
    ) -> Result<(), SessionEnd> {
        match body {
            Body::Map(map) => {
                let descriptor = descriptors
                    .pop_front()
                    .ok_or_else(|| SessionEnd::Refused("Map without its descriptor".into()))?;
                self.map(map.region, map.bytes, descriptor)
            }
            Body::Unmap(unmap) => match self.regions.remove(&unmap.region) {
                Some(_) => Ok(()),
                None => Err(no_region(unmap.region)),
            },
            Body::Call(call) => self.call(call, permit),
            Body::Watched(watched) => self.watched(watched, permit),
            Body::Transfer(transfer) => self.transfer(&transfer, permit),
            Body::Cancel(cancel) => {
                self.attachment.command(RankCommand::Cancel { id: cancel.id }, permit);
                Ok(())
            }
            Body::Revoke(revoke) => {
                self.attachment.command(RankCommand::Revoke { cause: revoke.cause }, permit);
                Ok(())
            }
            Body::Attach(_) | Body::Enlist(_) | Body::Recover(_) => {
                Err(SessionEnd::Refused("a second Attach".into()))
            }
            // The session handles these itself.
            Body::CheckPlan(_) | Body::Leave(_) => Ok(()),
            Body::Attached(_)
            | Body::Done(_)
            | Body::Refused(_)
            | Body::Running(_)
            | Body::Recovered(_)
            | Body::PlanChecked(_) => Err(SessionEnd::Refused("a frame that only agents send".into())),
        }
    }

    fn map(&mut self, number: u32, bytes: u64, descriptor: OwnedFd) -> Result<(), SessionEnd> {
        if self.regions.len() >= MAX_REGIONS {
            return Err(SessionEnd::Refused(format!("more than {MAX_REGIONS} regions")));
        }
        if self.regions.contains_key(&number) {
            return Err(SessionEnd::Refused(format!("region {number} is mapped already")));
        }
        let permit = self.permit.region(bytes).map_err(SessionEnd::Refused)?;
        let pages = Region::open_pages(descriptor, bytes)
            .map_err(|e: RegionError| SessionEnd::Refused(e.to_string()))?;
        self.regions.insert(number, Arc::new(Mapping::from_region(pages, permit)));
        Ok(())
    }

    fn call(&mut self, call: Call, permit: CommandPermit) -> Result<(), SessionEnd> {
        self.check_room()?;
        let operation = operation(&call)?;
        let counts = call.counts.as_ref().map_or(0, |slice| self.counts_copied(operation, slice.bytes));
        let memory = self.permit.call(counts).map_err(SessionEnd::Refused)?;
        let (id, request) = (call.id, self.request(call, operation)?);
        if request.watch {
            return self.watch(id, request, (permit, memory));
        }
        self.spawn(id, request.into(), (permit, memory));
        Ok(())
    }

    /// Starts a watched call, which the ranks execute themselves.
    fn watch(
        &mut self,
        id: u64,
        request: MappedCallRequest,
        (permit, memory): (CommandPermit, CallPermit),
    ) -> Result<(), SessionEnd> {
        let number = self.attachment.segment().and(request.call_number);
        let number =
            number.ok_or_else(|| SessionEnd::Refused("a watched call without segment or number".into()))?;
        if self.watched.insert(id, number).is_some() {
            return Err(SessionEnd::Refused(format!("call {id} is watched already")));
        }
        let result = self.attachment.watch(request, permit);
        self.calls.spawn(async move {
            let done = match result.await {
                Ok(by_agent) => Done { id, by_agent, ..Done::default() },
                Err(failure) => done(id, Err(failure)),
            };
            (done, memory)
        });
        Ok(())
    }

    /// Passes a rank's report on a watched call to the engine. The report is ignored if the engine
    /// has answered the call meanwhile.
    fn watched(&self, Watched { id, what }: Watched, permit: CommandPermit) -> Result<(), SessionEnd> {
        let size = self.attachment.places().len() as u32;
        let of_group = |rank: u32| match rank < size {
            true => Ok(rank),
            false => Err(SessionEnd::Refused(format!("the report names rank {rank} of a group of {size}"))),
        };
        let report = match what {
            Some(What::StillWaits(StillWaits {})) => WatchReport::StillWaits,
            Some(What::Through(Through {})) => WatchReport::Completed,
            Some(What::Overdue(Overdue { ranks, timeout_ms })) => WatchReport::Overdue {
                ranks: ranks.into_iter().map(of_group).collect::<Result<_, SessionEnd>>()?,
                timeout: Duration::from_millis(timeout_ms.clamp(1, LONGEST_MS)),
            },
            Some(What::Differs(Differs { rank, text })) => {
                WatchReport::Differs { rank: of_group(rank)?, text }
            }
            None => return Err(SessionEnd::Refused("an empty report of a watched call".into())),
        };
        if let Some(number) = self.watched.get(&id) {
            self.attachment.command(RankCommand::Watched { call_number: *number, report }, permit);
        }
        Ok(())
    }

    /// Handles the reply to a call. The rank of a watched call must be woken, because it waits in
    /// the segment and not at its connection.
    pub(super) fn on_answered(&mut self, id: u64) {
        if let Some((_, segment)) = self.watched.remove(&id).zip(self.attachment.segment()) {
            segment.notify_reply(self.attachment.rank(), id.wrapping_add(1));
        }
    }

    /// Ends all watched calls of a rank that leaves, by reporting them as completed.
    pub(super) async fn leave_watched_calls(&self) {
        for number in self.watched.values() {
            let report = WatchReport::Completed;
            let command = RankCommand::Watched { call_number: *number, report };
            self.attachment.command(command, self.permit.command().await);
        }
    }

    fn transfer(&mut self, transfer: &Transfer, permit: CommandPermit) -> Result<(), SessionEnd> {
        self.check_room()?;
        let memory = self.permit.call(0).map_err(SessionEnd::Refused)?;
        let (id, request) = (transfer.id, self.transfer_request(transfer)?);
        self.spawn(id, request.into(), (permit, memory));
        Ok(())
    }

    /// Sends a request to the engine. The result is sent to the rank with the `id` that the rank
    /// has given to the request.
    fn spawn(
        &mut self,
        id: u64,
        request: RankRequest<SharedSlice>,
        (permit, memory): (CommandPermit, CallPermit),
    ) {
        let result = self.attachment.request(request, permit);
        self.calls.spawn(async move { (done(id, result.await), memory) });
    }

    fn check_room(&self) -> Result<(), SessionEnd> {
        const MOST: usize = OPEN_CALLS + WAITING_CALLS;
        match self.calls.len() {
            MOST.. => Err(SessionEnd::Refused(format!("more than {MOST} calls open"))),
            _ => Ok(()),
        }
    }

    fn check_group(&self, group: u64) -> Result<(), SessionEnd> {
        let (own, rank) = (self.attachment.group(), self.attachment.rank());
        if group == own {
            return Ok(());
        }
        Err(SessionEnd::Refused(format!("a call on group {group}, but rank {rank} is of group {own}")))
    }

    /// Converts a transfer to a request of the engine.
    fn transfer_request(&self, transfer: &Transfer) -> Result<MappedTransferRequest, SessionEnd> {
        self.check_group(transfer.group)?;
        let (peer, tag) = (transfer.peer, transfer.tag);
        if transfer.send && (peer.is_none() || tag.is_none()) {
            return Err(SessionEnd::Refused("a send needs one rank and one tag".into()));
        }
        let kind = transfer_kind(transfer)?;
        let (element, data) = match kind {
            TransferKind::Probe | TransferKind::ProbeNow => (ElementType::U8, None),
            _ => {
                let data =
                    transfer.data.ok_or_else(|| SessionEnd::Refused("a message without data".into()))?;
                (element(transfer.dtype)?, Some(self.slice(data)?))
            }
        };
        Ok(MappedTransferRequest {
            group: transfer.group,
            rank: self.attachment.rank(),
            kind,
            id: transfer.id,
            peer,
            tag,
            element,
            data,
            timeout: Duration::from_millis(transfer.timeout_ms.clamp(1, LONGEST_MS)),
        })
    }

    /// Converts a call to a request of the engine, which checks that the fields are consistent.
    fn request(&self, call: Call, operation: Collective) -> Result<MappedCallRequest, SessionEnd> {
        let (group, rank) = (self.attachment.group(), self.attachment.rank());
        self.check_group(call.group)?;
        let reduce = ReduceOp::try_from(call.reduce).map_err(|e| unknown("reduction", e.0))?.known();
        Ok(MappedCallRequest {
            group,
            rank,
            operation,
            root: call.root,
            // A barrier has no elements and names no type.
            element: if operation == Collective::Barrier { ElementType::U8 } else { element(call.dtype)? },
            reduce,
            count: call.count,
            counts: call.counts.map(|slice| self.counts(slice, operation)).transpose()?,
            plan: call.plan,
            input: call.input.map(|s| self.slice(s)).transpose()?,
            output: call.output.map(|s| self.slice(s)).transpose()?,
            timeout: (call.timeout_ms > 0).then(|| Duration::from_millis(call.timeout_ms)),
            call_number: call.number,
            watch: call.watch,
            background: call.background,
        })
    }

    /// Returns the number of elements of each part, copied because the rank may change the memory
    /// meanwhile. If there are more counts than any call needs, returns one more than needed, so
    /// that the engine refuses the call.
    fn counts(&self, slice: Slice, operation: Collective) -> Result<Vec<u64>, SessionEnd> {
        let slice = self.slice(slice)?;
        let mut bytes = vec![0; (self.counts_copied(operation, slice.bytes()) * COUNT_BYTES) as usize];
        slice.read(0, &mut bytes);
        Ok(bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes).collect())
    }

    /// Returns how many counts of a slice of this length are copied.
    fn counts_copied(&self, operation: Collective, slice_bytes: u64) -> u64 {
        let most = counts_max(operation, self.attachment.places().len()).saturating_add(1);
        (slice_bytes / COUNT_BYTES).min(most)
    }

    fn slice(&self, slice: Slice) -> Result<SharedSlice, SessionEnd> {
        let region = self.regions.get(&slice.region).ok_or_else(|| no_region(slice.region))?;
        SharedSlice::new(region.clone(), slice.offset, slice.bytes)
            .map_err(|e| SessionEnd::Refused(e.to_string()))
    }
}

/// Returns the maximum number of counts of a call in a group of `size` ranks. A larger group than
/// an alltoall supports has no more than one for each rank, so that the copy of the counts stays
/// small.
fn counts_max(operation: Collective, size: usize) -> u64 {
    let is_by_pair = operation == Collective::Alltoall && size <= ALLTOALL_RANKS;
    (if is_by_pair { size.saturating_mul(size) } else { size }) as u64
}

fn operation(call: &Call) -> Result<Collective, SessionEnd> {
    let operation = Operation::try_from(call.operation).ok().and_then(Operation::known);
    operation.ok_or_else(|| unknown("operation", call.operation))
}

fn transfer_kind(transfer: &Transfer) -> Result<TransferKind, SessionEnd> {
    let probe = Probe::try_from(transfer.probe).map_err(|e| unknown("probe", e.0))?;
    match (transfer.send, probe) {
        (true, Probe::Unspecified) if transfer.synchronous => Ok(TransferKind::SynchronousSend),
        (true, Probe::Unspecified) => Ok(TransferKind::Send),
        (true, _) => Err(SessionEnd::Refused("a probe that sends".into())),
        (false, Probe::Unspecified) => Ok(TransferKind::Receive),
        (false, Probe::Waits) => Ok(TransferKind::Probe),
        (false, Probe::AtOnce) => Ok(TransferKind::ProbeNow),
    }
}

fn element(code: i32) -> Result<ElementType, SessionEnd> {
    let element = Dtype::try_from(code).ok().and_then(Dtype::known);
    element.ok_or_else(|| unknown("element type", code))
}

fn unknown(what: &str, number: i32) -> SessionEnd {
    SessionEnd::Refused(format!("{what} {number} is unknown to this agent"))
}

fn no_region(number: u32) -> SessionEnd {
    SessionEnd::Refused(format!("region {number} is not mapped"))
}

fn done(id: u64, result: Result<Stats, Failure>) -> Done {
    match result {
        Ok(stats) => Done { id, stats: Some(stats), ..Done::default() },
        Err(failure) => Done { id, failure: Some(failure), ..Done::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_alltoall_has_a_count_for_each_pair_of_ranks() {
        assert_eq!(counts_max(Collective::Alltoall, 4), 16);
        assert_eq!(counts_max(Collective::Gather, 4), 4);
        assert_eq!(counts_max(Collective::Alltoall, 10_000), 10_000);
    }
}
