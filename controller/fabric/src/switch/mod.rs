//! One switch over OpenFlow 1.3. The channel is a pure machine for handshake, role, meters and
//! counters, and contains the reconciler of the switch's tables. A task moves bytes between the
//! channel and the socket.
//!
//! The entries that a switch must hold are decided elsewhere and arrive as updates of the
//! [`intent`](crate::intent).

pub(crate) mod admission_policy;
pub(crate) mod capacity;
pub(crate) mod catch_up;
pub(crate) mod channel;
pub(crate) mod connected_peers;
pub(crate) mod connection;
pub(crate) mod counter_poller;
pub(crate) mod harmless_messages;
pub(crate) mod inventory;
pub(crate) mod keepalive;
pub(crate) mod master_role;
pub(crate) mod metering;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "some parts serve only the tests of this crate"))]
pub(crate) mod model;
pub(crate) mod pipeline;
pub(crate) mod port_info;
pub(crate) mod reconciler;
pub(crate) mod reported_form;
pub(crate) mod table_change;
