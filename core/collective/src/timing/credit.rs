//! The credit of eager messages. It bounds the bytes that a node has sent to another without a
//! posted receive, as agents bound them per group. Messages beyond the credit are announced,
//! however short.

use cool_types::limits::{CREDIT_BYTES, MESSAGE_CREDIT_BYTES};
use std::collections::BTreeMap;

/// The credit between a sender and a receiver.
#[derive(Debug, Default)]
struct PairCredit {
    /// Bytes of credit that the sender has used and that have not been returned to it.
    used: u64,
    /// Bytes of credit that the receiver has freed and not yet returned.
    freed: u64,
}

/// The credit between each pair of nodes: sender, receiver.
#[derive(Debug, Default)]
pub(super) struct Credits(BTreeMap<(usize, usize), PairCredit>);

impl Credits {
    /// Uses credit for an eager message. Returns whether there was enough; otherwise the message
    /// must be announced.
    pub(super) fn take(&mut self, ends: (usize, usize), bytes: u64) -> bool {
        let credit = self.0.entry(ends).or_default();
        let used = credit.used + bytes + MESSAGE_CREDIT_BYTES;
        let enough = used <= CREDIT_BYTES;
        if enough {
            credit.used = used;
        }
        enough
    }

    /// Frees the credit of an eager message after its receive. Returns the credit that the receiver
    /// must return now, or `None` until a quarter of the whole credit is free.
    pub(super) fn free(&mut self, ends: (usize, usize), bytes: u64) -> Option<u64> {
        let credit = self.0.entry(ends).or_default();
        credit.freed += bytes + MESSAGE_CREDIT_BYTES;
        (credit.freed >= CREDIT_BYTES / 4).then(|| std::mem::take(&mut credit.freed))
    }

    /// Returns credit to the sender.
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
