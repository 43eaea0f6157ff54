//! Describes a call as text, for error messages, traces and the digest by which ranks compare
//! calls.

use crate::{Call, ElementType, Operation, ReduceOp};
use core::fmt;

/// Maximum number of counts that are written out.
const COUNTS_SHOWN: usize = 8;

/// A call with its element type and its reduce operation. It prints as, for example, "reduce of 5
/// f64 by sum to rank 3".
#[derive(Clone, Copy, Debug)]
pub struct CallDescription<'a> {
    /// The call.
    pub call: &'a Call,
    /// The element type; absent for a barrier.
    pub element: Option<ElementType>,
    /// The reduce operation, for operations that combine.
    pub reduce: Option<ReduceOp>,
}

impl CallDescription<'_> {
    /// Returns a digest that with high probability differs from that of any other call and of this
    /// call with another `suffix`.
    pub fn digest(&self, suffix: fmt::Arguments<'_>) -> u64 {
        let text = format!("{self}{suffix}");
        fnv(text.bytes().chain(self.counts().iter().flat_map(|bytes| bytes.to_le_bytes())))
    }

    /// Returns the number of elements: "5", "3, 0, 4", or the first of many counts with a hash of
    /// all counts.
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

/// Returns the 64-bit FNV-1a hash of the bytes. Ranks on different machines compare it, so it must
/// not depend on the standard library's hasher, which may change between releases.
pub fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
