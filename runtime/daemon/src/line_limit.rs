//! Limits how many lines an event may add to the log, because users and other hosts decide how
//! often some events happen.
//!
//! Each event (a place in the source code) has a token bucket for each caller that it names. Lines
//! that the bucket does not permit are counted, and the log reports their numbers. Events below
//! level INFO are not limited, because an operator must enable them.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// Lines that one event may add for one caller in a burst.
const BURST_LINES: u32 = 500;
/// Time in which a bucket regains one line.
const LINE_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of buckets. Once there are more, callers share the bucket of an event.
const BUCKETS_MAX: usize = 4096;
/// Minimum time between two reports of omitted lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Names of the fields that contain the caller.
const CALLER_FIELDS: [&str; 4] = ["who", "user", "ip", "peer"];

/// Identifies a bucket: the event, and a hash of the caller if the event names one.
type BucketKey = (Identifier, Option<u64>);

/// The buckets, and the lines that they did not permit. The caller must pass the time.
#[derive(Debug, Default)]
struct LineBuckets {
    /// When each bucket will be full again.
    full_at: HashMap<BucketKey, Instant>,
    /// The number of omitted lines by the name of their event, since they were last taken.
    omitted: BTreeMap<&'static str, u64>,
}

impl LineBuckets {
    /// Takes a line from a bucket. Returns false if the bucket is empty.
    fn take(&mut self, now: Instant, (event, caller): BucketKey) -> bool {
        let capacity = LINE_INTERVAL * BURST_LINES;
        if self.full_at.len() >= BUCKETS_MAX {
            self.full_at.retain(|_, full_at| *full_at > now);
        }
        let has_room =
            self.full_at.len() < BUCKETS_MAX || self.full_at.contains_key(&(event.clone(), caller));
        let key = (event, caller.filter(|_| has_room));
        let full_at = self.full_at.entry(key).or_insert(now);
        let next = (*full_at).max(now) + LINE_INTERVAL;
        let is_permitted = next.duration_since(now) <= capacity;
        if is_permitted {
            *full_at = next;
        }
        is_permitted
    }
}

/// A filter that omits lines beyond the limit. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineLimit(Arc<SharedLimit>);

#[derive(Debug, Default)]
struct SharedLimit {
    buckets: Mutex<LineBuckets>,
    has_omitted: Notify,
}

impl LineLimit {
    /// Reports omitted lines, forever.
    pub(crate) async fn report_omitted(self) {
        loop {
            self.0.has_omitted.notified().await;
            tokio::time::sleep(REPORT_INTERVAL).await;
            let omitted = std::mem::take(&mut self.0.buckets.lock().omitted);
            for (event, lines) in omitted {
                tracing::warn!(lines, event, "omitted lines of an event that happens too often");
            }
        }
    }
}

impl<S> Filter<S> for LineLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut caller = EventCaller(None);
        event.record(&mut caller);
        let mut buckets = self.0.buckets.lock();
        if buckets.take(Instant::now(), (metadata.callsite(), caller.0)) {
            return true;
        }
        *buckets.omitted.entry(metadata.name()).or_default() += 1;
        self.0.has_omitted.notify_one();
        false
    }
}

/// A hash of the fields of an event that contain the caller.
#[derive(Debug)]
struct EventCaller(Option<u64>);

impl Visit for EventCaller {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if CALLER_FIELDS.contains(&field.name()) {
            let mut hasher = DefaultHasher::new();
            (self.0, format!("{value:?}")).hash(&mut hasher);
            self.0 = Some(hasher.finish());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::callsite::Callsite;
    use tracing::metadata::Kind;
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry;

    /// Counts events.
    #[derive(Clone, Debug, Default)]
    struct EventCounter(Arc<Mutex<u32>>);

    impl<S: tracing::Subscriber> Layer<S> for EventCounter {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            *self.0.lock() += 1;
        }
    }

    /// Executes `emit`. Returns the number of events that reached the log, and of omitted lines.
    fn logged(emit: impl Fn()) -> (u32, Vec<u64>) {
        let (limit, counter) = (LineLimit::default(), EventCounter::default());
        tracing::subscriber::with_default(registry().with(counter.clone().with_filter(limit.clone())), emit);
        let omitted = std::mem::take(&mut limit.0.buckets.lock().omitted);
        (*counter.0.lock(), omitted.into_values().collect())
    }

    #[test]
    fn lines_of_an_event_are_limited_for_each_caller() {
        let (lines, omitted) = logged(|| {
            for turn in 0..2 * BURST_LINES {
                tracing::info!(who = "mallory", turn, "audit");
                // Too few to be limited, and of another caller.
                if turn % 10 == 0 {
                    tracing::info!(who = "ann", turn, "audit");
                }
            }
        });
        let regained = lines - BURST_LINES - BURST_LINES / 5;
        assert!(regained < BURST_LINES / 2, "{lines}");
        assert_eq!(omitted, [u64::from(BURST_LINES - regained)]);
        // Events below INFO are not limited.
        assert_eq!(logged(|| (0..2 * BURST_LINES).for_each(|turn| tracing::debug!(turn))).1, [0; 0]);
    }

    #[test]
    fn a_bucket_regains_lines_and_the_number_of_buckets_is_bounded() {
        let mut buckets = LineBuckets::default();
        let start = Instant::now();
        let event = tracing::callsite! { name: "event", kind: Kind::EVENT, fields: };
        let key = |caller: u64| (event.metadata().callsite(), Some(caller));
        let taken = |buckets: &mut LineBuckets, now, caller| {
            (0..9999).take_while(|_| buckets.take(now, key(caller))).count()
        };
        assert_eq!(taken(&mut buckets, start, 0), BURST_LINES as usize);
        assert_eq!(taken(&mut buckets, start + 3 * LINE_INTERVAL, 0), 3);
        let full = start + LINE_INTERVAL * (BURST_LINES + 3);
        assert_eq!(taken(&mut buckets, full, 0), BURST_LINES as usize);
        (1..BUCKETS_MAX as u64 + 9).for_each(|caller| assert!(buckets.take(full, key(caller))));
        assert!(buckets.full_at.len() <= BUCKETS_MAX + 1);
        buckets.take(full + LINE_INTERVAL * BURST_LINES, key(0));
        assert_eq!(buckets.full_at.len(), 1);
    }
}
