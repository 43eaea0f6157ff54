//! The blocks that are under way in one direction, each with its timeout.

use crate::generation::CodedBlock;
use crate::holdings::HoldingsReport;
use crate::lane::blocks_at_a_time;
use crate::rings::Member;
use cool_machine::Time;

/// A block that was offered or granted, or is being sent.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    /// The other member.
    pub(crate) peer: Member,
    /// The sender's number of the transfer.
    pub(crate) number: u32,
    /// Whether few bytes remain, so that the next block may be arranged.
    pub(crate) nearly: bool,
    /// When the transfer times out.
    pub(crate) until: Time,
    /// The generation and coefficients, once the block is announced.
    pub(crate) block: Option<(u32, CodedBlock)>,
    /// For incoming blocks: whether the sender has checked the generation.
    pub(crate) checked: bool,
    /// At the sender: the holdings that the receiver reported.
    pub(crate) have: HoldingsReport,
}

/// The transfers of a member in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Transfers {
    me: Member,
    list: Vec<Transfer>,
}

impl Transfers {
    pub(crate) fn new(me: Member) -> Transfers {
        Transfers { me, list: Vec::new() }
    }

    /// Adds a transfer that was offered or granted, with its timeout.
    pub(crate) fn add(&mut self, peer: Member, number: u32, until: Time) {
        let have = HoldingsReport::default();
        self.list.push(Transfer { peer, number, nearly: false, until, block: None, checked: false, have });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether another transfer may be arranged in the lane that leads to a member.
    pub(crate) fn room(&self, with: Member) -> bool {
        self.room_in(with.rack != self.me.rack)
    }

    /// Returns whether another transfer may be arranged within the rack, or beyond it (`far`).
    pub(crate) fn room_in(&self, far: bool) -> bool {
        let lane = self.list.iter().filter(|transfer| (transfer.peer.rack != self.me.rack) == far);
        let most = blocks_at_a_time(far);
        // One additional transfer may be arranged while the last bytes of another one are sent.
        lane.clone().filter(|transfer| !transfer.nearly).count() < most && lane.count() <= most
    }

    /// Records that few bytes of a block remain.
    pub(crate) fn nearly(&mut self, peer: Member, number: u32) {
        if let Some(transfer) = self.find(peer, number) {
            transfer.nearly = true;
        }
    }

    pub(crate) fn with(&self, peer: Member) -> bool {
        self.list.iter().any(|transfer| transfer.peer == peer)
    }

    /// Returns whether a member has granted everything that it was offered.
    pub(crate) fn is_answered(&self, peer: Member) -> bool {
        self.list.iter().all(|transfer| transfer.peer != peer || transfer.block.is_some())
    }

    /// Returns the blocks that have been announced.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &(u32, CodedBlock)> + Clone {
        self.list.iter().filter_map(|transfer| transfer.block.as_ref())
    }

    /// Removes and returns the transfers whose member, generation and coded block satisfy `such`.
    pub(crate) fn without(&mut self, such: impl Fn(Member, u32, &CodedBlock) -> bool) -> Vec<Transfer> {
        let is_such = |transfer: &mut Transfer| {
            let Transfer { peer, block, .. } = transfer;
            matches!(block, Some((of, row)) if such(*peer, *of, row))
        };
        self.list.extract_if(.., is_such).collect()
    }

    pub(crate) fn find(&mut self, peer: Member, number: u32) -> Option<&mut Transfer> {
        self.list.iter_mut().find(|transfer| (transfer.peer, transfer.number) == (peer, number))
    }

    /// Returns a transfer with a member if its block has not been announced yet.
    pub(crate) fn granted(&mut self, peer: Member) -> Option<&mut Transfer> {
        self.list.iter_mut().find(|transfer| transfer.peer == peer && transfer.block.is_none())
    }

    pub(crate) fn take(&mut self, peer: Member, number: u32) -> Option<Transfer> {
        let at = self.list.iter().position(|transfer| (transfer.peer, transfer.number) == (peer, number))?;
        Some(self.list.remove(at))
    }

    /// Removes and returns the transfers that have timed out.
    pub(crate) fn expired(&mut self, now: Time) -> Vec<Transfer> {
        self.list.extract_if(.., |transfer| transfer.until <= now).collect()
    }

    /// Removes and returns all transfers with a member.
    pub(crate) fn of(&mut self, peer: Member) -> Vec<Transfer> {
        self.list.extract_if(.., |transfer| transfer.peer == peer).collect()
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.list.iter().map(|transfer| transfer.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_has_room_for_one_more_when_blocks_are_nearly_done() {
        let me = Member { rack: 0, slot: 0 };
        for far in [false, true] {
            let most = blocks_at_a_time(far) as u32;
            let peer = |number| Member { rack: u32::from(far), slot: 1 + number };
            let mut transfers = Transfers::new(me);
            for number in 0..most {
                assert!(transfers.room(peer(number)));
                transfers.add(peer(number), number, Time::ZERO);
            }
            assert!(!transfers.room_in(far) && transfers.room_in(!far));
            (0..most).for_each(|number| transfers.nearly(peer(number), number));
            assert!(transfers.room_in(far));
            transfers.add(peer(most), most, Time::ZERO);
            assert!(!transfers.room_in(far), "only one more");
        }
    }
}
