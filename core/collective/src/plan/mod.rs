//! Plans: which patterns work at which level, in how large segments; their names, and what they can run. How
//! levels are put together is `levels`' business, which plan is best for a call is `choice`'s.

mod default_plan;
mod segment_size;
mod text;

use crate::patterns::{PATTERNS, Pattern};
use crate::schedule::Operation;
use core::fmt;

pub use text::PlanError;

/// Which ranks a plan's levels hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanShape {
    /// Node, rack and data center.
    Levels,
    /// All ranks, in rank order, whatever the network: the classical patterns.
    Flat,
    /// All ranks, rack by rack: the same with the best ranking.
    Racked,
}

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

/// Who combines the values of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaders {
    /// Its leader.
    One,
    /// Every node its share of the vector.
    Sharded,
}

/// The patterns of one level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelPatterns {
    /// By which its members combine, collect and exchange.
    pub(crate) up: &'static Pattern,
    /// By which they are served.
    pub(crate) down: &'static Pattern,
}

impl PartialEq for LevelPatterns {
    fn eq(&self, other: &LevelPatterns) -> bool {
        (self.up.name, self.down.name) == (other.up.name, other.down.name)
    }
}

/// How a collective is put together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Composition {
    pub(crate) shape: PlanShape,
    /// The only level that a plan of one level has.
    pub(crate) node: LevelPatterns,
    pub(crate) rack: LevelPatterns,
    pub(crate) center: LevelPatterns,
    pub(crate) spread: Spread,
    pub(crate) leaders: Leaders,
}

/// How a call is compiled: a choice of patterns, one per level. Every agent must compile a call with the same
/// plan. It prints as its text, which it parses from:
///
/// - a name, as `cool-p-p`;
/// - levels with their patterns, as `node:parallel,rack:binomial+parallel,center:recursive-doubling`: two
///   patterns joined by `+` are the one that collects and the one that distributes, a level that is left out
///   is parallel; `spread:once` or `spread:each` says that results go by multicast over the whole group, from
///   one node or from each, instead of level by level; `leaders:sharded` says that each node of a rack combines
///   its share of a vector;
/// - one pattern over all ranks, as `flat:ring`, or over all ranks in the order of their racks, as
///   `racked:ring`;
/// - any of these with a forced segment size, as `multicast/65536`.
#[derive(Clone, Copy, PartialEq)]
pub struct Plan {
    composition: Composition,
    segment: Option<u64>,
}

impl Eq for Plan {}

impl Plan {
    /// The names of the plans that have one.
    pub fn names() -> impl Iterator<Item = &'static str> {
        text::NAMED.iter().map(|(name, _)| *name)
    }

    /// The names of all patterns, from which plans are composed.
    pub fn patterns() -> impl Iterator<Item = &'static str> {
        PATTERNS.iter().map(|pattern| pattern.name)
    }

    /// The plans with a name, and those of one level in rank order, that can run `operation`.
    pub fn fitting(operation: Operation) -> impl Iterator<Item = Plan> {
        let named = text::NAMED.iter().map(|(_, composition)| Plan::from_composition(*composition));
        named.filter(move |plan| plan.fits(operation)).chain(Plan::of_one_level(PlanShape::Flat, operation))
    }

    /// The plans of one level, rack by rack, that can run `operation`.
    pub(crate) fn racked(operation: Operation) -> impl Iterator<Item = Plan> {
        Plan::of_one_level(PlanShape::Racked, operation)
    }

    fn of_one_level(shape: PlanShape, operation: Operation) -> impl Iterator<Item = Plan> {
        let plans =
            PATTERNS.iter().map(move |pattern| Plan::from_composition(Composition::flat(shape, pattern)));
        plans.filter(move |plan| plan.fits(operation))
    }

    /// Whether it can run `operation`.
    pub fn fits(&self, operation: Operation) -> bool {
        self.missing(operation).is_none()
    }

    /// What keeps it from running `operation`, in words.
    pub(crate) fn missing(&self, operation: Operation) -> Option<String> {
        let composition = &self.composition;
        if composition.shape == PlanShape::Levels && !composition.joins(operation) {
            return Some("its levels are not put together for that".to_owned());
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

/// What an operation asks of a pattern.
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

/// A need by the name of the pattern's field.
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

    /// Whether its way of putting levels together says how `operation` goes.
    fn joins(&self, operation: Operation) -> bool {
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
