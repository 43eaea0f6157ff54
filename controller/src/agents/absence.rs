//! Which agents are away, and which nodes are gone for it. A management network that fails stops nothing that works (fail static):
//! a node whose agent the controller does not hear keeps what it has, and the agent has a grace time to come back.
//!
//! Gone is a node whose link is down, or which no switch hears, though it could: by LLDP, which agents go on to send while they
//! have no controller. Nobody is gone while the controller hears nobody at all, neither agents nor switches: it is itself cut off,
//! and all have the whole grace time from the moment at which it hears anybody again.

use cool_machine::{Duration, Machine, Poll, Time, earliest};
use std::collections::{BTreeMap, BTreeSet};

/// For how long no switch may hear a node that is away: as long as it may take to answer a ping.
const UNHEARD: Duration = Duration::from_secs(3);

/// What happens.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// An agent has a connection.
    Here(&'a str),
    /// It has none any more.
    Away(&'a str),
    /// Its node is gone, by whatever.
    Left(&'a str),
    /// Which nodes switches hear, of those that are away; and whether any switch has a connection.
    Heard(&'a dyn Fn(&str) -> bool, bool),
}

/// Why a node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// Neither its agent nor its link.
    #[error(
        "the connection to its agent broke, and no switch hears it: its link is down, or its agent has ended"
    )]
    Unheard,
    /// Its time is over.
    #[error("its agent has had no connection for {0:?}")]
    Over(Duration),
}

/// A node is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its name.
    pub node: String,
    /// Why.
    pub why: Why,
}

#[derive(Clone, Copy, Debug)]
struct Away {
    since: Time,
    /// Since when no switch hears it, if none does.
    unheard: Option<Time>,
}

/// The agents, and those of them that are away.
#[derive(Debug)]
pub struct Absences {
    grace: Duration,
    here: BTreeSet<String>,
    away: BTreeMap<String, Away>,
    /// Whether any switch has a connection.
    switches: bool,
    /// Since when anybody is heard; none while nobody is.
    hearing: Option<Time>,
}

impl Absences {
    /// Nobody yet. Whoever is away has so long to come back.
    pub fn new(grace: Duration) -> Absences {
        Absences { grace, here: BTreeSet::new(), away: BTreeMap::new(), switches: false, hearing: None }
    }

    /// Since when an agent is away, if it is.
    pub fn since(&self, node: &str) -> Option<Time> {
        self.away.get(node).map(|away| away.since)
    }

    /// Since when the controller hears anybody; none while it is cut off.
    pub fn hearing(&self) -> Option<Time> {
        self.hearing
    }

    /// All agents that are away, and since when.
    pub fn all(&self) -> impl Iterator<Item = (&str, Time)> {
        self.away.iter().map(|(node, away)| (node.as_str(), away.since))
    }

    /// When a node is gone, and why.
    fn end(&self, hearing: Time, away: &Away) -> (Time, Why) {
        let over = (away.since.max(hearing) + self.grace, Why::Over(self.grace));
        match away.unheard.map(|unheard| unheard.max(hearing) + UNHEARD) {
            Some(at) if at < over.0 => (at, Why::Unheard),
            _ => over,
        }
    }
}

impl Machine for Absences {
    type Input<'a> = Input<'a>;
    type Output = Gone;

    fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Here(node) => {
                self.away.remove(node);
                self.here.insert(node.to_owned());
            }
            Input::Away(node) => {
                self.here.remove(node);
                self.away.entry(node.to_owned()).or_insert(Away { since: now, unheard: None });
            }
            Input::Left(node) => {
                self.here.remove(node);
                self.away.remove(node);
            }
            Input::Heard(node, switches) => {
                self.switches = switches;
                for (name, away) in &mut self.away {
                    away.unheard = if node(name) { None } else { away.unheard.or(Some(now)) };
                }
            }
        }
        let hears = self.switches || !self.here.is_empty();
        self.hearing = hears.then(|| self.hearing.unwrap_or(now));
    }

    fn poll(&mut self, now: Time) -> Poll<Gone> {
        let Some(hearing) = self.hearing else { return Poll::Idle(None) };
        let mut next = None;
        for (node, away) in &self.away {
            let (at, why) = self.end(hearing, away);
            if at <= now {
                let node = node.clone();
                self.away.remove(&node);
                return Poll::Output(Gone { node, why });
            }
            next = earliest(next, Some(at));
        }
        Poll::Idle(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    /// h1 and h2 have joined; switches hear them.
    fn two() -> Absences {
        let mut absences = Absences::new(GRACE);
        absences.handle(at(0), Input::Here("h1"));
        absences.handle(at(0), Input::Here("h2"));
        absences.handle(at(0), Input::Heard(&|_| true, true));
        absences
    }

    fn gone(absences: &mut Absences, now: Time) -> Vec<(String, Why)> {
        std::iter::from_fn(|| match absences.poll(now) {
            Poll::Output(Gone { node, why }) => Some((node, why)),
            Poll::Idle(_) => None,
        })
        .collect()
    }

    #[test]
    fn who_comes_back_in_time_was_never_gone_and_who_does_not_is() {
        let mut absences = two();
        absences.handle(at(10), Input::Away("h1"));
        absences.handle(at(11), Input::Away("h2"));
        assert_eq!(absences.all().collect::<Vec<_>>(), [("h1", at(10)), ("h2", at(11))]);
        absences.handle(at(18), Input::Here("h1"));
        assert_eq!(absences.poll(at(70)), Poll::Idle(Some(at(71))));
        assert_eq!(gone(&mut absences, at(71)), [("h2".to_owned(), Why::Over(GRACE))]);
        assert_eq!(absences.poll(at(999)), Poll::Idle(None));
    }

    #[test]
    fn a_node_that_no_switch_hears_is_gone_soon_but_not_for_a_moment() {
        let mut absences = two();
        absences.handle(at(10), Input::Away("h1"));
        absences.handle(at(12), Input::Heard(&|_| false, true));
        absences.handle(at(14), Input::Heard(&|_| true, true));
        assert_eq!(absences.poll(at(20)), Poll::Idle(Some(at(70))));
        absences.handle(at(30), Input::Heard(&|node| node != "h1", true));
        // What else is not heard does not put it off.
        absences.handle(at(32), Input::Heard(&|_| false, true));
        assert_eq!(gone(&mut absences, at(33)), [("h1".to_owned(), Why::Unheard)]);
        assert_eq!(absences.since("h2"), None);
    }

    #[test]
    fn a_controller_that_is_cut_off_itself_gives_nobody_up_and_all_have_the_whole_time_afterwards() {
        let mut absences = two();
        absences.handle(at(10), Input::Away("h1"));
        absences.handle(at(10), Input::Away("h2"));
        absences.handle(at(10), Input::Heard(&|_| false, false));
        assert_eq!(absences.poll(at(600)), Poll::Idle(None));
        absences.handle(at(600), Input::Here("h2"));
        assert_eq!(absences.poll(at(600)), Poll::Idle(Some(at(603))));
        absences.handle(at(601), Input::Heard(&|_| true, true));
        assert_eq!(absences.poll(at(601)), Poll::Idle(Some(at(660))));
        absences.handle(at(605), Input::Here("h1"));
        assert_eq!(absences.all().count(), 0);
    }

    #[test]
    fn who_has_left_is_not_away() {
        let mut absences = two();
        absences.handle(at(10), Input::Away("h1"));
        absences.handle(at(11), Input::Left("h1"));
        assert_eq!(absences.poll(at(999)), Poll::Idle(None));
    }
}
