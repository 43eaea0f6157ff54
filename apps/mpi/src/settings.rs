//! What the user says by variables of the environment, the same at all ranks.

use cool_types::Operation;
use std::collections::BTreeSet;

/// Each has a connection to the agent, memory, and rules in switches.
const GROUPS_DEFAULT: usize = 64;

/// The bytes of the largest call that is taken: what is not contiguous is packed by functions that count in `int`.
pub const LARGEST_CALL_BYTES: u64 = i32::MAX as u64;

/// Whether COOL is used (`COOL_MPI`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterceptMode {
    /// It is not.
    Off,
    /// Where it can be.
    Auto,
    /// It is an error if it cannot be.
    Require,
}

/// How the ranks of a communicator lie over racks: the same at all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankOrder {
    /// Most have the next rank in their own rack.
    Racked,
    /// Most have it in another one.
    Interleaved,
}

impl RankOrder {
    /// Of ranks in these racks.
    pub fn from_racks(racks: &[usize]) -> RankOrder {
        let apart = racks.windows(2).filter(|pair| pair[0] != pair[1]).count();
        if 2 * apart > racks.len() { RankOrder::Interleaved } else { RankOrder::Racked }
    }
}

/// What the user says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiSettings {
    /// `COOL_MPI`: `off`, `auto` or `require`.
    pub mode: InterceptMode,
    /// `COOL_MPI_MIN`: the bytes of the smallest call that is taken; if it is not said, each operation has its own.
    pub min: Option<u64>,
    /// `COOL_MPI_OPS`: the operations that are taken, with commas between.
    pub operations: BTreeSet<Operation>,
    /// `COOL_MPI_GROUPS`: how many communicators of a rank may have groups at a time.
    pub groups: usize,
    /// `COOL_MPI_STATS`: whether it is told at the end what was taken.
    pub stats: bool,
}

/// A variable that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    variable: &'static str,
    value: String,
    expected: String,
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {:?}, but should be {}", self.variable, self.value, self.expected)
    }
}

impl std::error::Error for SettingsError {}

impl MpiSettings {
    /// Those by which nothing is taken.
    pub fn off() -> MpiSettings {
        let (operations, stats) = (BTreeSet::new(), false);
        MpiSettings { mode: InterceptMode::Off, min: None, operations, groups: GROUPS_DEFAULT, stats }
    }

    /// Reads the variables.
    ///
    /// # Errors
    /// If one makes no sense.
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
        let min = parsed("COOL_MPI_MIN", "bytes, as 16384, 64K or 1M", &bytes)?;
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
    /// The bytes of the smallest call of an operation that is taken: unless it is said, those from which COOL is the faster one, as far
    /// as was measured (docs/guide/mpi.md).
    pub fn smallest(&self, operation: Operation) -> u64 {
        self.min.unwrap_or(match operation {
            Operation::Allreduce | Operation::Allgather | Operation::ReduceScatter => 64 << 10,
            // Every part has one destination: whoever carries that out has the same bytes to send, and COOL gains only by the order in
            // which they go.
            Operation::Alltoall => 128 << 10,
            Operation::Gather => 256 << 10,
            Operation::Scatter => 512 << 10,
            _ => 32 << 10,
        })
    }
}

impl MpiSettings {
    /// [`MpiSettings::smallest`] of ranks that lie so.
    pub(crate) fn least_for_order(&self, operation: Operation, order: RankOrder) -> u64 {
        self.smallest(operation).max(match (self.min, operation, order) {
            // What the host's algorithm sends to the nearest ranks stays within racks.
            (None, Operation::Allreduce, RankOrder::Racked) => 128 << 10,
            (None, Operation::ReduceScatter, RankOrder::Interleaved) => 128 << 10,
            _ => 0,
        })
    }

    /// The bytes of the largest call of an operation that is taken.
    pub(crate) fn largest(&self, operation: Operation) -> u64 {
        match (self.min, operation) {
            // The host's library fills the links as well.
            (None, Operation::Alltoall) => (1 << 20) - 1,
            _ => LARGEST_CALL_BYTES,
        }
    }
}

/// Bytes from `64K`, `1M` or a number.
fn bytes(text: &str) -> Option<u64> {
    let (digits, factor) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 1 << 10),
        (at, 'M' | 'm') => (&text[..at], 1 << 20),
        (at, 'G' | 'g') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Those that carry something: a barrier is not taken.
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
        let expected = format!("some of {}, with commas between", names.join(", "));
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
        assert_eq!(e, "COOL_MPI_MIN is \"much\", but should be bytes, as 16384, 64K or 1M");
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
    fn ranks_are_interleaved_if_most_neighbors_are_in_other_racks() {
        let order = |racks: &[usize]| RankOrder::from_racks(racks);
        assert_eq!(order(&[0, 0, 0, 0, 1, 1, 1, 1]), RankOrder::Racked);
        assert_eq!(order(&[0, 1, 2, 3, 0, 1, 2, 3]), RankOrder::Interleaved);
        assert_eq!(order(&[0, 1]), RankOrder::Racked, "as any order of one rank in each rack");
        assert_eq!(order(&[]), RankOrder::Racked);
    }
}
