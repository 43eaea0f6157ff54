//! The outputs that the driver has not received yet, in order.

use crate::failure::CallFailure;
use crate::ids::WorkId;
use crate::inputs_outputs::{Output, Work};
use crate::memory::{MemoryId, MemoryRange};
use cool_transport::Packet;
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// The maximum size of a datagram of several control packets. It fits every link.
const CONTROL_BYTES: usize = 1200;

/// Number of the last outputs among which a datagram is sought to which a control packet can be
/// added.
const CONTROL_AHEAD: usize = 64;

/// The location of bytes that arrived over the network.
#[derive(Clone, Debug)]
pub(crate) enum ReceivedBytes {
    /// The bytes are in the input that is being handled.
    Input(Range<usize>),
    /// The bytes are in the engine's own memory, because they arrived early.
    Buffered(MemoryRange),
}

impl ReceivedBytes {
    /// No bytes.
    pub(crate) const NONE: ReceivedBytes = ReceivedBytes::Input(0..0);

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            ReceivedBytes::Input(within) => within.len(),
            ReceivedBytes::Buffered(range) => range.len as usize,
        }
    }
}

/// Memory that the engine has allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocatedMemory {
    pub(crate) group: u64,
    pub(crate) bytes: u64,
}

/// A first-in, first-out queue of outputs, which also assigns the numbers of memory and work.
#[derive(Debug, Default)]
pub(crate) struct EngineOutbox {
    queue: VecDeque<Output>,
    /// The allocated memory, until the driver receives [`Output::Free`].
    allocated: BTreeMap<MemoryId, AllocatedMemory>,
    /// The memory of the last output if that was an allocation. The driver reports before it polls
    /// again if it has failed.
    handed_out: Option<MemoryId>,
    last_memory: u64,
    last_work: u64,
}

impl EngineOutbox {
    pub(crate) fn push(&mut self, output: Output) {
        self.queue.push_back(output);
    }

    pub(crate) fn pop(&mut self) -> Option<Output> {
        let output = self.queue.pop_front()?;
        match &output {
            Output::Allocate { memory, .. } => self.handed_out = Some(*memory),
            Output::Free { memory } => drop(self.allocated.remove(memory)),
            _ => {}
        }
        Some(output)
    }

    /// Returns the memory that the driver has just allocated, with its group. Returns it once.
    pub(crate) fn take_allocated(&mut self) -> Option<(MemoryId, u64)> {
        let memory = self.handed_out.take()?;
        Some((memory, self.allocated.get(&memory)?.group))
    }

    /// Drops all outputs that name memory which could not be allocated, except those that free it.
    /// Returns the memory's group and size, and the dropped work, or `None` if there is no such
    /// memory.
    pub(crate) fn discard(&mut self, missing: MemoryId) -> Option<(AllocatedMemory, Vec<WorkId>)> {
        self.handed_out = None;
        let mut work_ids = Vec::new();
        let is_named = |range: &MemoryRange| range.len > 0 && range.memory == missing;
        self.queue.retain(|output| match output {
            Output::Data { payload: range, .. } | Output::Store { to: range, .. } => !is_named(range),
            Output::Copy { from, to } => !is_named(from) && !is_named(to),
            Output::Work { id, work: Work::Copy { from, to } | Work::Reduce { from, to, .. } } => {
                let stays = !is_named(from) && !is_named(to);
                work_ids.extend((!stays).then_some(*id));
                stays
            }
            _ => true,
        });
        Some((*self.allocated.get(&missing)?, work_ids))
    }

    /// Replaces the results of requests that have succeeded, if `fails` returns true for their
    /// tokens.
    pub(crate) fn fail_replies(&mut self, failure: &CallFailure, fails: impl Fn(u64) -> bool) {
        for output in &mut self.queue {
            if let Output::Done { token, result } = output
                && result.is_ok()
                && fails(*token)
            {
                *result = Err(failure.clone());
            }
        }
    }

    /// Sends a packet without payload. The packet shares a datagram with other packets of its group
    /// to the same address, if possible.
    pub(crate) fn control(&mut self, to: SocketAddr, packet: &Packet) {
        let group = packet.id.group;
        let mut waiting = self.queue.iter_mut().rev().take(CONTROL_AHEAD);
        let same = waiting.find_map(|output| match output {
            Output::Control { to: other, bytes, .. } if *other == to && packet.is_akin(bytes) => Some(bytes),
            _ => None,
        });
        if let Some(bytes) = same {
            let before = bytes.len();
            packet.encode(bytes);
            if bytes.len() <= CONTROL_BYTES {
                return;
            }
            let packet = bytes.split_off(before);
            return self.push(Output::Control { to, group, bytes: packet });
        }
        let mut bytes = Vec::new();
        packet.encode(&mut bytes);
        self.push(Output::Control { to, group, bytes });
    }

    /// Stores received bytes at their destination.
    pub(crate) fn store(&mut self, received: &ReceivedBytes, to: MemoryRange) {
        match received {
            _ if to.len == 0 => {}
            ReceivedBytes::Input(within) => self.push(Output::Store { within: within.clone(), to }),
            ReceivedBytes::Buffered(from) => self.copy(*from, to),
        }
    }

    /// Copies bytes into or out of a bounce buffer.
    pub(crate) fn copy(&mut self, from: MemoryRange, to: MemoryRange) {
        if to.len > 0 {
            self.push(Output::Copy { from: from.part(0, to.len), to });
        }
    }

    /// Allocates memory that is filled with zeros, for a group. The group fails if that is not
    /// possible.
    pub(crate) fn allocate(&mut self, group: u64, bytes: u64) -> MemoryRange {
        if bytes == 0 {
            return MemoryRange::EMPTY;
        }
        self.last_memory += 1;
        let memory = MemoryId::Own(self.last_memory);
        self.allocated.insert(memory, AllocatedMemory { group, bytes });
        self.push(Output::Allocate { memory, bytes });
        MemoryRange { memory, offset: 0, len: bytes }
    }

    /// Frees memory that was allocated.
    pub(crate) fn free(&mut self, all: MemoryRange) {
        if all.len > 0 {
            self.push(Output::Free { memory: all.memory });
        }
    }

    pub(crate) fn next_work(&mut self) -> WorkId {
        self.last_work += 1;
        WorkId(self.last_work)
    }
}
