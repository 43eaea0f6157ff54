//! Runs a schedule on symbols. Each rank executes one action at a time, and a message moves only
//! when all its ends have reached it.

use super::VerifyError;
use super::symbols::{Expression, Expressions, SymbolRun, SymbolicMemory, aligned, joined};
use super::transfers::MatchedTransfer;
use crate::schedule::{ActionId, ActionKind, Call, Operation, Program, Rank, RankBuffer, Span, TransferId};
use std::collections::BTreeMap;

/// Returns the expressions that were made, and the ranks' buffers at the end.
pub(super) fn run(
    call: &Call,
    programs: &[&Program],
    transfers: &BTreeMap<TransferId, MatchedTransfer>,
) -> Result<(Expressions, Vec<SymbolicMemory>), VerifyError> {
    let size = programs.len();
    let ranks = (0..size as u32).map(Rank);
    let mut state = SymbolicState {
        programs,
        next: vec![0; size],
        memories: ranks.clone().map(|rank| before(call, rank, size)).collect(),
        expressions: Expressions::new(size as u32),
    };
    // Number of ends of each message that have reached it.
    let mut reached: BTreeMap<TransferId, usize> = BTreeMap::new();
    let mut open: Vec<Rank> = ranks.clone().collect();
    while let Some(rank) = open.pop() {
        let Some(transfer) = state.up_to_message(rank)? else { continue };
        let message = &transfers[&transfer];
        let count = reached.entry(transfer).or_insert(0);
        *count += 1;
        if *count == message.to.len() + 1 {
            reached.remove(&transfer);
            state.transfer(message)?;
            open.extend(message.to.iter().map(|(to, _)| *to).chain([message.from]));
        }
    }
    for (rank, program) in ranks.zip(programs) {
        let next = state.next[rank.0 as usize];
        if next < program.actions.len() {
            return Err(VerifyError::Deadlock { rank, action: ActionId(next as u32) });
        }
    }
    Ok((state.expressions, state.memories))
}

/// Returns a rank's buffers before the call.
fn before(call: &Call, rank: Rank, size: usize) -> SymbolicMemory {
    let mut memory = SymbolicMemory::default();
    let (buffer, len) = match call.operation {
        Operation::Bcast if rank == call.root => (RankBuffer::Output, call.bytes),
        _ => (RankBuffer::Input, call.input_bytes(rank, size)),
    };
    memory.write(
        Span { buffer, offset: 0, len },
        &[SymbolRun { len, expression: Expression::for_rank(rank), origin: 0 }],
    );
    memory
}

struct SymbolicState<'a> {
    programs: &'a [&'a Program],
    next: Vec<usize>,
    memories: Vec<SymbolicMemory>,
    expressions: Expressions,
}

impl SymbolicState<'_> {
    /// Executes a rank's local actions up to its next message. Returns that message.
    fn up_to_message(&mut self, rank: Rank) -> Result<Option<TransferId>, VerifyError> {
        let program = self.programs[rank.0 as usize];
        while let Some(action) = program.actions.get(self.next[rank.0 as usize]) {
            match action.kind {
                ActionKind::Send { transfer, .. }
                | ActionKind::Receive { transfer, .. }
                | ActionKind::Multicast { transfer, .. }
                | ActionKind::ReceiveMulticast { transfer, .. } => return Ok(Some(transfer)),
                ActionKind::Copy { src, dst } => {
                    let runs = self.read(rank, src)?;
                    self.memories[rank.0 as usize].write(dst, &runs);
                }
                ActionKind::Reduce { src, dst } => self.reduce(rank, src, dst)?,
            }
            self.next[rank.0 as usize] += 1;
        }
        Ok(None)
    }

    fn transfer(&mut self, message: &MatchedTransfer) -> Result<(), VerifyError> {
        let runs = self.read(message.from, message.src)?;
        self.next[message.from.0 as usize] += 1;
        for (to, dst) in &message.to {
            self.memories[to.0 as usize].write(*dst, &runs);
            self.next[to.0 as usize] += 1;
        }
        Ok(())
    }

    fn reduce(&mut self, rank: Rank, src: Span, dst: Span) -> Result<(), VerifyError> {
        let (left, right) = (self.read(rank, dst)?, self.read(rank, src)?);
        let mut runs = Vec::new();
        for (left, right) in aligned(&left, &right) {
            if left.origin != right.origin {
                let (left, right) = (left.origin, right.origin);
                return Err(VerifyError::Misaligned { rank, action: self.action(rank), left, right });
            }
            let expression = self.expressions.combine(left.expression, right.expression);
            runs.push(SymbolRun { expression, ..left });
        }
        self.memories[rank.0 as usize].write(dst, &joined(runs));
        Ok(())
    }

    fn read(&self, rank: Rank, span: Span) -> Result<Vec<SymbolRun>, VerifyError> {
        self.memories[rank.0 as usize].read(span).map(joined).map_err(|offset| VerifyError::Unwritten {
            rank,
            action: self.action(rank),
            buffer: span.buffer,
            offset,
        })
    }

    fn action(&self, rank: Rank) -> ActionId {
        ActionId(self.next[rank.0 as usize] as u32)
    }
}
