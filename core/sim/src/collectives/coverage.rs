//! What seeded collectives have covered, to be added up and printed.

use cool_engine::CallFailureKind;
use cool_machine::Duration;
use cool_types::Operation;
use std::collections::BTreeMap;
use std::fmt;

/// Counts over scenarios.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Scenarios, by what went wrong in them beside packets.
    pub faults: BTreeMap<&'static str, u64>,
    /// Collectives of which all ranks that lived were answered well, and others.
    pub operations: BTreeMap<Operation, [u64; 2]>,
    /// Those with parts of unequal lengths, among them.
    pub counted: u64,
    /// Those whose plan the planner has picked, among them.
    pub picked: u64,
    /// Calls that were answered well, by plan without its segment size.
    pub plans: BTreeMap<String, u64>,
    /// Calls that ranks carried out themselves.
    pub quick: u64,
    /// Calls of such groups that agents were told to watch.
    pub watched: u64,
    /// Datagrams of theirs that agents sent again.
    pub repaired: u64,
    /// Calls and messages that failed, by how.
    pub failures: BTreeMap<CallFailureKind, u64>,
    /// Messages from rank to rank that came.
    pub messages: u64,
    /// Bytes that ranks had to have and were looked at.
    pub bytes: u64,
    /// Datagrams that agents and ranks sent.
    pub datagrams: u64,
    /// Simulated time.
    pub simulated: Duration,
    /// The longest from the last rank's call to an answer where nothing but packets was lost.
    pub slowest: Duration,
}

impl Coverage {
    /// Adds another's counts.
    pub fn add(&mut self, other: &Coverage) {
        fn sum<K: Ord + Clone>(into: &mut BTreeMap<K, u64>, from: &BTreeMap<K, u64>) {
            from.iter().for_each(|(key, count)| *into.entry(key.clone()).or_default() += count);
        }
        sum(&mut self.faults, &other.faults);
        sum(&mut self.plans, &other.plans);
        sum(&mut self.failures, &other.failures);
        for (operation, counts) in &other.operations {
            let into = self.operations.entry(*operation).or_default();
            (0..2).for_each(|kind| into[kind] += counts[kind]);
        }
        self.counted += other.counted;
        self.quick += other.quick;
        self.watched += other.watched;
        self.repaired += other.repaired;
        self.picked += other.picked;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.datagrams += other.datagrams;
        self.simulated += other.simulated;
        self.slowest = self.slowest.max(other.slowest);
    }

    /// How many collectives there were.
    pub fn collectives(&self) -> u64 {
        self.operations.values().flatten().sum()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scenarios: u64 = self.faults.values().sum();
        let failed: u64 = self.operations.values().map(|counts| counts[1]).sum();
        writeln!(
            f,
            "{} collectives in {scenarios} scenarios, {failed} of them failed as they had to",
            self.collectives()
        )?;
        writeln!(f, "operations: {:?}", self.operations)?;
        writeln!(
            f,
            "{} with parts of unequal lengths, {} by the planner's pick, {} plans",
            self.counted,
            self.picked,
            self.plans.len()
        )?;
        if self.quick > 0 {
            writeln!(
                f,
                "{} calls of ranks by quick calls, {} times watched, {} datagrams sent again by agents",
                self.quick, self.watched, self.repaired
            )?;
        }
        writeln!(f, "faults: {:?}", self.faults)?;
        writeln!(f, "failures: {:?}", self.failures)?;
        writeln!(
            f,
            "{} messages, {} bytes looked at, {} datagrams",
            self.messages, self.bytes, self.datagrams
        )?;
        write!(
            f,
            "{} s simulated, the slowest call without a fault {:?}",
            self.simulated.as_secs(),
            self.slowest
        )
    }
}
