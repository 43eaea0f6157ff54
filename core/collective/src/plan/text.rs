//! Plans as text: names, parsing and printing.

use super::segment_size::SEGMENT_BYTES_MAX;
use super::{Composition, Leaders, LevelPatterns, Plan, PlanShape, Spread};
use crate::patterns::{BINOMIAL, PARALLEL, PATTERNS, Pattern, RECURSIVE_DOUBLING};
use core::fmt;
use core::str::FromStr;

const PARALLEL_LEVEL: LevelPatterns = LevelPatterns { up: &PARALLEL, down: &PARALLEL };

const COOL_P_P: Composition = Composition {
    shape: PlanShape::Levels,
    node: PARALLEL_LEVEL,
    rack: PARALLEL_LEVEL,
    center: PARALLEL_LEVEL,
    spread: Spread::Levels,
    leaders: Leaders::One,
};

/// All named plans. The first two are those of the paper.
pub(super) static NAMED: [(&str, Composition); 5] = [
    ("cool-p-p", COOL_P_P),
    (
        "cool-b-r",
        Composition {
            rack: LevelPatterns { up: &BINOMIAL, down: &PARALLEL },
            center: LevelPatterns { up: &RECURSIVE_DOUBLING, down: &PARALLEL },
            ..COOL_P_P
        },
    ),
    ("multicast", Composition { spread: Spread::Once, ..COOL_P_P }),
    ("multicast-each", Composition { spread: Spread::Each, ..COOL_P_P }),
    ("sharded", Composition { spread: Spread::Each, leaders: Leaders::Sharded, ..COOL_P_P }),
];

/// The reason why a text is not a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No plan has this name.
    #[error(
        "there is no plan {name:?}; there are: {}, and compositions such as rack:binomial,center:ring or flat:ring",
        Plan::names().collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// No pattern has this name.
    #[error("plan {plan:?}: there is no pattern {pattern:?}; there are: {}", Plan::patterns().collect::<Vec<_>>().join(", "))]
    Pattern {
        /// The plan.
        plan: String,
        /// The name of the pattern.
        pattern: String,
    },
    /// A part of a composition is unknown or repeated, or cannot be combined with the others.
    #[error(
        "plan {plan:?}: {part:?} {reason}; a composition has node:, rack: and center: with a pattern, spread: with levels, once or each, leaders: with one or sharded; or only flat: or racked: with a pattern"
    )]
    Part {
        /// The plan.
        plan: String,
        /// The part.
        part: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// The text after the slash is not a valid size.
    #[error("plan {plan:?}: segment {segment:?} is not a number of bytes from 1 to {SEGMENT_BYTES_MAX}")]
    Segment {
        /// The plan's name.
        plan: String,
        /// The text after the slash.
        segment: String,
    },
}

impl Plan {
    pub(super) fn named(name: &str) -> Option<Plan> {
        NAMED
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, composition)| Plan::from_composition(*composition))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.composition)?;
        match self.segment {
            Some(segment) => write!(f, "/{segment}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Composition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = NAMED.iter().find(|(_, named)| named == self) {
            return f.write_str(name);
        }
        match self.shape {
            PlanShape::Flat => return write!(f, "flat:{}", self.node),
            PlanShape::Racked => return write!(f, "racked:{}", self.node),
            PlanShape::Levels => write!(f, "node:{},rack:{},center:{}", self.node, self.rack, self.center)?,
        }
        match self.spread {
            Spread::Levels => {}
            Spread::Once => f.write_str(",spread:once")?,
            Spread::Each => f.write_str(",spread:each")?,
        }
        match self.leaders {
            Leaders::One => Ok(()),
            Leaders::Sharded => f.write_str(",leaders:sharded"),
        }
    }
}

impl fmt::Display for LevelPatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.up.name)?;
        if self.down.name != self.up.name {
            write!(f, "+{}", self.down.name)?;
        }
        Ok(())
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Plan, PlanError> {
        let (name, segment) =
            text.split_once('/').map_or((text, None), |(name, segment)| (name, Some(segment)));
        let plan = match Plan::named(name) {
            Some(plan) => plan,
            None if name.contains(':') => Plan::from_composition(composition(name)?),
            None => return Err(PlanError::Unknown { name: name.to_owned() }),
        };
        let Some(segment) = segment else { return Ok(plan) };
        match segment.parse() {
            Ok(bytes) if (1..=SEGMENT_BYTES_MAX).contains(&bytes) => Ok(plan.with_segment(bytes)),
            _ => Err(PlanError::Segment { plan: name.to_owned(), segment: segment.to_owned() }),
        }
    }
}

