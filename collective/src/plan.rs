//! Plans: which pattern works at which level, in how large segments; their names, and the rule that picks
//! one when the caller does not. How levels are put together is `levels`' business.

use crate::layout::Layout;
use crate::patterns::{PARALLEL, Pattern};
use crate::schedule::{Call, Operation};
use core::fmt;
use core::str::FromStr;

/// Segments of an array unless a plan says otherwise: with a sixteenth under way at each level, filling and
/// draining three levels costs little of the whole.
const SEGMENTS: u64 = 16;

/// Bounds of such a segment: below, the cost per message shows; above, pipelining gains nothing more.
const SEGMENT_BOUNDS: (u64, u64) = (16 * 1024, 256 * 1024);

/// The largest segment that can be asked for.
const MAX_SEGMENT: u64 = 1 << 30;

/// How what all ranks need gets from the rack leaders to everyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Rack leaders exchange among themselves, then each serves its rack.
    Levels,
    /// One place collects everything and multicasts it over the whole group.
    Once,
    /// Every node multicasts its own part over the whole group.
    Each,
}

/// One entry of the list of plans.
#[derive(Debug)]
pub(crate) struct Composition {
    name: &'static str,
    pub(crate) node: &'static Pattern,
    pub(crate) rack: &'static Pattern,
    pub(crate) center: &'static Pattern,
    pub(crate) spread: Spread,
    operations: &'static [Operation],
}

/// All plans by name. The first is the paper's.
static COMPOSITIONS: [Composition; 3] = [
    Composition {
        name: "cool-p-p",
        node: &PARALLEL,
        rack: &PARALLEL,
        center: &PARALLEL,
        spread: Spread::Levels,
        operations: &Operation::ALL,
    },
    Composition {
        name: "multicast",
        node: &PARALLEL,
        rack: &PARALLEL,
        center: &PARALLEL,
        spread: Spread::Once,
        operations: &[Operation::Bcast, Operation::Allreduce, Operation::Allgather, Operation::Barrier],
    },
    Composition {
        name: "multicast-each",
        node: &PARALLEL,
        rack: &PARALLEL,
        center: &PARALLEL,
        spread: Spread::Each,
        operations: &[Operation::Allgather],
    },
];

const COOL_P_P: &Composition = &COMPOSITIONS[0];
const MULTICAST: &Composition = &COMPOSITIONS[1];
const MULTICAST_EACH: &Composition = &COMPOSITIONS[2];

/// From this vector size on, an allreduce ends in one multicast over the whole group instead of one per rack.
const LARGE_ALLREDUCE: u64 = 4 * 1024;

/// Streams that a receiver may well follow at once.
const MANY_NODES: usize = 64;

/// How a call is compiled. Prints as its name, `cool-p-p`, or with a forced segment size,
/// `cool-p-p/65536`, and parses from the same. Every agent must compile a call with the same plan.
#[derive(Clone, Copy)]
pub struct Plan {
    composition: &'static Composition,
    segment: Option<u64>,
}

/// Why a text is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There is no plan of that name.
    #[error("there is no plan {name:?}; there are: {}", Plan::names().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// What stands behind the slash is no size.
    #[error("plan {plan:?}: segment {segment:?} is not a number of bytes from 1 to {MAX_SEGMENT}")]
    Segment {
        /// The plan's name.
        plan: String,
        /// What stands there.
        segment: String,
    },
}

