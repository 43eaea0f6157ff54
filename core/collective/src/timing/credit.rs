//! The credit of eager messages: what of them a node has sent to another that has not asked for it yet is bounded, as agents
//! bound it for each group; beyond, messages are announced, however short.

use cool_types::limits::{CREDIT_BYTES, MESSAGE_CREDIT_BYTES};
use std::collections::BTreeMap;

/// Of a sender and a receiver.
#[derive(Debug, Default)]
struct PairCredit {
    /// Bytes that the sender has used and not got back.
    used: u64,
    /// Bytes that the receiver is to give back.
    freed: u64,
}

/// The credit of each node with each other, by their numbers: sender, receiver.
#[derive(Debug, Default)]
pub(super) struct Credits(BTreeMap<(usize, usize), PairCredit>);

impl Credits {
    /// Whether a message may go unasked; its credit is used then.
    pub(super) fn take(&mut self, ends: (usize, usize), bytes: u64) -> bool {
        let credit = self.0.entry(ends).or_default();
        let used = credit.used + bytes + MESSAGE_CREDIT_BYTES;
        let enough = used <= CREDIT_BYTES;
        if enough {
            credit.used = used;
        }
        enough
    }

    /// The receiver has asked for an eager message and has it; answers with the credit that it gives back now, in quarters of
    /// the whole.
    pub(super) fn free(&mut self, ends: (usize, usize), bytes: u64) -> Option<u64> {
        let credit = self.0.entry(ends).or_default();
        credit.freed += bytes + MESSAGE_CREDIT_BYTES;
        (credit.freed >= CREDIT_BYTES / 4).then(|| std::mem::take(&mut credit.freed))
    }

    /// The sender has credit back.
    pub(super) fn give_back(&mut self, ends: (usize, usize), bytes: u64) {
        let credit = self.0.entry(ends).or_default();
        credit.used = credit.used.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_runs_out_and_is_returned_in_quarters() {
        let (mut credits, ends, bytes) =
            (Credits::default(), (0, 1), CREDIT_BYTES / 8 - MESSAGE_CREDIT_BYTES);
        assert_eq!((0..9).filter(|_| credits.take(ends, bytes)).count(), 8);
        assert!(credits.take((1, 0), bytes), "each direction has its own");
        assert_eq!(credits.free(ends, bytes), None);
        let back = credits.free(ends, bytes).unwrap();
        assert_eq!(back, CREDIT_BYTES / 4);
        assert!(!credits.take(ends, 0), "it is still under way");
        credits.give_back(ends, back);
        assert_eq!((0..9).filter(|_| credits.take(ends, bytes)).count(), 2);
    }
}
