//! Sending rate and congestion control of connections.
//!
//! No connection sends faster than the links of its group carry, if their rates are known. Faster
//! sending only fills the queue of the node's own link, and acknowledgements and grants wait behind
//! that queue. In a ring of nodes, every step would then wait for it.
//!
//! Below that limit the kernel's congestion control decides. BBR keeps sending where a link loses
//! packets at random, while CUBIC almost stops. CUBIC fills a link if losses result from full
//! queues, while BBR misjudges the token buckets that shape links and sometimes sends little for a
//! while. Connections therefore use CUBIC while few packets are lost, and BBR otherwise. The caller
//! chooses the initial one ([`LinkEstimate::new`]).

use crate::sockopt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const CONTROL_OF_LOSSY_LINKS: &str = "bbr";
const CONTROL_OF_CALM_LINKS: &str = "cubic";

/// Typical payload of a segment in bytes.
const SEGMENT_BYTES: usize = 1448;

/// Minimum number of segments and minimum duration of a window in which losses are counted. Windows
/// are this long because a queue that overflows loses many packets at once.
const WINDOW_SEGMENTS: usize = 10;
const WINDOW_TIME: Duration = Duration::from_millis(100);

/// A window is lossy if more than one segment in this number was lost.
const LOSSY_SEGMENTS: usize = 25;

/// Number of consecutive lossy windows after which the link counts as lossy, and of consecutive
/// other windows after which it counts as calm.
const LOSSY_WINDOWS: u32 = 4;
const CALM_WINDOWS: u32 = 10;

/// The rate limit of connections that may send at any rate.
pub const UNBOUNDED: u32 = u32::MAX;

/// State of this node's link, shared by its connections: an observation of one applies to all.
#[derive(Clone, Debug)]
pub struct LinkEstimate(Arc<LinkState>);

#[derive(Debug)]
struct LinkState {
    /// Whether few packets are lost.
    calm: AtomicBool,
    /// Bytes of payload per second, or [`UNBOUNDED`].
    rate_limit: AtomicU32,
}

impl LinkEstimate {
    /// Returns the estimate of a link that counts as `calm` (few packets are lost), or as lossy,
    /// until connections have observed otherwise.
    pub fn new(calm: bool) -> LinkEstimate {
        LinkEstimate(Arc::new(LinkState {
            calm: AtomicBool::new(calm),
            rate_limit: AtomicU32::new(UNBOUNDED),
        }))
    }

    /// Limits the rate of each connection, in bytes of payload per second, or [`UNBOUNDED`].
    /// Existing connections apply it at the end of their current window.
    pub fn set_rate_limit(&self, bytes_per_second: u32) {
        self.0.rate_limit.store(bytes_per_second, Ordering::Relaxed);
    }

    /// Configures a new connection, and returns its congestion control. If it is one of several
    /// `streams` between which data is divided, each may send at an equal share of the rate limit.
    pub fn choose(&self, socket: impl AsFd, streams: u32) -> Congestion {
        let mut congestion = Congestion::new(self.clone(), streams, Instant::now());
        set_control(&socket, congestion.calm);
        congestion.follow(socket);
        congestion
    }
}

/// Congestion control of one connection.
#[derive(Debug)]
pub struct Congestion {
    link: LinkEstimate,
    /// The state of the link that the socket is configured for.
    calm: bool,
    rate_limit: u32,
    /// Number of streams that share the rate limit of the link.
    streams: u32,
    /// Segments sent in the current window, and its start.
    segments: usize,
    window_start: Instant,
    /// Segments retransmitted before the current window.
    retransmitted: u32,
    /// Whether the last window was lossy, and the number of consecutive windows that were the same.
    lossy: bool,
    same_windows: u32,
}

impl Congestion {
    fn new(link: LinkEstimate, streams: u32, now: Instant) -> Congestion {
        Congestion {
            calm: link.0.calm.load(Ordering::Relaxed),
            link,
            rate_limit: UNBOUNDED,
            streams,
            segments: 0,
            window_start: now,
            retransmitted: 0,
            lossy: false,
            same_windows: 0,
        }
    }

    /// Records that `bytes` were written to the connection in one call. At the end of a window this
    /// evaluates its losses and adapts the socket.
    ///
    /// # Errors
    /// Returns the error of getsockopt(2) if the number of retransmissions cannot be read.
    pub fn on_write(&mut self, socket: impl AsFd, bytes: usize) -> io::Result<()> {
        let now = Instant::now();
        if self.is_due(now, bytes) {
            self.end_window(now, sockopt::retransmissions(&socket)?);
            self.follow(socket);
        }
        Ok(())
    }