fn composition(text: &str) -> Result<Composition, PlanError> {
    let mut composition = COOL_P_P;
    let mut seen = Vec::new();
    for part in text.split(',') {
        let wrong = |reason| PlanError::Part { plan: text.to_owned(), part: part.to_owned(), reason };
        let (key, value) = part.split_once(':').ok_or_else(|| wrong("has no colon"))?;
        if seen.contains(&key) {
            return Err(wrong("is repeated"));
        }
        seen.push(key);
        match (key, value) {
            ("node", value) => composition.node = level(text, value)?,
            ("rack", value) => composition.rack = level(text, value)?,
            ("center", value) => composition.center = level(text, value)?,
            ("spread", "levels") => composition.spread = Spread::Levels,
            ("spread", "once") => composition.spread = Spread::Once,
            ("spread", "each") => composition.spread = Spread::Each,
            ("leaders", "one") => composition.leaders = Leaders::One,
            ("leaders", "sharded") => composition.leaders = Leaders::Sharded,
            ("flat" | "racked", value) => {
                let level = level(text, value)?;
                let shape = if key == "flat" { PlanShape::Flat } else { PlanShape::Racked };
                composition = Composition { shape, node: level, rack: level, center: level, ..composition };
            }
            _ => return Err(wrong("is unknown")),
        }
        if composition.shape != PlanShape::Levels && seen.len() > 1 {
            return Err(wrong("cannot be combined with other parts"));
        }
    }
    Ok(composition)
}

fn level(plan: &str, text: &str) -> Result<LevelPatterns, PlanError> {
    let (up, down) = text.split_once('+').unwrap_or((text, text));
    Ok(LevelPatterns { up: pattern(plan, up)?, down: pattern(plan, down)? })
}

fn pattern(plan: &str, name: &str) -> Result<&'static Pattern, PlanError> {
    let unknown = || PlanError::Pattern { plan: plan.to_owned(), pattern: name.to_owned() };
    PATTERNS.iter().copied().find(|pattern| pattern.name == name).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_parses_from_its_printed_form() {
        let composed = [
            "node:parallel,rack:4-nomial,center:recursive-halving,leaders:sharded",
            "node:chain,rack:binomial+parallel,center:ring,spread:once",
            "flat:ring",
            "racked:recursive-halving+binomial",
        ];
        for text in Plan::names().chain(composed) {
            let plan: Plan = text.parse().unwrap();
            assert_eq!(plan.to_string(), text);
            for plan in [plan, plan.with_segment(4096), plan.with_segment(1)] {
                assert_eq!(plan.to_string().parse(), Ok(plan));
            }
        }
    }

    #[test]
    fn a_composition_with_a_name_goes_by_it() {
        let plan: Plan = "rack:binomial+parallel,center:recursive-doubling+parallel".parse().unwrap();
        assert_eq!(plan.to_string(), "cool-b-r");
    }

    #[test]
    fn segments_follow_the_array_unless_forced() {
        let plan: Plan = "multicast".parse().unwrap();
        let segments = [0, 1 << 20, 1 << 30].map(|array| plan.segment_bytes(array, 16));
        assert_eq!(segments, [16 << 10, 64 << 10, 256 << 10]);
        assert_eq!(plan.with_segment(100).segment_bytes(1 << 30, 16), 100);
    }

    #[test]
    fn an_invalid_plan_is_refused_with_the_valid_ones() {
        let e = "cool-p-q".parse::<Plan>().unwrap_err().to_string();
        assert!(e.contains("cool-p-q") && e.contains("cool-p-p") && e.contains("multicast"), "{e}");
        let e = "rack:binominal".parse::<Plan>().unwrap_err().to_string();
        assert!(e.contains("binominal") && e.contains("binomial,"), "{e}");
        for bad in
            ["rack", "rack:ring,rack:ring", "rack:ring,ring", "flat:ring,rack:ring", "spread:wide", "up:ring"]
        {
            let e = bad.parse::<Plan>().unwrap_err().to_string();
            assert!(e.contains("there is no plan") || e.contains("center: with a pattern"), "{bad}: {e}");
        }
        for bad in ["multicast/", "multicast/0", "multicast/x", "multicast/-1", "multicast/9999999999"] {
            assert!(matches!(bad.parse::<Plan>(), Err(PlanError::Segment { .. })), "{bad}");
        }
    }
}
