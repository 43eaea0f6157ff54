//! One switch over OpenFlow 1.3: its channel as a pure machine (handshake, role, meters, counters, and within it
//! the reconciler of its tables), and the task that moves bytes between that and the socket.
//!
//! What the switch is to hold is decided elsewhere and comes in as an [`intent`](crate::intent).

pub(crate) mod admission_policy;
pub(crate) mod capacity;
pub(crate) mod catch_up;
pub(crate) mod channel;
pub(crate) mod connection;
pub(crate) mod counter_poller;
pub(crate) mod keepalive;
pub(crate) mod master_role;
pub(crate) mod metering;
#[cfg(test)]
pub(crate) mod model;
pub(crate) mod pipeline;
pub(crate) mod reconciler;
pub(crate) mod table_change;
