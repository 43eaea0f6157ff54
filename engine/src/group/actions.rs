//! Starting the actions of programs.

use super::Group;
use super::messages::Place;
use crate::engine::Shared;
use crate::memory::SharedSlice;
use crate::reduce::combine;
use cool_collective::Kind;
use cool_machine::Time;
use cool_proto::local::Failure;
use cool_transport::unicast::Input;

/// Bytes moved at a time when ranks' memories are copied.
const BLOCK: usize = 64 * 1024;

impl Group {
    /// Starts every action that may start, and those that may start by them.
    pub(crate) fn run(&mut self, now: Time, shared: &mut Shared) -> Result<(), Failure> {
        loop {
            if let Some((call, rank, action)) = self.ready.pop_front() {
                self.start(now, shared, call, rank, action)?;
            } else if let Some((call, rank)) = self.multicasters.pop_front() {
                self.next_multicast(now, shared, call, rank)?;
            } else {
                return Ok(());
            }
        }
    }

    fn start(
        &mut self,
        now: Time,
        shared: &mut Shared,
        number: u64,
        rank: u32,
        action: u32,
    ) -> Result<(), Failure> {
        let Some(call) = self.calls.get_mut(&number) else { return Ok(()) };
        let (dtype, reduce, digest) = (call.what.dtype, call.what.reduce, call.digest);
        let Some(run) = call.runs.get_mut(&rank) else { return Ok(()) };
        match run.program().actions[action as usize].kind {
            Kind::Reduce { dst, .. } if let Some((from, transfer)) = run.compiled().fused(rank, action) => {
                let place =
                    Place { combine: Some((dtype, reduce)), ..Place::new(rank, action, run.slice(dst)) };
                let message = self.message(number, transfer.0, from.0, rank);
                self.receive_here(now, shared, message, place);
            }
            Kind::Receive { .. } if run.compiled().is_passed_over(rank, action) => {
                self.complete(now, shared, number, rank, action);
            }
            Kind::Reduce { src, dst } => {
                combine(dtype, reduce, &run.slice(dst), &run.slice(src));
                self.complete(now, shared, number, rank, action);
            }
            Kind::Copy { src, dst } => {
                copy(&run.slice(src), &run.slice(dst));
                self.complete(now, shared, number, rank, action);
            }
            Kind::Send { to, transfer, src } => {
                let place = Place::new(rank, action, run.slice(src));
                let message = self.message(number, transfer.0, rank, to.0);
                let node = self.members.layout.node_of(to);
                if node == self.members.me {
                    self.send_here(now, shared, message, place);
                    return Ok(());
                }
                if let Some(run) = self.calls.get_mut(&number).and_then(|c| c.runs.get_mut(&rank)) {
                    run.stats.bytes_unicast += src.len;
                }
                let input = Input::Send { message, digest, bytes: src.len };
                self.messages.sends.insert(message, place);
                shared.peers.handle(now, &self.members.nodes[node].name, input);
            }
            Kind::Receive { from, transfer, dst } => {
                let place = Place::new(rank, action, run.slice(dst));
                let message = self.message(number, transfer.0, from.0, rank);
                if self.members.layout.node_of(from) == self.members.me {
                    self.receive_here(now, shared, message, place);
                } else {
                    self.expect(now, shared, message, place)?;
                }
            }
            Kind::Multicast { .. } => {
                run.queued.push_back(action);
                self.multicasters.push_back((number, rank));
            }
            Kind::ReceiveMulticast { from, scope, transfer, dst } => {
                let data = run.slice(dst);
                let source = self.members.layout.node_of(from);
                self.open_receiver(now, shared, (number, transfer.0, scope, source), (rank, action, data))?;
            }
        }
        Ok(())
    }
}

/// Copies all bytes of `from` to `to`, which is as long.
pub(super) fn copy(from: &SharedSlice, to: &SharedSlice) {
    let mut block = vec![0; BLOCK.min(from.bytes() as usize)];
    let mut at = 0;
    while at < from.bytes() {
        let len = (from.bytes() - at).min(BLOCK as u64) as usize;
        from.read(at, &mut block[..len]);
        to.write(at, &block[..len]);
        at += len as u64;
    }
}
