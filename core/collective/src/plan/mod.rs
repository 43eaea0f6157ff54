//! Plans: the patterns of each level, their names as text, and the operations that they can run.
//! The composition of the levels is in `levels`, segment sizes are in `segment_size`, and the
//! default plan of a call is in `default_plan`.

mod default_plan;
mod segment_size;
mod text;

use crate::patterns::{PATTERNS, Pattern};
use crate::schedule::Operation;
use core::fmt;

pub use text::PlanError;

/// The ranks of a plan's levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanShape {
    /// Node, rack and data center.
    Levels,
    /// One level of all ranks in rank order, regardless of racks, as in classical algorithms.
    Flat,
    /// All ranks in the order of their racks: the classical patterns with the best ranking.
    Racked,
}

/// How results for all ranks get from the rack leaders to every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// The rack leaders exchange results, then each serves its rack.
    Levels,
    /// One rank collects all results and multicasts them to the whole group.
    Once,
    /// Every node multicasts its own part to the whole group.
    Each,
}

/// The nodes that combine the values of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaders {
    /// The leader of the rack.
    One,
    /// Each node, for its share of the vector.
    Sharded,
}

/// The patterns of one level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelPatterns {
    /// The pattern by which members combine, collect and exchange.
    pub(crate) up: &'static Pattern,
    /// The pattern by which results are distributed to the members.
    pub(crate) down: &'static Pattern,
}

impl PartialEq for LevelPatterns {
    fn eq(&self, other: &LevelPatterns) -> bool {
        (self.up.name, self.down.name) == (other.up.name, other.down.name)
    }
}

/// The composition of a collective from patterns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Composition {
    pub(crate) shape: PlanShape,
    /// The only level of a plan with one level.
    pub(crate) node: LevelPatterns,
    pub(crate) rack: LevelPatterns,
    pub(crate) center: LevelPatterns,
    pub(crate) spread: Spread,
    pub(crate) leaders: Leaders,
}

/// A plan: how a call is compiled, with patterns for each level. All agents must compile a call
/// with the same plan. A plan prints as its text, from which it parses:
///
/// - a name, for example `cool-p-p`;
/// - levels with their patterns, for example
///   `node:parallel,rack:binomial+parallel,center:recursive-doubling`. Two patterns joined by `+`
///   are the one that collects and the one that distributes. A level that is left out is parallel.
///   `spread:once` or `spread:each` multicasts results to the whole group, from one node or from
///   each, instead of level by level. `leaders:sharded` makes each node of a rack combine its share
///   of a vector;
/// - one pattern over all ranks, for example `flat:ring`, or over all ranks in the order of their
///   racks, for example `racked:ring`;
/// - any of these with a forced segment size, for example `multicast/65536`.
#[derive(Clone, Copy, PartialEq)]
pub struct Plan {
    composition: Composition,
    segment: Option<u64>,
}

impl Eq for Plan {}

impl Plan {
    /// Returns the names of the named plans.
    pub fn names() -> impl Iterator<Item = &'static str> {
        text::NAMED.iter().map(|(name, _)| *name)
    }

    /// Returns the names of all patterns, from which plans are composed.
    pub fn patterns() -> impl Iterator<Item = &'static str> {
        PATTERNS.iter().map(|pattern| pattern.name)
    }

    /// Returns the named plans, and the plans of one level in rank order, that can run `operation`.
    pub fn fitting(operation: Operation) -> impl Iterator<Item = Plan> {
        let named = text::NAMED.iter().map(|(_, composition)| Plan::from_composition(*composition));
        named.filter(move |plan| plan.fits(operation)).chain(Plan::of_one_level(PlanShape::Flat, operation))
    }

    /// Returns the plans of one level in the order of racks that can run `operation`.
    pub(crate) fn racked(operation: Operation) -> impl Iterator<Item = Plan> {
        Plan::of_one_level(PlanShape::Racked, operation)
    }

    fn of_one_level(shape: PlanShape, operation: Operation) -> impl Iterator<Item = Plan> {
        let plans =
            PATTERNS.iter().map(move |pattern| Plan::from_composition(Composition::flat(shape, pattern)));
        plans.filter(move |plan| plan.fits(operation))
    }

    /// Returns whether the plan can run `operation`.
    pub fn fits(&self, operation: Operation) -> bool {
        self.missing(operation).is_none()
    }

    /// Returns whether agents of the previous release do not know one of its patterns.
    pub(crate) fn is_new(&self) -> bool {
        let Composition { node, rack, center, .. } = self.composition;
        [node, rack, center].iter().any(|level| level.up.is_new || level.down.is_new)
    }

    /// Returns the reason why the plan cannot run `operation`, or `None` if it can.
    pub(crate) fn missing(&self, operation: Operation) -> Option<String> {
        let composition = &self.composition;
        if composition.shape == PlanShape::Levels && !composition.supports(operation) {
            return Some(format!("its `spread` or `leaders` does not support {operation}"));
        }
        let missing = composition.needs(operation).into_iter().find(|need| !need.met())?;
        Some(format!("pattern {} at level {} has no {}", missing.pattern.name, missing.level, missing.what))
    }

    pub(crate) fn composition(&self) -> Composition {
        self.composition
    }

    fn from_composition(composition: Composition) -> Plan {
        Plan { composition, segment: None }
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plan({self})")
    }
}

