//! Every message has one sender, and just the receivers that it reaches, who expect it so.

use super::{VerifyError, numbered};
use crate::layout::Layout;
use crate::schedule::{Kind, Program, Rank, Span, TransferId};
use std::collections::BTreeMap;

/// A message with its ends.
pub(super) struct Transfer {
    pub(super) from: Rank,
    pub(super) src: Span,
    pub(super) to: Vec<(Rank, Span)>,
}

pub(super) fn matched(
    programs: &[&Program],
    layout: &Layout,
) -> Result<BTreeMap<TransferId, Transfer>, VerifyError> {
    // First the senders, with the receivers that each message reaches and has not yet been seen at.
    let mut transfers = BTreeMap::new();
    let mut due: BTreeMap<TransferId, BTreeMap<Rank, Kind>> = BTreeMap::new();
    for (rank, program) in layout.ranks().zip(programs) {
        for (_, action) in numbered(program) {
            let Some((transfer, src, expected)) = sending(rank, action.kind, layout)? else { continue };
            due.insert(transfer, expected);
            if transfers.insert(transfer, Transfer { from: rank, src, to: Vec::new() }).is_some() {
                return Err(VerifyError::Transfer { transfer, rank, reason: "is sent twice" });
            }
        }
    }
    for (rank, program) in layout.ranks().zip(programs) {
        for (_, action) in numbered(program) {
            let (Kind::Receive { transfer, dst, .. } | Kind::ReceiveMulticast { transfer, dst, .. }) =
                action.kind
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

type Sending = (TransferId, Span, BTreeMap<Rank, Kind>);

/// What receivers must do about a message that `kind` sends; the buffer and offset of their spans are free.
fn sending(from: Rank, kind: Kind, layout: &Layout) -> Result<Option<Sending>, VerifyError> {
    match kind {
        Kind::Send { to, transfer, src } => {
            if to == from || to.0 as usize >= layout.size() {
                return Err(VerifyError::Transfer {
                    transfer,
                    rank: from,
                    reason: "is sent to no other rank",
                });
            }
            Ok(Some((transfer, src, BTreeMap::from([(to, Kind::Receive { from, transfer, dst: src })]))))
        }
        Kind::Multicast { scope, transfer, src, .. } => {
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
            let received = Kind::ReceiveMulticast { from, scope, transfer, dst: src };
            Ok(Some((transfer, src, others.map(|node| (layout.node_leader(node), received)).collect())))
        }
        _ => Ok(None),
    }
}

fn same(expected: Kind, actual: Kind) -> bool {
    match (expected, actual) {
        (Kind::Receive { from, dst, .. }, Kind::Receive { from: f, dst: d, .. }) => {
            from == f && dst.len == d.len
        }
        (
            Kind::ReceiveMulticast { from, scope, dst, .. },
            Kind::ReceiveMulticast { from: f, scope: s, dst: d, .. },
        ) => from == f && scope == s && dst.len == d.len,
        _ => false,
    }
}
