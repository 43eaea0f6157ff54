//! Selects the node that receives NAKs: the predecessor in the chain, or, if it does not answer,
//! nodes further up and finally the source.

use crate::timeouts::{PREDECESSOR_RETRY_RTOS, UPSTREAM_TRIES, UPSTREAM_TRIES_PROVEN};
use cool_machine::{Duration, Time};

/// The node that receives NAKs.
#[derive(Debug)]
pub(crate) struct Upstream {
    me: u16,
    position: u16,
    /// Number of positions by which the next change moves towards the source. It doubles, so that a
    /// rack of dead nodes is skipped soon.
    leap: u16,
    tries: u32,
    /// How often the search has reached the source and the source did not answer either.
    sweeps: u32,
    last_answer: Option<Time>,
    /// When the upstream was last found silent. NAKs sent before that do not count again.
    silent: Option<Time>,
    /// When the predecessor was last tried while another node receives the NAKs.
    retried: Time,
}

impl Upstream {
    pub(crate) fn new(me: u16) -> Upstream {
        Upstream {
            me,
            position: me - 1,
            leap: 1,
            tries: 0,
            sweeps: 0,
            last_answer: None,
            silent: None,
            retried: Time::ZERO,
        }
    }

    pub(crate) fn position(&self) -> u16 {
        self.position
    }

    /// Returns how often in a row the search has reached the source and no node has answered.
    pub(crate) fn sweeps(&self) -> u32 {
        self.sweeps
    }

    /// Returns the position before this node's, which receives the first NAKs.
    pub(crate) fn predecessor(&self) -> u16 {
        self.me - 1
    }

    /// Returns whether the upstream has answered after this instant.
    pub(crate) fn answered_since(&self, at: Time) -> bool {
        self.last_answer.is_some_and(|last_answer| last_answer > at)
    }

    /// Returns how long to wait for an answer. The timeout doubles only once, because repeated NAKs
    /// are small and round trips are measured from late answers too.
    pub(crate) fn retry_after(&self, rto: Duration) -> Duration {
        if self.tries + self.sweeps > 0 { 2 * rto } else { rto }
    }

    /// Returns whether a NAK must be sent to the predecessor again. It may have been skipped
    /// because of random losses.
    pub(crate) fn retries(&mut self, now: Time, rto: Duration) -> bool {
        let due = self.position + 1 < self.me && now - self.retried > PREDECESSOR_RETRY_RTOS * rto;
        if due {
            self.retried = now;
        }
        due
    }

    /// Records a packet from a position nearer the source. A node nearer to this one than the
    /// current upstream replaces it.
    pub(crate) fn on_contact(&mut self, now: Time, position: u16) {
        if position < self.position || position >= self.me {
            return;
        }
        self.position = position;
        self.last_answer = Some(now);
        (self.leap, self.tries, self.sweeps, self.silent) = (1, 0, 0, None);
    }

    /// Records that a NAK sent at this time was not answered. Returns whether the upstream changed.
    pub(crate) fn on_silence(&mut self, now: Time, requested: Time) -> bool {
        if self.silent.is_some_and(|silent| requested < silent) {
            return false;
        }
        self.silent = Some(now);
        self.tries += 1;
        if self.tries < if self.last_answer.is_some() { UPSTREAM_TRIES_PROVEN } else { UPSTREAM_TRIES } {
            return false;
        }
        self.tries = 0;
        self.last_answer = None;
        self.retried = now;
        if self.position == 0 {
            // From now on only the predecessor and the source are tried. Other nodes may have the
            // missing chunks, but need not keep them.
            self.position = self.predecessor();
            self.leap = u16::MAX;
            self.sweeps += 1;
        } else {
            self.position = self.position.saturating_sub(self.leap);
            self.leap = self.leap.saturating_mul(2);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u64) -> Time {
        Time::from_nanos(n)
    }

    /// Returns the upstream positions in turn while no node answers.
    fn swept(upstream: &mut Upstream, changes: usize) -> Vec<u16> {
        let mut requested = vec![upstream.position()];
        let mut now = 1;
        while requested.len() <= changes {
            now += 10;
            if upstream.on_silence(at(now), at(now - 1)) {
                requested.push(upstream.position());
            }
        }
        requested
    }

    #[test]
    fn silent_nodes_are_skipped_in_growing_leaps() {
        let mut upstream = Upstream::new(9);
        assert_eq!(swept(&mut upstream, 8), [8, 7, 5, 1, 0, 8, 0, 8, 0]);
        assert_eq!(upstream.retry_after(Duration::from_millis(1)), Duration::from_millis(2));
    }

    #[test]
    fn a_nearer_node_that_answers_becomes_the_upstream() {
        let mut upstream = Upstream::new(9);
        swept(&mut upstream, 3);
        upstream.on_contact(at(900), 0);
        assert_eq!(upstream.position(), 1);
        upstream.on_contact(at(900), 8);
        assert_eq!(upstream.position(), 8);
        upstream.on_contact(at(900), 12);
        assert_eq!(upstream.position(), 8);
    }

    #[test]
    fn a_skipped_predecessor_is_tried_again_later() {
        let ns = Duration::from_nanos(1);
        let mut upstream = Upstream::new(9);
        assert!(!upstream.retries(at(1000), ns));
        swept(&mut upstream, 1);
        assert!(!upstream.retries(at(25), ns));
        assert!(upstream.retries(at(1000), ns));
        assert!(!upstream.retries(at(1001), ns));
    }

    #[test]
    fn requests_lost_together_count_as_one_silence() {
        let mut upstream = Upstream::new(3);
        upstream.on_contact(at(1), 2);
        for _ in 0..10 {
            assert!(!upstream.on_silence(at(50), at(40)));
        }
        assert_eq!(upstream.position(), 2);
    }
}