/// A feature of a pattern that an operation needs.
struct Need {
    level: &'static str,
    pattern: &'static Pattern,
    what: &'static str,
    has: fn(&Pattern) -> bool,
}

impl Need {
    fn met(&self) -> bool {
        (self.has)(self.pattern)
    }
}

/// Returns a need for the pattern's field of this name.
macro_rules! need {
    ($level:expr, $pattern:expr, $what:ident) => {
        Need { level: $level, pattern: $pattern, what: stringify!($what), has: |p| p.$what.is_some() }
    };
}

impl Composition {
    fn flat(shape: PlanShape, pattern: &'static Pattern) -> Composition {
        let level = LevelPatterns { up: pattern, down: pattern };
        Composition {
            shape,
            node: level,
            rack: level,
            center: level,
            spread: Spread::Levels,
            leaders: Leaders::One,
        }
    }

    /// Returns whether the composition of the levels supports `operation`.
    fn supports(&self, operation: Operation) -> bool {
        match (self.leaders, self.spread) {
            (Leaders::One, Spread::Levels) => true,
            (Leaders::One, Spread::Once) => {
                matches!(
                    operation,
                    Operation::Bcast | Operation::Allreduce | Operation::Allgather | Operation::Barrier
                )
            }
            (Leaders::One, Spread::Each) => operation == Operation::Allgather,
            (Leaders::Sharded, Spread::Each) => {
                matches!(operation, Operation::Reduce | Operation::Allreduce | Operation::ReduceScatter)
            }
            (Leaders::Sharded, _) => matches!(operation, Operation::Reduce | Operation::ReduceScatter),
        }
    }

    fn needs(&self, operation: Operation) -> Vec<Need> {
        if self.shape != PlanShape::Levels {
            return self.needs_of_one_level(operation);
        }
        let levels = [("node", self.node), ("rack", self.rack), ("center", self.center)];
        let reduces = || levels.map(|(name, level)| need!(name, level.up, reduce));
        let gathers = || levels.map(|(name, level)| need!(name, level.up, gather));
        let scatters = || levels.map(|(name, level)| need!(name, level.down, scatter));
        let bcasts = || levels.map(|(name, level)| need!(name, level.down, bcast));
        let [node, rack, center] = levels.map(|(_, level)| level);
        let each = self.spread == Spread::Each;
        match operation {
            Operation::Bcast => bcasts().into(),
            Operation::Reduce => reduces().into(),
            Operation::Allreduce | Operation::Barrier if each => reduces()
                .into_iter()
                .chain([need!("center", center.up, allgather), need!("node", node.down, bcast)])
                .collect(),
            Operation::Allreduce | Operation::Barrier => {
                let exchange = (center.up.reduce.is_none() && self.spread == Spread::Levels)
                    .then_some(need!("center", center.up, allreduce));
                let mut needs: Vec<Need> = reduces().into_iter().chain(bcasts()).collect();
                if let Some(exchange) = exchange {
                    needs.retain(|need| need.level != "center");
                    needs.push(exchange);
                }
                needs
            }
            Operation::Gather => gathers().into(),
            Operation::Scatter => scatters().into(),
            Operation::Allgather if each => {
                let mut needs: Vec<Need> = gathers().into_iter().take(1).collect();
                needs.extend([need!("center", center.up, allgather), need!("node", node.down, bcast)]);
                needs
            }
            Operation::Allgather => {
                let exchange = center.up.allgather.is_some() && self.spread == Spread::Levels;
                gathers()
                    .into_iter()
                    .chain(bcasts())
                    .filter(|need| !(exchange && need.level == "center"))
                    .collect()
            }
            Operation::ReduceScatter if self.leaders == Leaders::Sharded => reduces().into(),
            Operation::ReduceScatter => reduces().into_iter().chain(scatters()).collect(),
            Operation::Alltoall => {
                vec![need!("rack", rack.up, alltoall), need!("center", center.up, alltoall)]
            }
            Operation::Scan | Operation::Exscan => {
                vec![
                    need!("rack", rack.up, scan),
                    need!("center", center.up, scan),
                    need!("rack", rack.down, bcast),
                ]
            }
        }
    }

    fn needs_of_one_level(&self, operation: Operation) -> Vec<Need> {
        let name = if self.shape == PlanShape::Flat { "flat" } else { "racked" };
        let LevelPatterns { up, down } = self.node;
        vec![match operation {
            Operation::Bcast => need!(name, down, bcast),
            Operation::Reduce => need!(name, up, reduce),
            Operation::Allreduce | Operation::Barrier => need!(name, up, allreduce),
            Operation::Gather => need!(name, up, gather),
            Operation::Scatter => need!(name, down, scatter),
            Operation::Allgather => need!(name, up, allgather),
            Operation::ReduceScatter => need!(name, up, reduce_scatter),
            Operation::Alltoall => need!(name, up, alltoall),
            Operation::Scan | Operation::Exscan => need!(name, up, scan),
        }]
    }
}
