//! Settings from environment variables. They must be the same at all ranks.

use cool_types::Operation;
use std::collections::BTreeSet;

/// The default of [`MpiSettings::groups`]. The number is limited, because each group needs a
/// connection to the agent, memory, and rules in switches.
const GROUPS_DEFAULT: usize = 64;

/// Bytes of the largest intercepted call. Longer calls are passed through, because MPI's functions
/// that pack noncontiguous data count in `int`.
pub const LARGEST_CALL_BYTES: u64 = i32::MAX as u64;

/// Whether COOL is used (`COOL_MPI`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterceptMode {
    /// Never.
    Off,
    /// Where possible.
    Auto,
    /// Where possible; it is an error if the communicator of a call that could be intercepted
    /// cannot have a group.
    Require,
}

/// How the ranks of a communicator are distributed over racks. All ranks compute the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankOrder {
    /// Most ranks have the next rank in their own rack.
    Racked,
    /// Most ranks have the next rank in another rack.
    Interleaved,
}

impl RankOrder {
    /// Returns the order of the ranks, given the rack of each rank.
    pub fn from_racks(racks: &[usize]) -> RankOrder {
        let apart = racks.windows(2).filter(|pair| pair[0] != pair[1]).count();
        if 2 * apart > racks.len() { RankOrder::Interleaved } else { RankOrder::Racked }
    }
}

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiSettings {
    /// `COOL_MPI`: `off`, `auto` or `require`.
    pub mode: InterceptMode,
    /// `COOL_MPI_MIN`: bytes of the smallest intercepted call. By default it depends on the
    /// operation.
    pub min: Option<u64>,
    /// `COOL_MPI_OPS`: the intercepted operations, separated by commas.
    pub operations: BTreeSet<Operation>,
    /// `COOL_MPI_GROUPS`: how many communicators of a rank may have groups at the same time.
    pub groups: usize,
    /// `COOL_MPI_STATS`: whether to print statistics of the calls at the end.
    pub stats: bool,
}

/// A variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    variable: &'static str,
    value: String,
    expected: String,
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {:?}, but must be {}", self.variable, self.value, self.expected)
    }
}

impl std::error::Error for SettingsError {}

/// Writes the variables that determine which calls are intercepted, as the user could set them.
impl std::fmt::Display for MpiSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mode = match self.mode {
            InterceptMode::Off => return write!(f, "COOL_MPI=off, or an invalid variable"),
            InterceptMode::Auto => "auto",
            InterceptMode::Require => "require",
        };
        write!(f, "COOL_MPI={mode} COOL_MPI_GROUPS={}", self.groups)?;
        self.min.map_or(Ok(()), |min| write!(f, " COOL_MPI_MIN={min}"))?;
        let names: Vec<String> = self.operations.iter().map(Operation::to_string).collect();
        write!(f, " COOL_MPI_OPS={}", names.join(","))
    }
}

impl MpiSettings {
    /// Returns settings that intercept no call.
    pub fn off() -> MpiSettings {
        let (operations, stats) = (BTreeSet::new(), false);
        MpiSettings { mode: InterceptMode::Off, min: None, operations, groups: GROUPS_DEFAULT, stats }
    }

    /// Returns the settings. `lookup` must return the value of a variable, or `None` if it is not
    /// set. A variable that is not set or empty has its default.
    ///
    /// # Errors
    /// If a value is invalid.
    pub fn read(lookup: impl Fn(&'static str) -> Option<String>) -> Result<MpiSettings, SettingsError> {
        let parsed = |variable, expected: &str, parse: &dyn Fn(&str) -> Option<u64>| {
            let Some(value) = lookup(variable).filter(|value| !value.is_empty()) else { return Ok(None) };
            parse(value.trim()).map(Some).ok_or_else(|| SettingsError {
                variable,
                value,
                expected: expected.to_owned(),
            })
        };
        let mode = |text: &str| ["off", "auto", "require"].iter().position(|m| *m == text).map(|m| m as u64);
        let mode = match parsed("COOL_MPI", "off, auto or require", &mode)?.unwrap_or(1) {
            0 => InterceptMode::Off,
            1 => InterceptMode::Auto,
            _ => InterceptMode::Require,
        };
        let min = parsed("COOL_MPI_MIN", "a size in bytes, for example 16384, 64K or 1M", &bytes)?;
        let number = |text: &str| text.parse().ok();
        let groups = parsed("COOL_MPI_GROUPS", "a number", &number)?;
        let yes = |text: &str| ["0", "1"].iter().position(|known| *known == text).map(|yes| yes as u64);
        let stats = parsed("COOL_MPI_STATS", "0 or 1", &yes)? == Some(1);
        let operations = operations(lookup("COOL_MPI_OPS"))?;
        Ok(MpiSettings {
            mode,
            min,
            operations,
            groups: groups.map_or(GROUPS_DEFAULT, |groups| usize::try_from(groups).unwrap_or(usize::MAX)),
            stats,
        })
    }
}

impl MpiSettings {
    /// Returns the bytes of the smallest intercepted call of an operation. The default is the size
    /// from which COOL is faster in measurements (docs/guide/mpi.md).
    pub fn smallest(&self, operation: Operation) -> u64 {
        self.min.unwrap_or(match operation {
            Operation::Allreduce | Operation::Allgather | Operation::ReduceScatter => 64 << 10,
            // Every part has a single destination, so both libraries must send the same bytes, and
            // COOL saves time only by their order.
            Operation::Alltoall => 128 << 10,
            Operation::Gather => 256 << 10,
            Operation::Scatter => 512 << 10,
            _ => 32 << 10,
        })
    }
}

impl MpiSettings {
    /// Returns the bytes of the smallest intercepted call of an operation, given the order of the
    /// ranks. It is at least [`MpiSettings::smallest`].
    pub(crate) fn least_for_order(&self, operation: Operation, order: RankOrder) -> u64 {
        self.smallest(operation).max(match (self.min, operation, order) {
            // In allreduce, the host's library sends most data to neighboring ranks, which are in
            // the same rack in this order.
            (None, Operation::Allreduce, RankOrder::Racked) => 128 << 10,
            (None, Operation::ReduceScatter, RankOrder::Interleaved) => 128 << 10,
            _ => 0,
        })
    }

