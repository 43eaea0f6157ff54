//! Agents: their sessions, their registrations and the state of their connections.

pub mod grace_timers;
mod job_request_queue;
pub mod presence;
pub mod registered_agent;
pub mod registry;
pub mod session;
pub mod session_message;
pub mod traces;

pub use registered_agent::{AdmitError, RegisteredAgent};
pub use registry::{Admission, AgentRegistry};
pub use session::{Session, UndeliverableError};
pub use session_message::{SessionEvent, SessionMessage};
