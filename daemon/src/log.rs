//! The log of a program: text for people on standard error, chosen by RUST_LOG; and its events, one JSON document
//! each, of which the last are kept in memory and all can go to a file.

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing_subscriber::filter::{EnvFilter, FromEnvError, LevelFilter};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, registry};

/// Events that are kept.
const KEPT: usize = 200;
/// Longer ones are not.
const MAX_KEPT_BYTES: usize = 4096;

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// RUST_LOG makes no sense.
    #[error("RUST_LOG: {0}")]
    Filter(#[from] FromEnvError),
    /// The file cannot be written.
    #[error("event log {}: {source}; name another file with --event-log", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The process has a log.
    #[error("{0}")]
    Twice(#[from] TryInitError),
}

/// The flag by which events go to a file.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Append every event to this file, a JSON document a line
    #[arg(long, value_name = "FILE")]
    pub event_log: Option<PathBuf>,
}

/// The events of this process; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Events {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    last: VecDeque<Arc<str>>,
    file: Option<File>,
    /// The file could not be written, and that was told.
    told: bool,
}

impl Options {
    /// Starts the log of this process.
    ///
    /// # Errors
    /// If RUST_LOG or the file make that impossible.
    pub fn start(&self) -> Result<Events, LogError> {
        let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env()?;
        let events = Events::default();
        events.lock().file = self.event_log.as_deref().map(append).transpose()?;
        let text = fmt::layer().with_writer(io::stderr).with_ansi(false).with_filter(filter);
        let json = fmt::layer().json().flatten_event(true).with_span_list(false);
        let json = json.with_writer(events.clone()).with_filter(LevelFilter::INFO);
        registry().with(text).with(json).try_init()?;
        Ok(events)
    }
}

fn append(path: &Path) -> Result<File, LogError> {
    let file = File::options().create(true).append(true).open(path);
    file.map_err(|source| LogError::File { path: path.to_owned(), source })
}

impl Events {
    /// The last events, oldest first, each a JSON document.
    pub fn last(&self) -> Vec<Arc<str>> {
        self.lock().last.iter().cloned().collect()
    }

    // A panic elsewhere leaves a list of whole lines.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl MakeWriter<'_> for Events {
    type Writer = Events;

    fn make_writer(&self) -> Events {
        self.clone()
    }
}

/// Takes one event at a time.
impl Write for Events {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        if line.len() <= MAX_KEPT_BYTES {
            if state.last.len() == KEPT {
                state.last.pop_front();
            }
            state.last.push_back(String::from_utf8_lossy(line).trim_end().into());
        }
        let written = state.file.as_mut().map_or(Ok(()), |file| file.write_all(line));
        if let Err(error) = &written
            && !state.told
        {
            // Through the log it would come back here.
            eprintln!("the event log cannot be written: {error}");
        }
        state.told = written.is_err();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_kept_and_all_go_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let mut events = Events::default();
        events.lock().file = Some(append(&path).unwrap());
        for n in 0..KEPT + 5 {
            events.write_all(format!("{{\"n\":{n}}}\n").as_bytes()).unwrap();
        }
        events.write_all(&vec![b'x'; MAX_KEPT_BYTES + 1]).unwrap();
        let kept = events.last();
        assert_eq!((kept.len(), &*kept[0], &*kept[KEPT - 1]), (KEPT, "{\"n\":5}", "{\"n\":204}"));
        let file = std::fs::read_to_string(&path).unwrap();
        assert_eq!(file.lines().count(), KEPT + 6);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let says = append(Path::new("/nonexistent/events")).unwrap_err().to_string();
        assert!(says.contains("/nonexistent/events") && says.contains("--event-log"), "{says}");
    }
}