impl Plan {
    /// The names of all plans.
    pub fn names() -> impl Iterator<Item = &'static str> {
        COMPOSITIONS.iter().map(|c| c.name)
    }

    /// The plans that can run `operation`.
    pub fn fitting(operation: Operation) -> impl Iterator<Item = Plan> {
        COMPOSITIONS.iter().filter(move |c| c.operations.contains(&operation)).map(Plan::of)
    }

    /// The plan for a call when nobody forces one.
    ///
    /// | operation | bytes | plan | why |
    /// | --- | --- | --- | --- |
    /// | bcast, barrier | any | multicast | every link carries the message once |
    /// | reduce, gather, scatter | any | cool-p-p | one message per rack on the uplinks |
    /// | allreduce | < 4 KiB | cool-p-p | three steps, the last inside the racks |
    /// | allreduce | more | multicast | as reduce, then every link carries the result once |
    /// | allgather, 64 nodes at most | any | multicast-each | every link carries every part once, in one step |
    /// | allgather, more nodes | any | multicast | one stream instead of one per node |
    ///
    /// An allgather's limit is the total over a host's link; in cool-p-p a rack leader sends its rack's
    /// parts and then the total over that link, and multicast first brings the total to one host.
    pub fn default_for(call: &Call, layout: &Layout) -> Plan {
        Plan::of(match call.operation {
            _ if layout.nodes() == 1 => COOL_P_P,
            Operation::Bcast | Operation::Barrier => MULTICAST,
            Operation::Reduce | Operation::Gather | Operation::Scatter => COOL_P_P,
            Operation::Allreduce if call.bytes < LARGE_ALLREDUCE => COOL_P_P,
            Operation::Allreduce => MULTICAST,
            Operation::Allgather if layout.nodes() <= MANY_NODES => MULTICAST_EACH,
            Operation::Allgather => MULTICAST,
        })
    }

    /// The same plan with a forced segment size: the allowed one nearest to `bytes`, 1 byte to 1 GiB. The compiler
    /// rounds it up to whole elements, and takes larger ones where a message would fall into very many.
    pub fn with_segment(self, bytes: u64) -> Plan {
        Plan { segment: Some(bytes.clamp(1, MAX_SEGMENT)), ..self }
    }

    /// Its name, without the segment size.
    pub fn name(&self) -> &'static str {
        self.composition.name
    }

    /// Bytes of a segment of an array of `array` bytes: a sixteenth, 16 KiB at least and 256 KiB at most, if
    /// none is forced.
    pub fn segment(&self, array: u64) -> u64 {
        let (least, most) = SEGMENT_BOUNDS;
        self.segment.unwrap_or_else(|| array.div_ceil(SEGMENTS).clamp(least, most))
    }

    /// Whether it can run `operation`.
    pub fn fits(&self, operation: Operation) -> bool {
        self.composition.operations.contains(&operation)
    }

    pub(crate) fn composition(&self) -> &'static Composition {
        self.composition
    }

    fn of(composition: &'static Composition) -> Plan {
        Plan { composition, segment: None }
    }
}

impl PartialEq for Plan {
    fn eq(&self, other: &Plan) -> bool {
        (self.name(), self.segment) == (other.name(), other.segment)
    }
}

impl Eq for Plan {}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plan({self})")
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Some(segment) = self.segment {
            write!(f, "/{segment}")?;
        }
        Ok(())
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Plan, PlanError> {
        let (name, segment) =
            text.split_once('/').map_or((text, None), |(name, segment)| (name, Some(segment)));
        let composition = COMPOSITIONS
            .iter()
            .find(|c| c.name == name)
            .ok_or_else(|| PlanError::Unknown { name: name.to_owned() })?;
        let plan = Plan::of(composition);
        let Some(segment) = segment else { return Ok(plan) };
        match segment.parse() {
            Ok(bytes) if (1..=MAX_SEGMENT).contains(&bytes) => Ok(plan.with_segment(bytes)),
            _ => Err(PlanError::Segment { plan: name.to_owned(), segment: segment.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Place, Rank};

    #[test]
    fn a_plan_parses_from_what_it_prints() {
        for name in Plan::names() {
            let plan: Plan = name.parse().unwrap();
            for plan in [plan, plan.with_segment(4096), plan.with_segment(1)] {
                assert_eq!(plan.to_string().parse(), Ok(plan));
            }
        }
    }

    #[test]
    fn segments_follow_the_array_unless_forced() {
        let plan: Plan = "multicast".parse().unwrap();
        let segments = [0, 1 << 20, 1 << 30].map(|array| plan.segment(array));
        assert_eq!(segments, [16 << 10, 64 << 10, 256 << 10]);
        assert_eq!(plan.with_segment(100).segment(1 << 30), 100);
    }

    #[test]
    fn an_unknown_plan_is_answered_with_those_that_exist() {
        let e = "cool-p-q".parse::<Plan>().unwrap_err().to_string();
        assert!(e.contains("cool-p-q") && e.contains("cool-p-p") && e.contains("multicast"), "{e}");
        for bad in ["multicast/", "multicast/0", "multicast/x", "multicast/-1", "multicast/9999999999"] {
            assert!(matches!(bad.parse::<Plan>(), Err(PlanError::Segment { .. })), "{bad}");
        }
    }

    #[test]
    fn the_default_plan_fits_its_call() {
        let places: Vec<Place> = (0..6).map(|i| Place { rack: i / 3, node: i }).collect();
        let layout = Layout::new(&places).unwrap();
        for operation in Operation::ALL {
            for bytes in [0, 8, 4096, 1 << 30] {
                let call = Call { operation, root: Rank(0), bytes, element: 1 };
                assert!(Plan::default_for(&call, &layout).fits(operation), "{operation} {bytes}");
            }
        }
    }
}
