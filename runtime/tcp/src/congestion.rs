//! How fast connections send.
//!
//! None sends faster than the links of its group carry, as far as that is known. What would go faster only fills the queue
//! of the node's own link, behind which acknowledgements and grants then wait that others wait for: so a ring of nodes
//! comes to a stop for as long as the queue is at every step.
//!
//! Within that it is for the system's congestion control. BBR goes on where a link loses packets at random, of which CUBIC
//! all but stops. CUBIC fills a link whose losses come from full queues, where BBR misjudges the token buckets that shape
//! links and sends little for a while now and then. So connections use CUBIC while few packets are lost, and BBR else; which of them
//! they begin with is their user's to say ([`LinkEstimate::new`]).

use crate::sockopt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const WHILE_LOSSY: &str = "bbr";
const WHILE_CALM: &str = "cubic";

/// About what a segment carries.
const SEGMENT: usize = 1448;

/// A window in which losses are counted has at least this number of segments and this length: what is lost when a queue
/// overflows is lost at once.
const WINDOW_SEGMENTS: usize = 10;
const WINDOW_TIME: Duration = Duration::from_millis(100);

/// A window is lossy if more than one segment in this number was lost.
const LOSSY_SEGMENTS: usize = 25;

/// Lossy windows in a row after which the link counts as one that loses packets at random, and others in a row after which
/// it does not.
const LOSSY_WINDOWS: u32 = 4;
const CALM_WINDOWS: u32 = 10;

/// No bound on what connections send.
pub const UNBOUNDED: u32 = u32::MAX;

/// What this node's connections know of its link, which they share: what one finds holds for all.
#[derive(Clone, Debug)]
pub struct LinkEstimate(Arc<Known>);

#[derive(Debug)]
struct Known {
    /// Whether few packets are lost.
    calm: AtomicBool,
    /// Bytes of payload per second, or [`UNBOUNDED`].
    pace: AtomicU32,
}

impl LinkEstimate {
    /// Of a link that counts as `calm`, one on which few packets are lost, until something else is found.
    pub fn new(calm: bool) -> LinkEstimate {
        LinkEstimate(Arc::new(Known { calm: AtomicBool::new(calm), pace: AtomicU32::new(UNBOUNDED) }))
    }

    /// Connections send at this pace from now on (bytes of payload per second, or [`UNBOUNDED`]), those that are there from the end of their window on.
    pub fn set_pace(&self, pace: u32) {
        self.0.pace.store(pace, Ordering::Relaxed);
    }

    /// The choice for a connection that has carried nothing yet.
    pub fn choose(&self, socket: impl AsFd) -> Congestion {
        let mut congestion = Congestion::new(self.clone(), Instant::now());
        set_control(&socket, congestion.calm);
        congestion.follow(socket);
        congestion
    }
}

/// The choice for one connection.
#[derive(Debug)]
pub struct Congestion {
    link: LinkEstimate,
    /// What it goes by now.
    calm: bool,
    pace: u32,
    /// Sent in this window, which began then.
    segments: usize,
    began: Instant,
    /// Sent again before.
    again: u32,
    /// Whether the last window was lossy, and how many in a row were alike.
    lossy: bool,
    row: u32,
}

impl Congestion {
    fn new(link: LinkEstimate, now: Instant) -> Congestion {
        Congestion {
            calm: link.0.calm.load(Ordering::Relaxed),
            link,
            pace: UNBOUNDED,
            segments: 0,
            began: now,
            again: 0,
            lossy: false,
            row: 0,
        }
    }

    /// `bytes` were written to the connection at once.
    ///
    /// # Errors
    /// If the system does not tell what was sent again.
    pub fn wrote(&mut self, socket: impl AsFd, bytes: usize) -> io::Result<()> {
        let now = Instant::now();
        if self.is_due(now, bytes) {
            self.look(now, sockopt::retransmissions(&socket)?);
            self.follow(socket);
        }
        Ok(())
    }

