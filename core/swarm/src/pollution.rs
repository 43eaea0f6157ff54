//! Rows whose bytes are not what their heads say (pollution: Gkantsidis and Rodriguez, Cooperative Security for Network Coding File
//! Distribution, INFOCOM 2006).
//!
//! That a generation is polluted shows in its hash once it is decoded; who polluted it does not, for whoever combines rows passes
//! on what is wrong with them in good faith. So a head says whether its sender has checked the generation. What was polluted
//! is taken again from one member alone that has: if it is wrong then, that member has lied, and is expelled. If it is right, the
//! rows that came before are compared with it: who sent a wrong one is expelled if it had checked the generation, and else
//! believed only what it has checked from then on.

use crate::generation::{Row, Slot};
use crate::rings::Member;
use cool_machine::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// After more turns of members that a polluted generation is taken from, what they send is nothing new.
const TURNS_MAX: u32 = 16;

/// A row that came from a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The member.
    pub from: Member,
    /// Whether it had checked the generation, so that a wrong row is its own doing.
    pub checked: bool,
    /// What its head said.
    pub row: Row,
    /// Where its bytes stand.
    pub slot: Slot,
}

/// Who sent what, and what of whom is believed.
#[derive(Debug, Default)]
pub(crate) struct Pollution {
    /// Rows that came of generations that are not whole yet.
    origins: BTreeMap<u32, Vec<Origin>>,
    /// Generations that were polluted, with the rows of the first time, of which some are wrong; they are taken one after the other.
    polluted: VecDeque<(u32, Vec<Origin>)>,
    /// From whom alone the first of them is taken, and until when it is waited for more of it.
    sole: Option<(Member, Time)>,
    /// How often another one has taken that one's place.
    turns: u32,
    /// Who has sent a wrong row of a generation that it had not checked.
    doubted: BTreeSet<Member>,
    expelled: BTreeSet<Member>,
}

impl Pollution {
    pub(crate) fn is_expelled(&self, member: Member) -> bool {
        self.expelled.contains(&member)
    }

    /// Whether a row of a generation may come from a member.
    pub(crate) fn admits(&self, now: Time, from: Member, generation: u32, checked: bool) -> bool {
        let withheld = self.withheld(now, from).any(|of| of == generation);
        let believed = !self.is_polluted(generation) && !self.doubted.contains(&from);
        !withheld && (checked || believed)
    }

    /// Polluted generations of which nothing is taken from a member now: all but the first, and that if it is another's.
    pub(crate) fn withheld(&self, now: Time, from: Member) -> impl Iterator<Item = u32> {
        let others = self.sole.is_some_and(|(sole, until)| sole != from && now < until);
        self.polluted.iter().skip(usize::from(!others)).map(|(generation, _)| *generation)
    }

    /// Whether nothing is withheld from anybody.
    pub(crate) fn is_clear(&self) -> bool {
        self.polluted.is_empty()
    }

    /// Whether a row of a generation is something new: not for ever where liars that have not all of it take turns.
    pub(crate) fn is_progress(&self, generation: u32) -> bool {
        self.turns <= TURNS_MAX || !self.is_polluted(generation)
    }

    fn is_polluted(&self, generation: u32) -> bool {
        self.polluted.iter().any(|(other, _)| *other == generation)
    }

    /// From whom alone something is taken, if it is waited for that.
    pub(crate) fn sole(&self, now: Time) -> Option<Member> {
        self.sole.filter(|(_, until)| now < *until).map(|(sole, _)| sole)
    }

    /// A row that was admitted comes until then. Whether those that are held of the generation are another member's, and are to be
    /// dropped, so that all are of one.
    pub(crate) fn expect(&mut self, from: Member, generation: u32, until: Time) -> bool {
        let another = self.is_polluted(generation)
            && self.sole.replace((from, until)).is_some_and(|(sole, _)| sole != from);
        self.turns += u32::from(another);
        another
    }

    pub(crate) fn came(&mut self, generation: u32, origin: Origin) {
        self.origins.entry(generation).or_default().push(origin);
    }

    /// Whether any row of a generation came from others.
    pub(crate) fn is_of_others(&self, generation: u32) -> bool {
        self.origins.contains_key(&generation)
    }

    /// The rows that are held of a generation are dropped.
    pub(crate) fn drop_rows(&mut self, generation: u32) {
        self.origins.remove(&generation);
    }

    /// A generation is polluted; who has lied, if that is certain.
    pub(crate) fn polluted(&mut self, generation: u32) -> Option<Member> {
        let rows = self.origins.remove(&generation).unwrap_or_default();
        let first = rows.first()?.from;
        let liar = rows.iter().all(|row| row.from == first && row.checked).then_some(first);
        if self.is_polluted(generation) {
            // All were of one that has checked it.
            (self.sole, self.turns) = (None, 0);
        } else {
            self.polluted.push_back((generation, if liar.is_some() { Vec::new() } else { rows }));
        }
        liar
    }

    /// A generation is right: the rows of the first time, if it was polluted.
    pub(crate) fn right(&mut self, generation: u32) -> Option<Vec<Origin>> {
        self.origins.remove(&generation);
        let at = self.polluted.iter().position(|(other, _)| *other == generation)?;
        if at == 0 {
            (self.sole, self.turns) = (None, 0);
        }
        self.polluted.remove(at).map(|(_, suspects)| suspects)
    }

    /// A member has sent a wrong row of what it had not checked.
    pub(crate) fn doubt(&mut self, member: Member) {
        self.doubted.insert(member);
    }

    /// Whether a member was not expelled before.
    pub(crate) fn expel(&mut self, member: Member) -> bool {
        self.expelled.insert(member)
    }

    /// A member is gone: it is waited for no longer.
    pub(crate) fn gone(&mut self, member: Member) {
        if let Some((_, until)) = self.sole.as_mut().filter(|(sole, _)| *sole == member) {
            *until = Time::ZERO;
        }
    }
}
