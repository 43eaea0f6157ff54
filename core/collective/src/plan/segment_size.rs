//! Segment sizes: into how many segments a plan splits an array, so that a long message (for example a bcast)
//! is pipelined over the levels.

use super::{Composition, Leaders, Plan, PlanShape};

/// Segments of an array unless a plan says otherwise: with a sixteenth under way at each level, filling and
/// draining three levels costs little of the whole.
const SEGMENTS_PER_ARRAY: u64 = 16;

/// Bounds of such a segment: below, the cost per message shows; above, pipelining gains nothing more.
const SEGMENT_BOUNDS: (u64, u64) = (16 * 1024, 256 * 1024);

/// Bounds of a segment of a pattern that wants many: where each member hears one other, links stay full if what
/// is under way between two fits a shallow queue.
const FLAT_BOUNDS: (u64, u64) = (4 * 1024, 8 * 1024);

/// Segments of a vector with sharded leaders: they overlap only the two steps of the combination, the
/// second of which loads the uplinks.
const SHARDED_SEGMENTS_PER_ARRAY: u64 = 8;

/// Bounds of a node's share of a segment.
const SHARE_BOUNDS: (u64, u64) = (1024, 16 * 1024);

/// The largest segment that can be asked for.
pub(super) const SEGMENT_BYTES_MAX: u64 = 1 << 30;

impl Plan {
    /// The same plan with a forced segment size: the allowed one nearest to `bytes`, 1 byte to 1 GiB. The compiler
    /// rounds it up to whole elements, and takes larger ones where a message would fall into very many.
    pub fn with_segment(self, bytes: u64) -> Plan {
        Plan { segment: Some(bytes.clamp(1, SEGMENT_BYTES_MAX)), ..self }
    }

    /// Whether a segment size is forced.
    pub(crate) fn forces_segments(&self) -> bool {
        self.segment.is_some()
    }

    /// Bytes of a segment of an array of `array` bytes for a group on `nodes` nodes, if none is forced: a
    /// sixteenth, 16 KiB at least and 256 KiB at most; with sharded leaders an eighth, 1 KiB to 16 KiB for
    /// each node; with one level, as the pattern likes it.
    pub fn segment_bytes(&self, array: u64, nodes: usize) -> u64 {
        let Composition { shape, leaders, node, .. } = self.composition;
        self.segment.unwrap_or_else(|| match (shape, leaders) {
            (PlanShape::Levels, Leaders::Sharded) => {
                let nodes = nodes as u64;
                array
                    .div_ceil(SHARDED_SEGMENTS_PER_ARRAY)
                    .clamp(SHARE_BOUNDS.0 * nodes, SHARE_BOUNDS.1 * nodes)
            }
            (PlanShape::Levels, Leaders::One) => {
                array.div_ceil(SEGMENTS_PER_ARRAY).clamp(SEGMENT_BOUNDS.0, SEGMENT_BOUNDS.1)
            }
            _ if node.up.shares => {
                array.div_ceil(node.up.segments).max(SHARE_BOUNDS.1 * nodes as u64).min(array).max(1)
            }
            _ if node.up.segments == 1 => array.max(1),
            _ => array.div_ceil(node.up.segments).clamp(FLAT_BOUNDS.0, FLAT_BOUNDS.1),
        })
    }
}
