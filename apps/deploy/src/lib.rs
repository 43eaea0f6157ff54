//! Deployments that ordinary users start with `cool up` and `cool join`, without root
//! or packages.
//!
//! `cool up` starts a controller, an agent and a join server on one machine, and prints a token.
//! `cool join TOKEN` on another machine proves to the join server that it knows the token's secret,
//! receives a certificate for its node, and starts an agent. Both sides authenticate each other by
//! that secret, so no certificate has to be copied first. [`DeploymentDir`] keeps what later
//! commands need, for example `cool down`. The programs run in the background ([`process`]), or as
//! units of systemd ([`NodeUnits`]).

pub mod account;
pub mod deployment_dir;
pub mod error;
pub mod interfaces;
pub mod invitation;
pub mod join_channel;
pub mod join_server;
pub mod join_token;
pub mod node_units;
pub mod process;
pub mod unit_file;

pub use account::DeploymentAccount;
pub use deployment_dir::{DeploymentDir, NodeSettings, xdg_directory};
pub use error::DeployError;
pub use interfaces::DataInterface;
pub use join_server::JoinServerTask;
pub use join_token::{JoinSecret, JoinToken};
pub use node_units::NodeUnits;
pub use process::{ExitWatch, LockedFile};
