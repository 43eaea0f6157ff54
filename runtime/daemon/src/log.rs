//! The log of a program.
//!
//! It has two outputs: text on standard error, filtered by --log, and events as JSON documents. The
//! last events are kept in memory, and all can be written to a file. Both outputs omit lines of
//! events that happen too often (module `line_limit`). Warnings and errors are counted.

use crate::line_limit::LineLimit;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter, ParseError};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, registry, reload};

/// Number of events that are kept in memory.
const MAX_EVENTS: usize = 200;
/// Maximum size of an event that is kept in memory, in bytes.
const MAX_EVENT_BYTES: usize = 4096;

/// The reasons why the log cannot be started or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log has already shut down.
    #[error("cannot change the log filter: {0}")]
    Ended(#[from] reload::Error),
    /// The file cannot be written.
    #[error("event log {}: {source}; name another file with --event-log", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The process already has a log.
    #[error("{0}")]
    Twice(#[from] TryInitError),
}

/// Command-line flags of the log.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Log level on standard error (error, warn, info, debug or trace), for all modules or per
    /// module, for example info,cool_fabric=debug [default: info]
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", value_parser = check_filter)]
    pub log: Option<String>,
    /// Append all events to this file, one JSON document per line; SIGHUP reopens it for logrotate
    #[arg(long, value_name = "FILE")]
    pub event_log: Option<PathBuf>,
}

/// The events of this process. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct EventLog {
    state: Arc<Mutex<EventLogState>>,
}

#[derive(Debug, Default)]
struct EventLogState {
    last: VecDeque<Arc<str>>,
    file: Option<File>,
    /// Whether a write failure has been reported.
    failure_reported: bool,
}

/// The log of this process.
pub struct Log {
    events: EventLog,
    limit: LineLimit,
    change: Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>,
}

/// Counts warnings and errors.
struct SeverityCounter;

/// Number of warnings and errors. They are static because a process has only one log.
static WARNINGS: AtomicU64 = AtomicU64::new(0);
static ERRORS: AtomicU64 = AtomicU64::new(0);

/// Returns how many warnings and errors this process has logged, independent of the log filter.
pub(crate) fn counts() -> [(&'static str, u64); 2] {
    [("warn", &WARNINGS), ("error", &ERRORS)].map(|(level, count)| (level, count.load(Ordering::Relaxed)))
}

fn check_filter(text: &str) -> Result<String, ParseError> {
    filter(text).map(|_| text.to_owned())
}

fn filter(text: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).parse(text)
}

impl Options {
    /// Starts the log of this process.
    ///
    /// # Errors
    /// Returns an error if the process already has a log, or if the file cannot be opened.
    pub fn start(&self) -> Result<Log, LogError> {
        let events = EventLog::default();
        events.lock().file = self.event_log.as_deref().map(append).transpose()?;
        let (filter, handle) = reload::Layer::new(self.filter());
        let text = fmt::layer().with_writer(io::stderr).with_ansi(false);
        // Each output has its own limit, because the levels of their events differ. That of the
        // events reports, because their level cannot be raised.
        let [text_limit, event_limit] = [(); 2].map(|()| LineLimit::default());
        let text = text.with_filter(filter.and(text_limit));
        let json = fmt::layer().json().flatten_event(true).with_span_list(false);
        let json = json.with_writer(events.clone()).with_filter(LevelFilter::INFO.and(event_limit.clone()));
        registry().with(text).with(json).with(SeverityCounter.with_filter(LevelFilter::WARN)).try_init()?;
        Ok(Log { events, limit: event_limit, change: Box::new(move |filter| handle.reload(filter)) })
    }

    fn filter(&self) -> EnvFilter {
        // The filter was checked when the options were parsed.
        filter(self.log.as_deref().unwrap_or_default()).unwrap_or_else(|_| EnvFilter::new("info"))
    }
}

impl Log {
    /// Returns the event log. It shares its state with the log.
    pub fn events(&self) -> EventLog {
        self.events.clone()
    }

