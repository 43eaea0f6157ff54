//! A call in words, as ranks compare it and as errors and traces have it.

use crate::{Call, ElementType, Operation, ReduceOp};
use core::fmt;

/// The most counts that are written out.
const COUNTS_SHOWN: usize = 8;

/// A call with its elements and its reduction. It prints as "reduce of 5 f64 by sum to rank 3".
#[derive(Clone, Copy, Debug)]
pub struct CallDescription<'a> {
    /// What is called.
    pub call: &'a Call,
    /// Absent for a barrier.
    pub element: Option<ElementType>,
    /// Of the operations that combine.
    pub reduce: Option<ReduceOp>,
}

impl CallDescription<'_> {
    /// A number that differs, most likely, from that of any other call, or of this one with another `suffix`.
    pub fn digest(&self, suffix: fmt::Arguments<'_>) -> u64 {
        let text = format!("{self}{suffix}");
        fnv(text.bytes().chain(self.counts().iter().flat_map(|bytes| bytes.to_le_bytes())))
    }

    /// Elements: "5", "3, 0, 4", or the first of many with a number that tells them from others.
    fn amount(&self) -> String {
        let element = u64::from(self.call.element);
        if self.call.counts.is_none() {
            return (self.call.bytes / element).to_string();
        }
        let counts = self.counts();
        let shown: Vec<String> =
            counts.iter().take(COUNTS_SHOWN).map(|bytes| (bytes / element).to_string()).collect();
        let shown = shown.join(", ");
        match counts.len() - counts.len().min(COUNTS_SHOWN) {
            0 => shown,
            more => {
                let all = fnv(counts.iter().flat_map(|bytes| bytes.to_le_bytes()));
                format!("{shown} and {more} more (all: {all:016x})")
            }
        }
    }

    fn counts(&self) -> &[u64] {
        self.call.counts.as_deref().unwrap_or_default()
    }
}

impl fmt::Display for CallDescription<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operation, root) = (self.call.operation, self.call.root);
        write!(f, "{operation}")?;
        if let Some(element) = self.element {
            write!(f, " of {} {element}", self.amount())?;
        }
        if let Some(reduce) = self.reduce {
            write!(f, " by {reduce}")?;
        }
        match operation {
            Operation::Bcast | Operation::Scatter => write!(f, " from {root}"),
            Operation::Reduce | Operation::Gather => write!(f, " to {root}"),
            _ => Ok(()),
        }
    }
}

/// FNV-1a, 64 bits: the same on every machine, which the standard library's hashes do not promise.
pub fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
