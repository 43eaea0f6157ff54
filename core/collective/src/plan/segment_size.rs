//! Segment sizes: how a plan splits an array into segments, so that a long message, for example of
//! a bcast, is pipelined over the levels.

use super::{Composition, Leaders, Plan, PlanShape};

/// Default number of segments of an array. With a sixteenth in progress at each level, filling and
/// draining the pipeline of three levels costs little of the whole.
const SEGMENTS_PER_ARRAY: u64 = 16;

/// Bounds of such a segment in bytes. Below, the cost per message dominates; above, pipelining
/// gains nothing more.
const SEGMENT_BOUNDS: (u64, u64) = (16 * 1024, 256 * 1024);

/// Bounds in bytes of a segment of a pattern with many segments. If each member receives from one
/// other, links stay full while the bytes in flight between two members fit a shallow queue.
const FLAT_BOUNDS: (u64, u64) = (4 * 1024, 8 * 1024);

/// Number of segments of a vector with sharded leaders. They overlap only the two steps of the
/// combination, and the second step loads the uplinks.
const SHARDED_SEGMENTS_PER_ARRAY: u64 = 8;

/// Bounds in bytes of a node's share of a segment.
const SHARE_BOUNDS: (u64, u64) = (1024, 16 * 1024);

/// Largest forced segment size in bytes.
pub(super) const SEGMENT_BYTES_MAX: u64 = 1 << 30;

impl Plan {
    /// Returns the same plan with a forced segment size: the valid size nearest to `bytes`, from 1
    /// byte to 1 GiB. The compiler rounds it up to whole elements, and uses a larger size if a
    /// message would have too many segments.
    pub fn with_segment(self, bytes: u64) -> Plan {
        Plan { segment: Some(bytes.clamp(1, SEGMENT_BYTES_MAX)), ..self }
    }

    /// Returns whether a segment size is forced.
    pub(crate) fn forces_segments(&self) -> bool {
        self.segment.is_some()
    }

    /// Returns the bytes of a segment of an array of `array` bytes for a group on `nodes` nodes.
    /// Unless a size is forced, this is a sixteenth of the array, at least 16 KiB and at most 256
    /// KiB. With sharded leaders it is an eighth, from 1 KiB to 16 KiB per node. With one level it
    /// depends on the pattern.
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
