//! Limits how often the log reports rejected connections.
//!
//! A program with a wrong certificate reconnects about once a second, forever. Its first rejection
//! is logged, then at most one per minute together with the number of rejections in between.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;

/// How often the same rejection is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of rejections that are counted separately. Further ones are counted together,
/// because anyone may cause them from any number of addresses.
const MAX_ENTRIES: usize = 1024;

/// Recent rejections, by source address and reason.
#[derive(Debug, Default)]
pub(crate) struct RejectionLog {
    recent: Mutex<RecentRejections>,
}

#[derive(Debug, Default)]
struct RecentRejections {
    separate: BTreeMap<(IpAddr, String), LoggedRejection>,
    others: Option<LoggedRejection>,
}

#[derive(Debug)]
struct LoggedRejection {
    at: Instant,
    /// Number of rejections that were not logged since then.
    unlogged: u64,
}

impl LoggedRejection {
    fn is_recent(&self, now: Instant) -> bool {
        now.duration_since(self.at) < LOG_INTERVAL
    }

    /// Counts a further rejection. Returns the number of earlier ones if it must be logged.
    fn repeat(&mut self, now: Instant) -> Option<u64> {
        if self.is_recent(now) {
            self.unlogged += 1;
            return None;
        }
        Some(std::mem::replace(self, LoggedRejection { at: now, unlogged: 0 }).unlogged)
    }
}

impl RejectionLog {
    /// Records a rejection. Returns `None` if it must not be logged. Otherwise returns the number
    /// of equal rejections since the last logged one, which were not logged.
    pub(crate) fn record(&self, source: IpAddr, reason: &str, now: Instant) -> Option<u64> {
        let mut recent = self.recent.lock();
        let RecentRejections { separate, others } = &mut *recent;
        let key = (source, reason.to_owned());
        if let Some(logged) = separate.get_mut(&key) {
            return logged.repeat(now);
        }
        if separate.len() >= MAX_ENTRIES {
            separate.retain(|_, logged| logged.is_recent(now));
        }
        let first = LoggedRejection { at: now, unlogged: 0 };
        if separate.len() < MAX_ENTRIES {
            separate.insert(key, first);
            return Some(0);
        }
        match others {
            Some(logged) => logged.repeat(now),
            None => {
                *others = Some(first);
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_repeated_rejection_is_logged_once_a_minute_with_a_count() {
        let log = RejectionLog::default();
        let (start, source) = (Instant::now(), IpAddr::from([10, 0, 0, 1]));
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let logged: Vec<Option<u64>> =
            [0, 1, 59, 60, 61].map(|seconds| log.record(source, "expired", at(seconds))).into();
        assert_eq!(logged, [Some(0), None, None, Some(2), None]);
        assert_eq!(log.record(source, "revoked", at(61)), Some(0), "another reason");
        assert_eq!(log.record([10, 0, 0, 2].into(), "expired", at(61)), Some(0), "another source");
    }

    #[tokio::test]
    async fn the_number_of_recorded_rejections_is_bounded() {
        let (log, start) = (RejectionLog::default(), Instant::now());
        for n in 0..=MAX_ENTRIES as u32 {
            assert_eq!(log.record(IpAddr::from(n.to_be_bytes()), "expired", start), Some(0));
        }
        let further: Vec<_> =
            (0..9u32).map(|n| log.record(IpAddr::from((!n).to_be_bytes()), "expired", start)).collect();
        assert_eq!(further, [None; 9], "further sources are counted together");
        assert_eq!(log.recent.lock().separate.len(), MAX_ENTRIES);
        log.record([10, 0, 0, 1].into(), "expired", start + LOG_INTERVAL);
        assert_eq!(log.recent.lock().separate.len(), 1);
    }
}
