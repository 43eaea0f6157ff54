//! What goes into a swarm's machine and what comes out of it.

use crate::generation::{Recovery, Row, Slot, Term};
use crate::holdings::{Code, Division, Have, Share};
use crate::order::Order;
use crate::paces::Pace;
use crate::pollution::Origin;
use crate::rings::Member;
use cool_machine::Duration;
use serde::{Deserialize, Serialize};

/// A swarm before it runs: who takes part in what, and how long is waited.
#[derive(Clone, Debug)]
pub struct SwarmSpec {
    /// From which rings follow; the same at all members.
    pub seed: u64,
    /// The version of the membership; the same at all members.
    pub epoch: u32,
    /// Who takes part, this node among them. Rings keep racks together; members that are said to be in one rack stand in a
    /// uniformly random ring.
    pub members: Vec<Member>,
    /// This node.
    pub me: Member,
    /// From which this node's coefficients follow; another one at each node.
    pub chance: u64,
    /// How the content is divided.
    pub division: Division,
    /// What is sent.
    pub code: Code,
    /// Which generation first.
    pub order: Order,
    /// Set at a source: it has all, and sends its share of the originals first.
    pub source: Option<Share>,
    /// How long is waited for what.
    pub waits: Waits,
}

/// How long a node waits for what.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// For the answer to an offer, and for the head of a block that was granted.
    pub answer: Duration,
    /// What a block takes over a node's link; pauses are parts of it and multiples of it.
    pub block: Duration,
    /// For all of a block once its head has come.
    pub transfer: Duration,
    /// For anything new at all, before this is reported ([`Output::Starved`]).
    pub starved: Duration,
}

/// What members say to each other, apart from blocks. Any may be lost, doubled and late.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// The sender has room on its link. Answered by a grant or a refusal of the same number.
    Offer {
        /// The sender's number of the transfer.
        transfer: u32,
        /// The sender's ring. Who hears of a later one than its own goes on to it, as clocks of events do (Lamport 1978), so
        /// that all offer along about the same ring, and few meet a receiver that is busy.
        ring: u64,
        /// What a block takes over the sender's link, as far as it has found.
        pace: Pace,
    },
    /// A block may come.
    Grant {
        /// The transfer.
        transfer: u32,
        /// The receiver's ring.
        ring: u64,
        /// What a block takes over the receiver's link.
        pace: Pace,
        /// What the receiver holds.
        have: Have,
    },
    /// No block may come now.
    Refuse {
        /// The transfer.
        transfer: u32,
        /// The receiver's ring.
        ring: u64,
        /// What a block takes over the receiver's link.
        pace: Pace,
        /// Whether the receiver has all, and none need come again; else it is busy.
        complete: bool,
    },
    /// Nothing comes of what was granted: the sender has nothing new to it, or the block was lost.
    Withdraw {
        /// The transfer.
        transfer: u32,
    },
    /// The block announced is not new: none of its bytes need be sent any more. The grant holds for another one.
    Stop {
        /// The transfer.
        transfer: u32,
    },
    /// The sender of this has been idle: whoever gets it is to offer.
    Ask {
        /// What it holds.
        have: Have,
    },
    /// A row has come to the sender's rack, which all in that rack are told: it needs to come no second time.
    Entered {
        /// The generation.
        generation: u32,
        /// Its coefficients.
        row: Row,
    },
    /// A row goes from the sender's rack to another one, which all in that rack are told: others can pass it on from there.
    Left {
        /// The generation.
        generation: u32,
        /// Its coefficients.
        row: Row,
    },
    /// Announces a granted block, whose bytes follow.
    Head(BlockHead),
}

/// What a block is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockHead {
    /// The sender's number of the transfer.
    pub transfer: u32,
    /// The generation.
    pub generation: u32,
    /// Its coefficients.
    pub row: Row,
    /// Whether the sender has checked the generation, or read it from where it had been: it vouches for the bytes.
    pub checked: bool,
    /// How many blocks the source has sent, as far as the sender knows: the paper's round.
    pub round: u64,
}

