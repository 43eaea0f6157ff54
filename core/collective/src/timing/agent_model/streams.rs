//! Multicasts of a schedule that is being timed: the waiting before the first byte and after the
//! last.

use super::{ActionRef, AgentModel, READY, TimingEvent};
use crate::schedule::ActionKind;
use crate::timing::costs::nanos;
use crate::timing::{MulticastMessage, NetworkModel};

impl<N: NetworkModel> AgentModel<'_, N> {
    /// Opens the next multicast of a rank of which the tree is free.
    pub(super) fn next_multicast(&mut self, rank: u32) {
        let program = self.program(rank);
        let Some((action, _)) = self.progress[rank as usize].next_multicast(program) else { return };
        let at = ActionRef { rank, action };
        let ActionKind::Multicast { transfer, src, .. } = self.kind(at) else { return };
        let node = self.node(rank);
        let sent = self.work(node, nanos(self.costs.send));
        self.schedule_event(sent, TimingEvent::Sent { transfer: transfer.0 });
        if src.len <= self.costs.copied {
            self.finish_after(at, self.costs.copying(src.len));
        }
    }

    /// Starts a multicast. A long one waits until all receivers are ready: they receive an
    /// announcement, and answer through the first node of their rack.
    pub(super) fn announce_stream(&mut self, transfer: u32) {
        let sender = self.index.sender(transfer);
        if self.bytes(sender) <= self.costs.eager {
            return self.begin_stream(transfer);
        }
        let missing = self.index.receivers(transfer).iter();
        let missing = missing.filter(|at| self.known[self.index.number(**at)] & READY == 0).count();
        let known = self.now + self.farthest(transfer, 0);
        if missing == 0 {
            self.begin_after(transfer, known);
        } else {
            self.gathering.insert(transfer, (missing, known));
        }
    }

    /// Schedules the first byte of a multicast, after the receivers, all of which are ready at time
    /// `ready`, have answered through the first node of their rack.
    pub(super) fn begin_after(&mut self, transfer: u32, ready: u64) {
        let way = self.farthest(transfer, 0);
        self.schedule_event(ready + way + way / 2, TimingEvent::Begun { transfer });
    }

    /// Returns the time to the farthest receiver.
    fn farthest(&self, transfer: u32, bytes: u64) -> u64 {
        let from = self.node(self.index.sender(transfer).rank);
        let receivers = self.index.receivers(transfer).iter();
        receivers.map(|at| self.network.latency(from, self.node(at.rank), bytes)).max().unwrap_or(0)
    }

    pub(super) fn begin_stream(&mut self, transfer: u32) {
        self.trace_begin(transfer);
        let sender = self.index.sender(transfer);
        let ActionKind::Multicast { src, concurrent_senders, stripe, .. } = self.kind(sender) else { return };
        let from = self.node(sender.rank);
        let to: Vec<usize> = self.index.receivers(transfer).iter().map(|at| self.node(at.rank)).collect();
        let what = MulticastMessage { bytes: src.len, concurrent_senders, stripe };
        self.network(|net, now, events| net.multicast(now, transfer, (from, &to), what, events));
    }

    /// Records that the last byte of a multicast has left.
    pub(super) fn stream_over(&mut self, transfer: u32) {
        let sender = self.index.sender(transfer);
        let bytes = self.bytes(sender);
        if bytes > self.costs.copied {
            // The sender waits until all receivers have the message, have reported that through the
            // first node of their rack, and have received the reply (settled).
            let way = self.farthest(transfer, bytes);
            let released = self.now + way + way + way / 2;
            self.schedule_event(released, TimingEvent::Done { rank: sender.rank, action: sender.action });
            for i in 0..self.index.receivers(transfer).len() {
                let rank = self.index.receivers(transfer)[i].rank;
                self.ends(rank, released);
            }
        }
        if let Some(stripe) = self.kind(sender).stripe() {
            self.progress[sender.rank as usize].multicast_sent(stripe);
        }
        self.next_multicast(sender.rank);
    }
}
