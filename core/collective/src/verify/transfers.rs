//! Verifies that every message has one sender and exactly the receivers that it reaches, and that
//! the receivers expect it.

use super::{VerifyError, numbered};
use crate::layout::Layout;
use crate::schedule::{ActionKind, Program, Rank, Span, TransferId};
use std::collections::BTreeMap;

/// A message with its ends.
pub(super) struct MatchedTransfer {
    pub(super) from: Rank,
    pub(super) src: Span,
    pub(super) to: Vec<(Rank, Span)>,
}

pub(super) fn matched(
    programs: &[&Program],
    layout: &Layout,
) -> Result<BTreeMap<TransferId, MatchedTransfer>, VerifyError> {
    // First the senders are recorded, each message with the receives that it requires (`due`). Then
    // each receive that is found is removed from these.
    let mut transfers = BTreeMap::new();
    let mut due: BTreeMap<TransferId, BTreeMap<Rank, ActionKind>> = BTreeMap::new();
    for (rank, program) in layout.ranks().zip(programs) {
        for (_, action) in numbered(program) {
            let Some((transfer, src, expected)) = sending(rank, action.kind, layout)? else { continue };
            due.insert(transfer, expected);
            if transfers.insert(transfer, MatchedTransfer { from: rank, src, to: Vec::new() }).is_some() {
                return Err(VerifyError::Transfer { transfer, rank, reason: "is sent twice" });
            }
        }
    }
    for (rank, program) in layout.ranks().zip(programs) {
        for (_, action) in numbered(program) {
            let (ActionKind::Receive { transfer, dst, .. }
            | ActionKind::ReceiveMulticast { transfer, dst, .. }) = action.kind
            else {
                continue;
            };
            let fail = |reason| Err(VerifyError::Transfer { transfer, rank, reason });
            let Some(message) = transfers.get_mut(&transfer) else { return fail("is received but not sent") };
            let expected = due.get_mut(&transfer).and_then(|due| due.remove(&rank));
            match expected {
                None => return fail("is received by a rank that it does not reach, or twice"),
                Some(expected) if !same(expected, action.kind) => {
                    return fail("is not received as it is sent: sender, scope or length differ");
                }
                Some(_) => message.to.push((rank, dst)),
            }
        }
    }
    for (transfer, due) in due {
        if let Some(rank) = due.into_keys().next() {
            return Err(VerifyError::Transfer {
                transfer,
                rank,
                reason: "reaches a rank that does not receive it",
            });
        }
    }
    Ok(transfers)
}

type ExpectedReceives = (TransferId, Span, BTreeMap<Rank, ActionKind>);

/// Returns the receives that a message of `kind` requires. Only the lengths of their spans matter.
fn sending(from: Rank, kind: ActionKind, layout: &Layout) -> Result<Option<ExpectedReceives>, VerifyError> {
    match kind {
        ActionKind::Send { to, transfer, src } => {
            if to == from || to.0 as usize >= layout.size() {
                return Err(VerifyError::Transfer {
                    transfer,
                    rank: from,
                    reason: "is sent to no other rank",
                });
            }
            Ok(Some((
                transfer,
                src,
                BTreeMap::from([(to, ActionKind::Receive { from, transfer, dst: src })]),
            )))
        }
        ActionKind::Multicast { scope, transfer, src, .. } => {
            let home = layout.node_of(from);
            let nodes = layout.nodes_of(scope);
            if !nodes.contains(&home) {
                return Err(VerifyError::Transfer {
                    transfer,
                    rank: from,
                    reason: "is multicast from outside the tree",
                });
            }
            let others = nodes.into_iter().filter(|node| *node != home);
            let received = ActionKind::ReceiveMulticast { from, scope, transfer, dst: src };
            Ok(Some((transfer, src, others.map(|node| (layout.node_leader(node), received)).collect())))
        }
        _ => Ok(None),
    }
}

fn same(expected: ActionKind, actual: ActionKind) -> bool {
    match (expected, actual) {
        (ActionKind::Receive { from, dst, .. }, ActionKind::Receive { from: f, dst: d, .. }) => {
            from == f && dst.len == d.len
        }
        (
            ActionKind::ReceiveMulticast { from, scope, dst, .. },
            ActionKind::ReceiveMulticast { from: f, scope: s, dst: d, .. },
        ) => from == f && scope == s && dst.len == d.len,
        _ => false,
    }
}
