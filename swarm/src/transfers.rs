//! Blocks under way in one direction, each with the time until which it is waited for.

use crate::generation::Row;
use crate::holdings::Have;
use crate::rings::Member;
use cool_machine::Time;

/// At most, within the rack and beyond it: one, and the next beside the last part of it.
const UNDER_WAY: usize = 2;

/// A block that was offered or granted, or is under way.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    /// Where it goes to or comes from.
    pub(crate) peer: Member,
    /// Whether that is in another rack.
    pub(crate) far: bool,
    /// The sender's number.
    pub(crate) number: u32,
    /// Whether it is nearly through, so that the next may be arranged.
    pub(crate) nearly: bool,
    /// It is given up then.
    pub(crate) until: Time,
    /// Its generation and what it is, once that is known.
    pub(crate) block: Option<(u32, Row)>,
    /// At the sender: what the receiver said that it holds.
    pub(crate) have: Have,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers(Vec<Transfer>);

impl Transfers {
    /// One that is offered or granted, and waited for until then.
    pub(crate) fn add(&mut self, (peer, far): (Member, bool), number: u32, until: Time) {
        let have = Have::default();
        self.0.push(Transfer { peer, far, number, nearly: false, until, block: None, have });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether another may be arranged, from or to another rack or within this one. These do not wait for each other: what comes
    /// from another rack is new to the whole rack, and should find no node busy with what is new to itself alone.
    pub(crate) fn room(&self, far: bool) -> bool {
        let mut alike = self.0.iter().filter(|transfer| transfer.far == far);
        alike.clone().count() < UNDER_WAY && alike.all(|transfer| transfer.nearly)
    }

    /// A block is nearly through.
    pub(crate) fn nearly(&mut self, peer: Member, number: u32) {
        if let Some(transfer) = self.find(peer, number) {
            transfer.nearly = true;
        }
    }

    pub(crate) fn with(&self, peer: Member) -> bool {
        self.0.iter().any(|transfer| transfer.peer == peer)
    }

    /// Those blocks of which it is known what they are.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &(u32, Row)> {
        self.0.iter().filter_map(|transfer| transfer.block.as_ref())
    }

    /// Takes the blocks that are such.
    pub(crate) fn without(&mut self, such: impl Fn(u32, &Row) -> bool) -> Vec<Transfer> {
        let is_such = |transfer: &mut Transfer| matches!(&transfer.block, Some((of, row)) if such(*of, row));
        self.0.extract_if(.., is_such).collect()
    }

    pub(crate) fn find(&mut self, peer: Member, number: u32) -> Option<&mut Transfer> {
        self.0.iter_mut().find(|transfer| (transfer.peer, transfer.number) == (peer, number))
    }

    /// One from or to a member of which it is not known yet which block it will be.
    pub(crate) fn granted(&mut self, peer: Member) -> Option<&mut Transfer> {
        self.0.iter_mut().find(|transfer| transfer.peer == peer && transfer.block.is_none())
    }

    pub(crate) fn take(&mut self, peer: Member, number: u32) -> Option<Transfer> {
        let at = self.0.iter().position(|transfer| (transfer.peer, transfer.number) == (peer, number))?;
        Some(self.0.remove(at))
    }

    /// Takes those for which it has been waited long enough.
    pub(crate) fn expired(&mut self, now: Time) -> Vec<Transfer> {
        self.0.extract_if(.., |transfer| transfer.until <= now).collect()
    }

    /// Takes those with a member.
    pub(crate) fn of(&mut self, peer: Member) -> Vec<Transfer> {
        self.0.extract_if(.., |transfer| transfer.peer == peer).collect()
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.0.iter().map(|transfer| transfer.until).min()
    }
}