/// What may happen to a [`crate::Swarm`].
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A member said something.
    Signal {
        /// The member.
        from: Member,
        /// What it said.
        signal: &'a Signal,
    },
    /// Of a block from here, or to here, so few bytes are left as take the time of an offer and some refusals: the next one may
    /// be arranged, so that the link is not idle meanwhile. Without this a link waits between blocks, as in the paper.
    Nearly {
        /// Where it goes to or comes from.
        peer: Member,
        /// The sender's number of the transfer.
        transfer: u32,
        /// Whether it is sent from here.
        sent: bool,
    },
    /// All bytes of an announced block have come.
    Received {
        /// Its sender.
        from: Member,
        /// The sender's number of the transfer.
        transfer: u32,
        /// What they took, from the first to the last, if that can be told.
        took: Option<Duration>,
    },
    /// A block's bytes have left, and the receiver has confirmed them; or they will not be sent any more.
    Sent {
        /// The receiver.
        to: Member,
        /// The transfer.
        transfer: u32,
        /// Whether the receiver has them.
        arrived: bool,
    },
    /// A block stands at its place that did not come by the swarm: by a tree, from the disk, from another version.
    Placed {
        /// The block, as [`Division`] numbers them.
        block: u32,
    },
    /// The sums of [`Output::Decode`] stand at their places, and the generation's hash is right.
    Decoded {
        /// The generation.
        generation: u32,
    },
    /// The hash of a generation is wrong with the sums of [`Output::Decode`]: somebody sent other bytes than its head said. The
    /// driver has set all rows of it aside if none of it are yet, else forgotten them; they come anew.
    Polluted {
        /// The generation.
        generation: u32,
    },
    /// A row of [`Output::Audit`] is not what its head said.
    Refuted {
        /// Who sent it.
        from: Member,
        /// Whether it had checked the generation.
        checked: bool,
    },
    /// A member has come, or has come again with nothing.
    Joined(Member),
    /// A member is gone.
    Gone(Member),
    /// All members have all generations before this one: what [`Order::Sequential`] waits for (the paper's Status Monitor).
    Settled {
        /// The first that some member may lack.
        generation: u32,
    },
}

/// What a [`crate::Swarm`] asks its driver to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Say something. It may be lost.
    Signal {
        /// To whom.
        to: Member,
        /// What.
        signal: Signal,
    },
    /// Add up these bytes and send them behind those under way from here; answered by [`Input::Sent`]. The head has gone ahead
    /// as a signal.
    Transmit {
        /// To whom.
        to: Member,
        /// The transfer.
        transfer: u32,
        /// The generation that the slots are of.
        generation: u32,
        /// What adds up to the block; one term with factor 1 for a block as it is.
        terms: Vec<Term>,
    },
    /// Send no more of a block; not answered.
    Cancel {
        /// To whom it goes.
        to: Member,
        /// The transfer.
        transfer: u32,
    },
    /// Keep the bytes of a received block.
    Store {
        /// Its sender.
        from: Member,
        /// The sender's number of the transfer.
        transfer: u32,
        /// The generation.
        generation: u32,
        /// Where.
        slot: Slot,
    },
    /// Take no more of a block, and forget what has come.
    Discard {
        /// Its sender.
        from: Member,
        /// The sender's number of the transfer.
        transfer: u32,
    },
    /// Put these sums at their places and compare the generation with its hash, then answer with [`Input::Decoded`] or
    /// [`Input::Polluted`]. Until then slots of the generation are read, and after that coded ones may be used anew.
    Decode {
        /// The generation.
        generation: u32,
        /// Each block that did not come as it is, if any.
        recoveries: Vec<Recovery>,
    },
    /// A generation that was polluted is right now: compare the rows that were set aside with it, say which are wrong by
    /// [`Input::Refuted`], and forget them.
    Audit {
        /// The generation.
        generation: u32,
        /// Who sent them, and in which slots they stood.
        suspects: Vec<Origin>,
    },
    /// A member has sent wrong bytes of what it had checked: it is none any more for this node.
    Expelled(Member),
    /// Every block is at its place. The machine goes on serving others.
    Done,
    /// Nothing new has come for as long as the spec says, and this is lacking. The machine goes on.
    Starved {
        /// Generations that are not here in full, with the rows that each lacks.
        lacking: Vec<(u32, u16)>,
    },
}

/// What a machine has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Offers made.
    pub offers: u64,
    /// Offers refused.
    pub refused: u64,
    /// Blocks announced.
    pub announced: u64,
    /// Announced blocks that were not new to their receivers.
    pub stopped: u64,
    /// Blocks that were received and were not new any more.
    pub vain: u64,
    /// Times that this node asked.
    pub asks: u64,
}

impl Stats {
    /// Adds those of another machine.
    pub fn add(&mut self, other: &Stats) {
        self.offers += other.offers;
        self.refused += other.refused;
        self.announced += other.announced;
        self.stopped += other.stopped;
        self.vain += other.vain;
        self.asks += other.asks;
    }
}
