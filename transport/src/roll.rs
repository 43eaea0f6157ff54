//! What the source knows of its receivers: who is there, who is ready, who has everything.

use crate::intervals::IntervalSet;
use crate::packet::Body;
use crate::report::positions;
use crate::rounds::Heard;
use crate::spec::Chain;
use cool_machine::{Duration, Time};
use core::ops::Range;
use std::sync::Arc;

/// A round as far as it has been reported.
#[derive(Debug)]
struct Told {
    round: u32,
    /// The worst of how it was heard.
    heard: Heard,
    by: IntervalSet,
    passed_on: bool,
}

/// The source's list of receivers.
#[derive(Debug)]
pub(crate) struct Roll {
    chain: Arc<Chain>,
    heard: Vec<Option<Time>>,
    ready: IntervalSet,
    complete: IntervalSet,
    /// When a receiver that is not complete was last heard of.
    news: Time,
    /// The latest round that is being reported.
    round: Option<Told>,
    /// How many report to the source: its own rack, and the heads of the others.
    reporters: u32,
}

impl Roll {
    pub(crate) fn new(now: Time, chain: Arc<Chain>) -> Roll {
        Roll {
            heard: vec![None; usize::from(chain.len())],
            ready: IntervalSet::default(),
            complete: IntervalSet::default(),
            news: now,
            round: None,
            reporters: (1..chain.len()).filter(|p| chain.head(*p) == 0 || chain.head(*p) == *p).count()
                as u32,
            chain,
        }
    }

    /// A receiver was heard.
    pub(crate) fn on_heard(&mut self, now: Time, position: u16) {
        self.heard[usize::from(position)] = Some(now);
        self.ready.insert(u32::from(position)..u32::from(position) + 1);
        if !self.complete.contains(u32::from(position)) {
            self.news = now;
        }
    }

    /// A report came from one receiver about several. Tells whether any of them is newly complete.
    pub(crate) fn on_report(&mut self, now: Time, alive: &[Range<u16>], complete: &[Range<u16>]) -> bool {
        let last = self.chain.len();
        for position in alive.iter().flat_map(|range| range.start.max(1)..range.end.min(last)) {
            self.on_heard(now, position);
        }
        let mut new = 0;
        for range in complete {
            new += self.complete.insert(u32::from(range.start.max(1))..u32::from(range.end.min(last)));
        }
        if new > 0 {
            self.news = now;
        }
        new > 0
    }

    /// What one reported of the last of the rounds that have passed. Returns a round once all have told of it,
    /// or one tells of a later one.
    pub(crate) fn on_round(&mut self, from: u16, rounds: u32, heard: Heard) -> Option<(u32, Heard)> {
        let round = rounds.checked_sub(1)?;
        let mut past = None;
        if self.round.as_ref().is_none_or(|told| told.round < round) {
            past = self.round.take().filter(|told| !told.passed_on).map(|told| (told.round, told.heard));
        }
        let new = || Told { round, heard, by: IntervalSet::default(), passed_on: false };
        let told = self.round.get_or_insert_with(new);
        if told.round > round || told.passed_on {
            return past;
        }
        told.heard = told.heard.worst(heard);
        told.by.insert(u32::from(from)..u32::from(from) + 1);
        if told.by.len() < self.reporters || past.is_some() {
            return past;
        }
        told.passed_on = true;
        Some((round, told.heard))
    }

    /// How many rounds have passed, as far as anyone told.
    pub(crate) fn rounds(&self) -> u32 {
        self.round.as_ref().map_or(0, |told| told.round + 1)
    }

    /// When a receiver that is not complete was last heard of.
    pub(crate) fn news(&self) -> Time {
        self.news
    }

    /// Whether every receiver has been heard of.
    pub(crate) fn all_ready(&self) -> bool {
        self.ready.len() == self.receivers()
    }

    /// Whether any receiver has been heard of at or after an instant.
    pub(crate) fn any_since(&self, at: Time) -> bool {
        self.heard.iter().flatten().any(|heard| *heard >= at)
    }

    /// Whether every receiver has everything.
    pub(crate) fn all_complete(&self) -> bool {
        self.complete.len() == self.receivers()
    }

    /// Positions that are not complete and have not been heard of for so long.
    pub(crate) fn silent_for(&self, now: Time, quiet: Duration) -> Vec<u16> {
        let missing = self.complete.gaps(1..u32::from(self.chain.len())).flatten().map(|p| p as u16);
        missing.filter(|p| self.heard[usize::from(*p)].is_none_or(|heard| now - heard >= quiet)).collect()
    }

    /// Positions that have not been heard of at all.
    pub(crate) fn not_ready(&self) -> Vec<u16> {
        self.ready.gaps(1..u32::from(self.chain.len())).flatten().map(|p| p as u16).collect()
    }

    /// The nodes that are not complete.
    pub(crate) fn incomplete(&self) -> Vec<u16> {
        let missing = self.complete.gaps(1..u32::from(self.chain.len())).flatten();
        missing.map(|position| self.chain.node(position as u16)).collect()
    }

    /// What a receiver that reported is to be told: of itself and the next, or of its rack if it is the head.
    pub(crate) fn settled_for(&self, position: u16) -> Body {
        let from = u32::from(position);
        let to =
            if self.chain.head(position) == position { self.chain.rack_end(position) } else { position + 1 };
        Body::Settled { positions: positions(self.complete.overlaps(from..u32::from(to) + 1)) }
    }

    /// What all are told at the end, also of those that did not complete.
    pub(crate) fn all_settled(&self) -> Body {
        Body::Settled { positions: vec![1..self.chain.len()] }
    }

    fn receivers(&self) -> u32 {
        u32::from(self.chain.len()) - 1
    }
}

/// When the source looks again for receivers that it has not heard of.
#[derive(Debug)]
pub(crate) struct Polls {
    at: Time,
    times: u32,
}

impl Polls {
    /// The first after `wait`.
    pub(crate) fn new(now: Time, wait: Duration) -> Polls {
        Polls { at: now + wait, times: 0 }
    }

    pub(crate) fn at(&self) -> Time {
        self.at
    }

    /// It looks now, and again after a growing multiple of `wait`.
    pub(crate) fn on_poll(&mut self, now: Time, wait: Duration) {
        self.at = now + crate::rtt::backoff(wait, self.times);
        self.times += 1;
    }
}
