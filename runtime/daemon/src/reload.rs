//! Handles SIGHUP: reloads the options and reopens the event log.

use crate::config::Config;
use crate::log::{self, Log};
use clap::Parser;
use std::convert::Infallible;
use tokio::signal::unix::Signal;
use tracing::{info, warn};

/// Flags that the log applies itself.
const LOG_FLAGS: [&str; 2] = ["log", "event-log"];

/// Reloads the options at each `hangup` and passes them to `apply`, which must apply the flags in
/// `applied`. If other flags have changed, logs that they take effect at the next start. Invalid
/// options change nothing.
pub async fn on_hangup<T: Parser>(
    mut hangup: Signal,
    mut config: Config,
    log: Log,
    log_options: impl Fn(&T) -> &log::Options,
    (applied, apply): (&[&str], impl Fn(&T)),
) -> Infallible {
    while hangup.recv().await.is_some() {
        let (options, changed) = match config.reload::<T>() {
            Ok(read) => read,
            Err(error) => {
                let why = error.to_string();
                warn!(why = why.trim_end(), "invalid options; the previous ones stay in effect");
                continue;
            }
        };
        if let Err(why) = log.change(log_options(&options)) {
            warn!(%why, "cannot change the log");
        }
        apply(&options);
        let later = |flag: &&String| !LOG_FLAGS.contains(&flag.as_str()) && !applied.contains(&flag.as_str());
        let later: Vec<&String> = changed.iter().filter(later).collect();
        if !later.is_empty() {
            warn!(?later, "these options have changed and take effect at the next start");
        }
        info!(?changed, "options reloaded");
    }
    // No more signals will arrive.
    std::future::pending().await
}
