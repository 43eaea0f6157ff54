//! Counters of the cases that collectives drawn from seeds have covered. They can be added up and
//! printed.

use cool_engine::CallFailureKind;
use cool_machine::Duration;
use cool_types::Operation;
use std::collections::BTreeMap;
use std::fmt;

/// Counters over scenarios.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Number of scenarios, by the fault in them (other than lost packets).
    pub faults: BTreeMap<&'static str, u64>,
    /// Number of collectives that succeeded at all surviving ranks, and of the others.
    pub operations: BTreeMap<Operation, [u64; 2]>,
    /// Number of collectives with parts of unequal lengths.
    pub counted: u64,
    /// Number of collectives with a plan chosen by the planner.
    pub picked: u64,
    /// Number of successful calls, by plan without its segment size.
    pub plans: BTreeMap<String, u64>,
    /// Number of quick calls: those that ranks executed themselves.
    pub quick: u64,
    /// Number of calls that ranks requested their agents to watch.
    pub watched: u64,
    /// Number of datagrams of quick calls that agents retransmitted.
    pub repaired: u64,
    /// Number of proofs of trees, and of those that withdrew a tree.
    pub tree_proofs: [u64; 2],
    /// Number of failed calls and messages, by kind of failure.
    pub failures: BTreeMap<CallFailureKind, u64>,
    /// Number of messages between ranks that arrived.
    pub messages: u64,
    /// Number of bytes of results that were checked.
    pub bytes: u64,
    /// Number of datagrams that agents and ranks sent.
    pub datagrams: u64,
    /// Sum of the simulated times.
    pub simulated: Duration,
    /// The longest time from the last rank's call to a result, in scenarios where only packets were
    /// lost.
    pub slowest: Duration,
}

impl Coverage {
    /// Adds the counters of another one.
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
        (0..2).for_each(|kind| self.tree_proofs[kind] += other.tree_proofs[kind]);
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

    /// Returns the number of collectives.
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
            "{} collectives in {scenarios} scenarios, {failed} of them failed as expected",
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
                "{} calls of ranks by quick calls, {} times watched, {} datagrams retransmitted by agents",
                self.quick, self.watched, self.repaired
            )?;
        }
        if self.tree_proofs[0] > 0 {
            let [proofs, failed] = self.tree_proofs;
            writeln!(f, "{proofs} proofs of trees, {failed} of them withdrew some")?;
        }
        writeln!(f, "faults: {:?}", self.faults)?;
        writeln!(f, "failures: {:?}", self.failures)?;
        writeln!(
            f,
            "{} messages, {} bytes checked, {} datagrams",
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