    /// Counts sent bytes, and returns whether the window has ended.
    fn is_due(&mut self, now: Instant, bytes: usize) -> bool {
        self.segments += bytes.div_ceil(SEGMENT_BYTES);
        self.segments >= WINDOW_SEGMENTS && now >= self.window_start + WINDOW_TIME
    }

    /// Evaluates a window, at whose end `retransmitted` is the connection's total of
    /// retransmissions.
    fn end_window(&mut self, now: Instant, retransmitted: u32) {
        let lost = retransmitted.wrapping_sub(self.retransmitted) as usize;
        let lossy = lost * LOSSY_SEGMENTS > self.segments;
        self.same_windows = if lossy == self.lossy { self.same_windows + 1 } else { 1 };
        (self.segments, self.window_start, self.retransmitted, self.lossy) = (0, now, retransmitted, lossy);
        if self.same_windows >= if lossy { LOSSY_WINDOWS } else { CALM_WINDOWS } {
            self.link.0.calm.store(!lossy, Ordering::Relaxed);
        }
    }

    /// Configures the socket for the current state of the link. A system without one of the two
    /// congestion controls keeps its current one.
    fn follow(&mut self, socket: impl AsFd) {
        let calm = self.link.0.calm.load(Ordering::Relaxed);
        if calm != self.calm {
            self.calm = calm;
            set_control(&socket, calm);
        }
        let rate_limit = match self.link.0.rate_limit.load(Ordering::Relaxed) {
            UNBOUNDED => UNBOUNDED,
            rate_limit => (rate_limit / self.streams).max(1),
        };
        if rate_limit != self.rate_limit {
            self.rate_limit = rate_limit;
            if let Err(error) = sockopt::set_rate_limit(&socket, rate_limit) {
                tracing::debug!(%error, "cannot limit the rate of a connection");
            }
        }
    }
}

fn set_control(socket: impl AsFd, calm: bool) {
    let control = if calm { CONTROL_OF_CALM_LINKS } else { CONTROL_OF_LOSSY_LINKS };
    if let Err(error) = rustix::net::sockopt::set_tcp_congestion(socket, control) {
        tracing::debug!(control, %error, "the system does not have this congestion control");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the link is calm after each window of 100 segments with these losses.
    fn calm_after(lost: impl IntoIterator<Item = u32>) -> Vec<bool> {
        let mut now = Instant::now();
        let mut retransmitted = 0;
        let mut congestion = Congestion::new(LinkEstimate::new(false), 1, now);
        let window = |lost| {
            retransmitted += lost;
            now += WINDOW_TIME;
            assert!(congestion.is_due(now, 100 * SEGMENT_BYTES));
            congestion.end_window(now, retransmitted);
            congestion.link.0.calm.load(Ordering::Relaxed)
        };
        lost.into_iter().map(window).collect()
    }

    #[test]
    fn a_link_is_calm_once_few_packets_were_lost_for_a_while() {
        assert_eq!(calm_after([4; 12]).iter().position(|calm| *calm), Some(9));
        assert!(!calm_after([5; 100]).contains(&true));
    }

    #[test]
    fn a_calm_link_that_keeps_losing_packets_becomes_lossy() {
        let calm = calm_after([0; 20].into_iter().chain([20; 10]));
        assert_eq!(calm.iter().rposition(|calm| *calm), Some(22));
    }

    #[test]
    fn a_link_stays_calm_while_queues_overflow_occasionally() {
        let overflows = [60, 50, 40, 0].into_iter().cycle().take(100);
        assert!(calm_after([0; 10].into_iter().chain(overflows)).ends_with(&[true; 100]));
    }

    #[test]
    fn existing_connections_apply_a_new_rate_limit() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let link = LinkEstimate::new(false);
        let [mut congestion, mut shared] = [1, 4].map(|streams| link.choose(&stream, streams));
        assert_eq!(sockopt::rate_limit(&stream).unwrap(), UNBOUNDED);
        link.set_rate_limit(2_340_000);
        congestion.follow(&stream);
        assert_eq!(sockopt::rate_limit(&stream).unwrap(), 2_340_000);
        shared.follow(&stream);
        assert_eq!(sockopt::rate_limit(&stream).unwrap(), 585_000, "one of four streams");
    }

    #[test]
    fn a_window_ends_after_enough_messages_and_time() {
        let now = Instant::now();
        let mut congestion = Congestion::new(LinkEstimate::new(false), 1, now);
        assert!(!(0..2 * WINDOW_SEGMENTS).any(|_| congestion.is_due(now, 1)));
        assert!(congestion.is_due(now + WINDOW_TIME, 1));
    }
}