    /// Returns the bytes of the largest intercepted call of an operation.
    pub(crate) fn largest(&self, operation: Operation) -> u64 {
        match (self.min, operation) {
            // Longer calls are passed through, because the host's library fills the links with them
            // as well.
            (None, Operation::Alltoall) => (1 << 20) - 1,
            _ => LARGEST_CALL_BYTES,
        }
    }
}

/// Parses a number of bytes, such as `65536`, `64K` or `1M`.
fn bytes(text: &str) -> Option<u64> {
    let (digits, factor) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 1 << 10),
        (at, 'M' | 'm') => (&text[..at], 1 << 20),
        (at, 'G' | 'g') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Parses a list of operations. Without a list, returns all operations except the barrier, which is
/// never intercepted, because it has no data.
fn operations(list: Option<String>) -> Result<BTreeSet<Operation>, SettingsError> {
    let all = Operation::ALL.into_iter().filter(|operation| *operation != Operation::Barrier);
    let Some(value) = list.filter(|list| !list.is_empty()) else { return Ok(all.collect()) };
    let named = value.split(',').map(|name| {
        let operation = name.trim().parse().ok();
        operation.filter(|operation| *operation != Operation::Barrier)
    });
    let named: Option<BTreeSet<Operation>> = named.collect();
    named.ok_or_else(|| {
        let names: Vec<String> = all.map(|operation| operation.to_string()).collect();
        let expected = format!("some of {}, separated by commas", names.join(", "));
        SettingsError { variable: "COOL_MPI_OPS", value, expected }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variable: &'static str, value: &str) -> Result<MpiSettings, String> {
        MpiSettings::read(|name| (name == variable).then(|| value.to_owned())).map_err(|e| e.to_string())
    }

    #[test]
    fn unset_variables_have_defaults() {
        let settings = read("", "").unwrap();
        assert_eq!((settings.mode, settings.min, settings.groups), (InterceptMode::Auto, None, 64));
        assert!(settings.operations.len() == 10 && !settings.stats);
        assert_eq!(settings.smallest(Operation::Bcast), 32768);
        assert_eq!(settings.smallest(Operation::Gather), 262144);
        assert_eq!(read("COOL_MPI_MIN", "").unwrap(), settings);
    }

    #[test]
    fn sizes_have_units() {
        let min = |text| read("COOL_MPI_MIN", text).map(|settings| settings.smallest(Operation::Gather));
        assert_eq!(min("64K"), Ok(65536));
        assert_eq!(min("2M"), Ok(2 << 20));
        assert_eq!(min("0"), Ok(0));
        let e = min("much").unwrap_err();
        assert_eq!(e, "COOL_MPI_MIN is \"much\", but must be a size in bytes, for example 16384, 64K or 1M");
    }

    #[test]
    fn a_bad_variable_is_quoted_with_the_expected_values() {
        for (variable, value, expected) in [
            ("COOL_MPI", "on", "off, auto or require"),
            ("COOL_MPI_OPS", "bcast,barrier", "some of bcast, reduce"),
            ("COOL_MPI_OPS", "gatherv", "some of bcast, reduce"),
            ("COOL_MPI_STATS", "yes", "0 or 1"),
        ] {
            let e = read(variable, value).unwrap_err();
            assert!(e.contains(&format!("{variable} is {value:?}")) && e.contains(expected), "{e}");
        }
    }

    #[test]
    fn settings_with_the_same_effect_have_the_same_text() {
        let text = |variable, value| read(variable, value).unwrap().to_string();
        assert_eq!(text("COOL_MPI_MIN", "64K"), text("COOL_MPI_MIN", "65536"));
        assert_eq!(text("COOL_MPI_OPS", "bcast,reduce"), text("COOL_MPI_OPS", "reduce,bcast"));
        assert_eq!(text("COOL_MPI_STATS", "1"), text("", ""), "statistics have no effect on calls");
        let texts = [("", ""), ("COOL_MPI_MIN", "0"), ("COOL_MPI", "require"), ("COOL_MPI", "off")];
        let texts: BTreeSet<String> = texts.map(|(variable, value)| text(variable, value)).into();
        assert_eq!(texts.len(), 4);
        assert!(text("COOL_MPI_GROUPS", "1").len() < 400, "longer texts are truncated");
    }

    #[test]
    fn ranks_are_interleaved_if_most_neighbors_are_in_other_racks() {
        let order = |racks: &[usize]| RankOrder::from_racks(racks);
        assert_eq!(order(&[0, 0, 0, 0, 1, 1, 1, 1]), RankOrder::Racked);
        assert_eq!(order(&[0, 1, 2, 3, 0, 1, 2, 3]), RankOrder::Interleaved);
        assert_eq!(order(&[0, 1]), RankOrder::Racked, "as any order of one rank in each rack");
        assert_eq!(order(&[]), RankOrder::Racked);
    }
}
