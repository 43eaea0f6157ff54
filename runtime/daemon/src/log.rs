//! The log of a program: text for people on standard error, chosen by --log; and its events, one JSON document
//! each, of which the last are kept in memory and all can go to a file. What is wrong is counted.

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{EnvFilter, LevelFilter, ParseError};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, registry, reload};

/// Events that are kept.
const KEPT: usize = 200;
/// Longer ones are not.
const MAX_KEPT_BYTES: usize = 4096;

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log has ended.
    #[error("what is logged cannot be changed: {0}")]
    Ended(#[from] reload::Error),
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

/// The flags of the log.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Options {
    /// What goes to standard error: error, warn, info, debug or trace, for all or for a part, as in
    /// info,cool_fabric=debug [default: info]
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", value_parser = check_filter)]
    pub log: Option<String>,
    /// Append every event to this file, a JSON document a line; SIGHUP opens it anew, for logrotate
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

/// The log of this process.
pub struct Log {
    events: Events,
    change: Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>,
}

/// Counts what is wrong.
struct Counts;

/// Warnings and errors of this process: its log is one, too.
static WARNINGS: AtomicU64 = AtomicU64::new(0);
static ERRORS: AtomicU64 = AtomicU64::new(0);

/// How many warnings and errors this process has logged, whatever goes to standard error.
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
    /// If there is one, or the file makes that impossible.
    pub fn start(&self) -> Result<Log, LogError> {
        let events = Events::default();
        events.lock().file = self.event_log.as_deref().map(append).transpose()?;
        let (filter, handle) = reload::Layer::new(self.filter());
        let text = fmt::layer().with_writer(io::stderr).with_ansi(false).with_filter(filter);
        let json = fmt::layer().json().flatten_event(true).with_span_list(false);
        let json = json.with_writer(events.clone()).with_filter(LevelFilter::INFO);
        registry().with(text).with(json).with(Counts.with_filter(LevelFilter::WARN)).try_init()?;
        Ok(Log { events, change: Box::new(move |filter| handle.reload(filter)) })
    }

    fn filter(&self) -> EnvFilter {
        // It was checked when it was read.
        filter(self.log.as_deref().unwrap_or_default()).unwrap_or_else(|_| EnvFilter::new("info"))
    }
}

impl Log {
    /// Its events.
    pub fn events(&self) -> Events {
        self.events.clone()
    }

    /// Goes on as these options say, in a file that is opened anew: the one that was there may have another name now.
    ///
    /// # Errors
    /// If the file cannot be opened; then events go where they went.
    pub fn change(&self, options: &Options) -> Result<(), LogError> {
        (self.change)(options.filter())?;
        let file = options.event_log.as_deref().map(append).transpose()?;
        self.events.lock().file = file;
        Ok(())
    }
}

impl<S: Subscriber> Layer<S> for Counts {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let count = if *event.metadata().level() == Level::ERROR { &ERRORS } else { &WARNINGS };
        count.fetch_add(1, Ordering::Relaxed);
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
    fn a_log_can_be_moved_aside_and_what_it_tells_changed_while_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let [path, old] = ["events", "events.1"].map(|name| folder.path().join(name));
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
        options.event_log = Some(folder.path().join("none/events"));
        assert!(log.change(&options).unwrap_err().to_string().contains("none/events"));
        tracing::info!("fourth");
        assert_eq!(lines(&path), 2);
        assert!(check_filter("cool=loud").is_err());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let says = append(Path::new("/nonexistent/events")).unwrap_err().to_string();
        assert!(says.contains("/nonexistent/events") && says.contains("--event-log"), "{says}");
    }
}
