//! The inputs and outputs of a swarm member, and the signals that members exchange.

use crate::division::Division;
use crate::generation::{CodedBlock, Recovery, Slot, Term};
use crate::holdings::{Code, HoldingsReport, SourceIndex};
use crate::link_rates::BlockTime;
use crate::order::Order;
use crate::pollution::Origin;
use crate::rings::Member;
use cool_machine::Duration;
use serde::{Deserialize, Serialize};

/// The parameters with which a member starts: the members, the content and the timeouts.
#[derive(Clone, Debug)]
pub struct SwarmSpec {
    /// Seed of the rings. Must be the same at all members.
    pub seed: u64,
    /// Version of the membership. Must be the same at all members.
    pub epoch: u32,
    /// All members, including this node. Rings keep racks together; if all members are declared to
    /// be in one rack, they form a uniformly random ring.
    pub members: Vec<Member>,
    /// This node.
    pub me: Member,
    /// Seed of this node's coefficients. Must differ between nodes.
    pub chance: u64,
    /// How the content is divided.
    pub division: Division,
    /// Which blocks are sent: coded ones, or originals only.
    pub code: Code,
    /// Which generation is sent first.
    pub order: Order,
    /// Set at a source: it starts with all blocks, and sends its share of the originals first.
    pub source: Option<SourceIndex>,
    /// The timeouts.
    pub waits: Waits,
}

/// The timeouts of a member.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// Timeout for the reply to an offer, and for the announcement of a granted block.
    pub answer: Duration,
    /// Time that a block takes over a node's link. Pauses are fractions and multiples of it.
    pub block: Duration,
    /// Timeout for all bytes of a block, from its announcement.
    pub transfer: Duration,
    /// Time without any new block after which the member reports that it is starved
    /// ([`Output::Starved`]).
    pub starved: Duration,
}

/// The signals that members exchange in addition to blocks. Any of them may be lost, duplicated or
/// delayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// The sender has room on its link. The receiver must reply with a grant or a refusal of the
    /// same transfer number.
    Offer {
        /// The sender's number of this transfer.
        transfer: u32,
        /// The sender's ring. A receiver that is on an earlier ring advances to it, as logical
        /// clocks do (Lamport 1978), so that all members use about the same ring and few of them
        /// meet a busy receiver.
        ring: u64,
        /// The sender's estimate of the time that a block takes over its link.
        block_time: BlockTime,
    },
    /// The receiver accepts a block.
    Grant {
        /// The transfer that was offered.
        transfer: u32,
        /// The receiver's ring.
        ring: u64,
        /// The receiver's estimate of the time that a block takes over its link.
        block_time: BlockTime,
        /// The blocks that the receiver holds.
        have: HoldingsReport,
    },
    /// The receiver does not accept a block now.
    Refuse {
        /// The transfer that was offered.
        transfer: u32,
        /// The receiver's ring.
        ring: u64,
        /// The receiver's estimate of the time that a block takes over its link.
        block_time: BlockTime,
        /// Whether the receiver holds everything and needs no further offer. Otherwise it is busy.
        complete: bool,
    },
    /// Cancels a granted transfer, because the sender holds nothing new for the receiver or because
    /// the block was lost.
    Withdraw {
        /// The transfer that was granted.
        transfer: u32,
    },
    /// The announced block is not new, so its bytes need not be sent. The grant remains valid for
    /// another block.
    Stop {
        /// The transfer of the announced block.
        transfer: u32,
    },
    /// The sender of this signal is idle. The receiver should offer it a block.
    Ask {
        /// The blocks that the sender of the signal holds.
        have: HoldingsReport,
    },
    /// A coded block from another rack is about to arrive in the sender's rack. Sent to all members
    /// of that rack, because the block need not enter it a second time.
    Entered {
        /// The generation of the coded block.
        generation: u32,
        /// The coefficients of the coded block.
        row: CodedBlock,
    },
    /// A coded block is being sent from the sender's rack to another one. Sent to all members of
    /// the sender's rack, because members of the other rack can pass the block on.
    Left {
        /// The generation of the coded block.
        generation: u32,
        /// The coefficients of the coded block.
        row: CodedBlock,
    },
    /// Announces a granted block. Its bytes follow.
    Head(BlockAnnouncement),
}

/// The announcement of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockAnnouncement {
    /// The sender's number of the transfer.
    pub transfer: u32,
    /// The generation of the block.
    pub generation: u32,
    /// The coefficients of the block.
    pub row: CodedBlock,
    /// Whether the sender has checked the generation, or read it from storage. If so, the sender is
    /// accountable for the bytes.
    pub checked: bool,
    /// Number of blocks that the source has sent, as known to the sender: the paper's round.
    pub round: u64,
}

