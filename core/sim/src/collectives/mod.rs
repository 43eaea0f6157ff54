//! Whole collectives in the simulator: every node an engine and real memory, over datagrams and connections.

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

pub use cluster::{Answer, ClusterSettings, SimulatedCluster, Step};
pub use coverage::Coverage;
pub use quick_scenario::QuickScenario;
pub use scenario::{CallScenario, CollectiveScenario, Fault, GroupScenario, MessageScenario};

use cool_engine::{GroupError, MemoryRange};
use cool_machine::Time;

/// What an engine must not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContractViolation {
    /// It named memory that is not there: never was, was freed, or belongs to a call that was answered.
    #[error("node h{node} named {range:?}, which is not there")]
    Memory {
        /// The node.
        node: u16,
        /// What it named.
        range: MemoryRange,
    },
    /// It answered a call twice.
    #[error("node h{node} answered call {token} twice")]
    AnsweredTwice {
        /// The node.
        node: u16,
        /// The call.
        token: u64,
    },
    /// Its driver took a datagram of the adversary's for one of its group's.
    #[error("node h{node} believed a forged datagram")]
    Forged {
        /// The node.
        node: u16,
    },
    /// It refused a group that is as it should be.
    #[error("{0}")]
    Refused(GroupError),
    /// Without end, something happens while time stands still.
    #[error("at {at:?} something happens without end")]
    Spin {
        /// When.
        at: Time,
    },
}