    /// Whether a window is over.
    fn is_due(&mut self, now: Instant, bytes: usize) -> bool {
        self.segments += bytes.div_ceil(SEGMENT);
        self.segments >= WINDOW_SEGMENTS && now >= self.began + WINDOW_TIME
    }

    /// By the end of a window, `again` segments of the connection have been sent again in all.
    fn look(&mut self, now: Instant, again: u32) {
        let lossy = again.wrapping_sub(self.again) as usize * LOSSY_SEGMENTS > self.segments;
        self.row = if lossy == self.lossy { self.row + 1 } else { 1 };
        (self.segments, self.began, self.again, self.lossy) = (0, now, again, lossy);
        if self.row >= if lossy { LOSSY_WINDOWS } else { CALM_WINDOWS } {
            self.link.0.calm.store(!lossy, Ordering::Relaxed);
        }
    }

    /// Does as all connections of the node do. A system without one of the two goes on with what it has.
    fn follow(&mut self, socket: impl AsFd) {
        let calm = self.link.0.calm.load(Ordering::Relaxed);
        if calm != self.calm {
            self.calm = calm;
            set_control(&socket, calm);
        }
        let pace = self.link.0.pace.load(Ordering::Relaxed);
        if pace != self.pace {
            self.pace = pace;
            if let Err(error) = sockopt::set_pace(&socket, pace) {
                tracing::debug!(%error, "cannot pace a connection");
            }
        }
    }
}

fn set_control(socket: impl AsFd, calm: bool) {
    let control = if calm { WHILE_CALM } else { WHILE_LOSSY };
    if let Err(error) = rustix::net::sockopt::set_tcp_congestion(socket, control) {
        tracing::debug!(control, %error, "the system has no such congestion control");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is calm after each window of 100 segments with these losses, one each tenth of a second.
    fn found(lost: impl IntoIterator<Item = u32>) -> Vec<bool> {
        let mut now = Instant::now();
        let mut again = 0;
        let mut congestion = Congestion::new(LinkEstimate::new(false), now);
        let window = |lost| {
            again += lost;
            now += WINDOW_TIME;
            assert!(congestion.is_due(now, 100 * SEGMENT));
            congestion.look(now, again);
            congestion.link.0.calm.load(Ordering::Relaxed)
        };
        lost.into_iter().map(window).collect()
    }

    #[test]
    fn a_link_is_calm_once_few_packets_were_lost_for_a_while() {
        assert_eq!(found([4; 12]).iter().position(|calm| *calm), Some(9));
        assert!(!found([5; 100]).contains(&true));
    }

    #[test]
    fn a_calm_link_that_goes_on_losing_packets_is_no_longer_calm() {
        let found = found([0; 20].into_iter().chain([20; 10]));
        assert_eq!(found.iter().rposition(|calm| *calm), Some(22));
    }

    #[test]
    fn queues_that_overflow_now_and_then_leave_it_calm() {
        let overflows = [60, 50, 40, 0].into_iter().cycle().take(100);
        assert!(found([0; 10].into_iter().chain(overflows)).ends_with(&[true; 100]));
    }

    #[test]
    fn connections_that_are_there_follow_the_pace_of_the_latest_group() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let link = LinkEstimate::new(false);
        let mut congestion = link.choose(&stream);
        assert_eq!(sockopt::pace(&stream).unwrap(), UNBOUNDED);
        link.set_pace(2_340_000);
        congestion.follow(&stream);
        assert_eq!(sockopt::pace(&stream).unwrap(), 2_340_000);
    }

    #[test]
    fn a_window_is_over_after_many_small_messages_and_some_time() {
        let now = Instant::now();
        let mut congestion = Congestion::new(LinkEstimate::new(false), now);
        assert!(!(0..2 * WINDOW_SEGMENTS).any(|_| congestion.is_due(now, 1)));
        assert!(congestion.is_due(now + WINDOW_TIME, 1));
    }
}
