//! Complete collectives in the simulator: every node has an engine and real memory, and
//! communicates by datagrams and connections.

mod cipher;
mod cluster;
mod connections;
mod coverage;
mod faults;
mod judge;
mod memories;
mod node;
mod outputs;
mod quick;
mod quick_scenario;
mod run;
mod scenario;
mod script;
mod tree_faults;
mod tree_sources;

pub use cluster::{Answer, ClusterSettings, SimulatedCluster, Step};
pub use coverage::Coverage;
pub use scenario::{
    CallScenario, CollectiveScenario, FailedStep, Fault, GroupScenario, MessageScenario, QuickScenario,
};

pub use tree_faults::TreeFault;

use cool_engine::{GroupError, MemoryRange};
use cool_machine::Time;

/// A violation of the engine's contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContractViolation {
    /// The engine named memory that does not exist: it never did, was freed, or belongs to a
    /// completed call.
    #[error("node h{node} named {range:?}, which does not exist")]
    Memory {
        /// The node.
        node: u16,
        /// The range that it named.
        range: MemoryRange,
    },
    /// The engine reported two results of a call.
    #[error("node h{node} reported two results of call {token}")]
    AnsweredTwice {
        /// The node.
        node: u16,
        /// The call.
        token: u64,
    },
    /// The driver accepted a datagram of the adversary as one of the group's.
    #[error("node h{node} accepted a forged datagram")]
    Forged {
        /// The node.
        node: u16,
    },
    /// The engine reported the result of a proof that does not run or twice.
    #[error("node h{node} reported a proof of group {group} that was not requested")]
    UnexpectedReport {
        /// The node.
        node: u16,
        /// The group.
        group: u64,
    },
    /// The engine refused a valid group.
    #[error("{0}")]
    Refused(GroupError),
    /// Events at one instant continue without end.
    #[error("events at {at:?} continue without end")]
    Spin {
        /// The time at which they happen.
        at: Time,
    },
}
