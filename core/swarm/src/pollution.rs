//! Handles coded blocks with bytes that do not match their announcements (pollution: Gkantsidis and
//! Rodriguez, Cooperative Security for Network Coding File Distribution, INFOCOM 2006).
//!
//! The hash of a decoded generation shows that it is polluted, but not which member polluted it,
//! because members that combine coded blocks pass wrong bytes on in good faith. An announcement
//! therefore states whether its sender has checked the generation. A polluted generation is
//! requested again from a single member that has checked it. If it is wrong again, that member has
//! lied and is expelled. If it is right, the coded blocks of the first attempt are compared with
//! it. The sender of a wrong one is expelled if it had checked the generation; otherwise it is
//! trusted only for generations that it has checked from then on.

use crate::generation::{CodedBlock, Slot};
use crate::rings::Member;
use cool_machine::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Number of times that a polluted generation may move to another member. Blocks of it do not count
/// as progress after that.
const TURNS_MAX: u32 = 16;

/// A coded block and the member that sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The member that sent the coded block.
    pub from: Member,
    /// Whether that member had checked the generation, so that it is responsible for a wrong block.
    pub checked: bool,
    /// The announced coefficients.
    pub row: CodedBlock,
    /// The slot of its bytes.
    pub slot: Slot,
}

/// Records which member sent which coded block, and which members are trusted.
#[derive(Debug, Default)]
pub(crate) struct Pollution {
    /// Coded blocks received of generations that are not decoded yet.
    origins: BTreeMap<u32, Vec<Origin>>,
    /// Polluted generations, each with the coded blocks of the first attempt, some of which are
    /// wrong. The generations are requested again one after the other.
    polluted: VecDeque<(u32, Vec<Origin>)>,
    /// The only member from which the first polluted generation is accepted, and the time until
    /// which its next block is awaited.
    sole: Option<(Member, Time)>,
    /// Number of times that another member has become the only one.
    turns: u32,
    /// Members that have sent a wrong coded block of a generation that they had not checked.
    doubted: BTreeSet<Member>,
    expelled: BTreeSet<Member>,
}

impl Pollution {
    pub(crate) fn is_expelled(&self, member: Member) -> bool {
        self.expelled.contains(&member)
    }

    /// Returns whether a coded block of a generation is accepted from a member.
    pub(crate) fn admits(&self, now: Time, from: Member, generation: u32, checked: bool) -> bool {
        let withheld = self.withheld(now, from).any(|of| of == generation);
        let believed = !self.is_polluted(generation) && !self.doubted.contains(&from);
        !withheld && (checked || believed)
    }

    /// Returns the polluted generations of which no block is accepted from a member now: all but
    /// the first, and also the first one while another member sends it.
    pub(crate) fn withheld(&self, now: Time, from: Member) -> impl Iterator<Item = u32> {
        let others = self.sole.is_some_and(|(sole, until)| sole != from && now < until);
        self.polluted.iter().skip(usize::from(!others)).map(|(generation, _)| *generation)
    }

    /// Returns whether all generations are accepted from all members.
    pub(crate) fn is_clear(&self) -> bool {
        self.polluted.is_empty()
    }

    /// Returns whether a coded block of a generation counts as progress. The number of turns is
    /// limited, because otherwise liars that hold only part of a generation could take turns
    /// forever.
    pub(crate) fn is_progress(&self, generation: u32) -> bool {
        self.turns <= TURNS_MAX || !self.is_polluted(generation)
    }

    fn is_polluted(&self, generation: u32) -> bool {
        self.polluted.iter().any(|(other, _)| *other == generation)
    }

    /// Returns the only member from which blocks are accepted, while its next block is awaited.
    pub(crate) fn sole(&self, now: Time) -> Option<Member> {
        self.sole.filter(|(_, until)| now < *until).map(|(sole, _)| sole)
    }

    /// Records that an accepted coded block is expected until the given time. Returns whether the
    /// coded blocks held of the generation are from another member and must be dropped, because all
    /// of them must be from one member.
    pub(crate) fn expect(&mut self, from: Member, generation: u32, until: Time) -> bool {
        let another = self.is_polluted(generation)
            && self.sole.replace((from, until)).is_some_and(|(sole, _)| sole != from);
        self.turns += u32::from(another);
        another
    }

    pub(crate) fn record(&mut self, generation: u32, origin: Origin) {
        self.origins.entry(generation).or_default().push(origin);
    }

    /// Returns whether any coded block of a generation was received from another member.
    pub(crate) fn is_of_others(&self, generation: u32) -> bool {
        self.origins.contains_key(&generation)
    }

    /// Drops the records of the coded blocks held of a generation.
    pub(crate) fn drop_rows(&mut self, generation: u32) {
        self.origins.remove(&generation);
    }

    /// Records that a generation is polluted. Returns the member that lied, if that is certain.
    pub(crate) fn polluted(&mut self, generation: u32) -> Option<Member> {
        let rows = self.origins.remove(&generation).unwrap_or_default();
        let first = rows.first()?.from;
        let liar = rows.iter().all(|row| row.from == first && row.checked).then_some(first);
        if self.is_polluted(generation) {
            // All blocks were from one member that has checked the generation.
            (self.sole, self.turns) = (None, 0);
        } else {
            self.polluted.push_back((generation, if liar.is_some() { Vec::new() } else { rows }));
        }
        liar
    }

    /// Records that a generation is right. Returns the coded blocks of the first attempt if it was
    /// polluted.
    pub(crate) fn right(&mut self, generation: u32) -> Option<Vec<Origin>> {
        self.origins.remove(&generation);
        let at = self.polluted.iter().position(|(other, _)| *other == generation)?;
        if at == 0 {
            (self.sole, self.turns) = (None, 0);
        }
        self.polluted.remove(at).map(|(_, suspects)| suspects)
    }

    /// Records that a member has sent a wrong coded block of a generation that it had not checked.
    pub(crate) fn doubt(&mut self, member: Member) {
        self.doubted.insert(member);
    }

    /// Expels a member. Returns false if it was expelled before.
    pub(crate) fn expel(&mut self, member: Member) -> bool {
        self.expelled.insert(member)
    }

    /// Stops waiting for blocks from a member that was lost.
    pub(crate) fn forget(&mut self, member: Member) {
        if let Some((_, until)) = self.sole.as_mut().filter(|(sole, _)| *sole == member) {
            *until = Time::ZERO;
        }
    }
}