/// The events that a driver reports to a [`crate::Swarm`].
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A signal has arrived.
    Signal {
        /// The member that sent it.
        from: Member,
        /// The signal.
        signal: &'a Signal,
    },
    /// The remaining bytes of an outgoing or incoming block take only as long as an offer and some
    /// refusals. The machine may then arrange the next block, so that the link does not become
    /// idle. Without this input a link is idle between blocks, as in the paper.
    Nearly {
        /// The other member of the transfer.
        peer: Member,
        /// The sender's number of the transfer.
        transfer: u32,
        /// Whether this member is the sender.
        sent: bool,
    },
    /// All bytes of an announced block have arrived.
    Received {
        /// Its sender.
        from: Member,
        /// The sender's number of the transfer.
        transfer: u32,
        /// Time from the first byte to the last one, if it could be measured.
        took: Option<Duration>,
    },
    /// The receiver has confirmed all bytes of a block, or they will not be sent any more.
    Sent {
        /// The receiver.
        to: Member,
        /// The sender's number of the transfer.
        transfer: u32,
        /// Whether the receiver confirmed all bytes.
        arrived: bool,
    },
    /// A block that did not arrive through the swarm is in place. It may come from a tree, from
    /// disk or from an earlier version of the content.
    Placed {
        /// The block, numbered as in [`Division`].
        block: u32,
    },
    /// The sums of [`Output::Decode`] are in place, and the generation's hash is right.
    Decoded {
        /// The decoded generation.
        generation: u32,
    },
    /// The hash of a generation is wrong with the sums of [`Output::Decode`]: some member sent
    /// other bytes than it announced. The driver must set the generation's coded blocks aside if it
    /// has set none of that generation aside yet, and must drop them otherwise. All blocks are then
    /// requested again.
    Polluted {
        /// The polluted generation.
        generation: u32,
    },
    /// The bytes of a coded block of [`Output::Audit`] do not match its announcement.
    Refuted {
        /// The member that sent it.
        from: Member,
        /// Whether that member had announced the generation as checked.
        checked: bool,
    },
    /// A member has joined, or has returned without any blocks.
    Joined(Member),
    /// A member was lost.
    Gone(Member),
    /// All members hold all earlier generations. [`Order::Sequential`] waits for this (the paper's
    /// Status Monitor).
    Settled {
        /// The first generation of which some member may be missing blocks.
        generation: u32,
    },
}

/// The operations that a [`crate::Swarm`] requests of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a signal. It may be lost.
    Signal {
        /// The receiver.
        to: Member,
        /// The signal.
        signal: Signal,
    },
    /// Compute the sum of `terms` and send it after the blocks that are already being sent, then
    /// report [`Input::Sent`]. The announcement has already been output as a signal.
    Transmit {
        /// The receiver.
        to: Member,
        /// The sender's number of the transfer.
        transfer: u32,
        /// The generation to which the slots belong.
        generation: u32,
        /// The terms of which the block is the sum. An original has one term with factor 1.
        terms: Vec<Term>,
    },
    /// Stop sending a block. The driver need not report [`Input::Sent`] for it.
    Cancel {
        /// The receiver.
        to: Member,
        /// The sender's number of the transfer.
        transfer: u32,
    },
    /// Store the bytes of a received block.
    Store {
        /// Its sender.
        from: Member,
        /// The sender's number of the transfer.
        transfer: u32,
        /// The generation.
        generation: u32,
        /// The slot in which to store them.
        slot: Slot,
    },
    /// Stop receiving a block, and drop the bytes that have arrived.
    Discard {
        /// Its sender.
        from: Member,
        /// The sender's number of the transfer.
        transfer: u32,
    },
    /// Write these sums to their places, compare the generation with its hash, and report
    /// [`Input::Decoded`] or [`Input::Polluted`]. The driver must keep the slots of the generation
    /// until then; afterwards it may reuse the coded ones.
    Decode {
        /// The generation to decode.
        generation: u32,
        /// The blocks that did not arrive as originals; may be empty.
        recoveries: Vec<Recovery>,
    },
    /// A generation that was polluted is now right. Compare the coded blocks that were set aside
    /// with it, report each wrong one by [`Input::Refuted`], and drop them all.
    Audit {
        /// The generation that was polluted.
        generation: u32,
        /// The coded blocks that were set aside, each with its sender and slot.
        suspects: Vec<Origin>,
    },
    /// A member sent wrong bytes of a generation that it had checked. This node no longer treats it
    /// as a member.
    Expelled(Member),
    /// Every block is in place. The machine continues to serve other members.
    Done,
    /// No new block has arrived for the time in [`Waits::starved`], and blocks are missing. The
    /// machine continues.
    Starved {
        /// The incomplete generations, each with the number of coded blocks that it is missing.
        missing: Vec<(u32, u16)>,
    },
}

/// Counters of a member's activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwarmStats {
    /// Offers made.
    pub offers: u64,
    /// Offers refused.
    pub refused: u64,
    /// Blocks announced.
    pub announced: u64,
    /// Announced blocks that were not new to their receivers.
    pub stopped: u64,
    /// Received blocks that were no longer new.
    pub not_new: u64,
    /// Times that this node requested a block.
    pub asks: u64,
}

impl SwarmStats {
    /// Adds the counters of another machine.
    pub fn add(&mut self, other: &SwarmStats) {
        self.offers += other.offers;
        self.refused += other.refused;
        self.announced += other.announced;
        self.stopped += other.stopped;
        self.not_new += other.not_new;
        self.asks += other.asks;
    }
}