    /// Reports, forever, how many lines were omitted of events that happen too often. A daemon must
    /// execute this.
    pub fn report_omitted(&self) -> impl Future<Output = ()> + Send + use<> {
        self.limit.clone().report_omitted()
    }

    /// Applies new options and reopens the file, because logrotate may have renamed it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened. Events then go to the previous file.
    pub fn change(&self, options: &Options) -> Result<(), LogError> {
        (self.change)(options.filter())?;
        let file = options.event_log.as_deref().map(append).transpose()?;
        self.events.lock().file = file;
        Ok(())
    }
}

impl<S: Subscriber> Layer<S> for SeverityCounter {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let count = if *event.metadata().level() == Level::ERROR { &ERRORS } else { &WARNINGS };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn append(path: &Path) -> Result<File, LogError> {
    let file = File::options().create(true).append(true).open(path);
    file.map_err(|source| LogError::File { path: path.to_owned(), source })
}

impl EventLog {
    /// Returns the last events, oldest first, each as a JSON document.
    pub fn last(&self) -> Vec<Arc<str>> {
        self.lock().last.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, EventLogState> {
        self.state.lock()
    }
}

impl MakeWriter<'_> for EventLog {
    type Writer = EventLog;

    fn make_writer(&self) -> EventLog {
        self.clone()
    }
}

/// Each call must write exactly one event.
impl Write for EventLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        if line.len() <= MAX_EVENT_BYTES {
            if state.last.len() == MAX_EVENTS {
                state.last.pop_front();
            }
            state.last.push_back(String::from_utf8_lossy(line).trim_end().into());
        }
        let written = state.file.as_mut().map_or(Ok(()), |file| file.write_all(line));
        if let Err(error) = &written
            && !state.failure_reported
        {
            // Print directly, because an event would be written to the same file.
            eprintln!("cannot write the event log: {error}");
        }
        state.failure_reported = written.is_err();
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
    fn the_last_events_are_kept_and_all_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events");
        let mut events = EventLog::default();
        events.lock().file = Some(append(&path).unwrap());
        for n in 0..MAX_EVENTS + 5 {
            events.write_all(format!("{{\"n\":{n}}}\n").as_bytes()).unwrap();
        }
        events.write_all(&vec![b'x'; MAX_EVENT_BYTES + 1]).unwrap();
        let kept = events.last();
        assert_eq!((kept.len(), &*kept[0], &*kept[MAX_EVENTS - 1]), (MAX_EVENTS, "{\"n\":5}", "{\"n\":204}"));
        let file = std::fs::read_to_string(&path).unwrap();
        assert_eq!(file.lines().count(), MAX_EVENTS + 6);
    }

    #[test]
    fn the_file_can_be_rotated_and_the_filter_changed() {
        let directory = tempfile::tempdir().unwrap();
        let [path, old] = ["events", "events.1"].map(|name| directory.path().join(name));
        let mut options = Options { log: Some("error".into()), event_log: Some(path.clone()) };
        let log = options.start().unwrap();
        tracing::warn!("first");
        std::fs::rename(&path, &old).unwrap();
        tracing::error!("second");
        options.log = None;
        log.change(&options).unwrap();
        tracing::info!("third");
        let lines = |path| std::fs::read_to_string(path).unwrap().lines().count();
        assert_eq!((lines(&old), lines(&path), log.events().last().len()), (2, 1, 3));
        assert_eq!(counts(), [("warn", 1), ("error", 1)]);
        options.event_log = Some(directory.path().join("none/events"));
        assert!(log.change(&options).unwrap_err().to_string().contains("none/events"));
        tracing::info!("fourth");
        assert_eq!(lines(&path), 2);
        assert!(check_filter("cool=loud").is_err());
    }

    #[test]
    fn an_unwritable_file_is_named() {
        let message = append(Path::new("/nonexistent/events")).unwrap_err().to_string();
        assert!(message.contains("/nonexistent/events") && message.contains("--event-log"), "{message}");
    }
}
