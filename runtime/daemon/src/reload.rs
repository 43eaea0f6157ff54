//! SIGHUP: options are read again, and the log goes on in a file that is opened anew.

use crate::config::Config;
use crate::log::{self, Log};
use clap::Parser;
use std::convert::Infallible;
use tokio::signal::unix::Signal;
use tracing::{info, warn};

/// What the log itself takes over.
const OF_THE_LOG: [&str; 2] = ["log", "event-log"];

/// Reads the options whenever `hangup` comes, and gives them to `apply`, which takes over those flags that are named in `applied`.
/// Others that have changed are said to count from the next start, and wrong ones change nothing.
pub async fn on_hangup<T: Parser>(
    mut hangup: Signal,
    mut config: Config,
    log: Log,
    log_options: impl Fn(&T) -> &log::Options,
    (applied, apply): (&[&str], impl Fn(&T)),
) -> Infallible {
    while hangup.recv().await.is_some() {
        let (options, changed) = match config.read_again::<T>() {
            Ok(read) => read,
            Err(error) => {
                let why = error.to_string();
                warn!(why = why.trim_end(), "the options are wrong, and stay as they were");
                continue;
            }
        };
        if let Err(why) = log.change(log_options(&options)) {
            warn!(%why, "the log stays as it was");
        }
        apply(&options);
        let later =
            |flag: &&String| !OF_THE_LOG.contains(&flag.as_str()) && !applied.contains(&flag.as_str());
        let later: Vec<&String> = changed.iter().filter(later).collect();
        if !later.is_empty() {
            warn!(?later, "these options have changed, and count from the next start");
        }
        info!(?changed, "options read again");
    }
    // No signal comes any more.
    std::future::pending().await
}
