//! The election of one leader among controllers, as a machine: a lease in etcd (Gray and Cheriton 1989) that is kept alive, and a key that is
//! created under it if there is none and goes with it, as etcd's own package `concurrency` does it. Beside the key a number stays that
//! each claim makes larger in the same transaction: the leader's generation, its fencing token (Kleppmann 2016).
//!
//! A leader leads until its lease may be over, reckoned by its own clock from when it asked for the renewal, less a margin. etcd reckons from
//! when it granted it, which is later, and lets nobody else lead before. So no two lead at a time, whatever is lost, late or
//! stands still; what a process does that has stood still, and does not know yet that it is late, is refused by its generation.

use cool_machine::{Duration, Machine, Poll, Time};
use cool_proto::job_ids;
use std::collections::VecDeque;

/// Before the next try when etcd has not answered, or has refused.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// The share of the lease by which a leader stops before its end: clocks that run unequally, and the time that it takes to stop.
const MARGIN: u32 = 6;
/// The share of the lease after which a leader asks again: for its renewal, and then whether it still is the leader.
const PERIOD: u32 = 12;
/// The share of the lease within which a leader is answered, or asks another member.
const LEADER_PATIENCE: u32 = 5;

/// What etcd says of the leadership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Who leads.
    pub(crate) leader: Option<Leader>,
    /// The generation of whoever led last; 0 if nobody ever did.
    pub(crate) generation: u64,
    /// The revision of etcd in which that was written; 0 if it never was.
    pub(crate) generation_revision: i64,
    /// The revision of etcd in which this was read.
    pub(crate) revision: i64,
}

/// The leader that etcd knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    /// What it calls itself.
    pub(crate) name: String,
    /// The lease that its key goes with.
    pub(crate) lease: i64,
}

/// What is asked of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Who leads?
    Read,
    /// Say when the leader's key has changed after this revision.
    Watch { revision: i64 },
    /// A lease.
    Grant { ttl: Duration },
    /// If nobody leads, and the last generation is still that of this revision: let the holder of the lease lead as this one.
    Claim { lease: i64, generation: u64, generation_revision: i64 },
    /// The lease for its whole time again.
    Renew { lease: i64 },
    /// The lease is over, and the key that goes with it.
    Revoke { lease: i64 },
}

/// What etcd answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// To `Read`; and what the clock of this machine says, nanoseconds since 1970.
    Read(Record, u64),
    /// To `Watch`: it has changed, or that time is over.
    Watched,
    Granted {
        lease: i64,
        ttl: Duration,
    },
    /// Whether the claim is good.
    Claimed(bool),
    /// The whole time, zero if there is no such lease.
    Renewed {
        ttl: Duration,
    },
    Revoked,
}

/// What may happen.
#[derive(Debug)]
pub(crate) enum Input {
    /// The last request has been answered, or nobody knows what has become of it.
    Answered(Option<Answer>),
    /// This controller ends.
    Resign,
}

/// What to do, or to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Ask this, in place of what is being asked, and be answered within this time.
    Ask(Request, Duration),
    /// Somebody else leads, if this is known.
    StandBy(Option<String>),
    /// Lead, as this generation.
    Lead(u64),
    /// Lead no more. The last output.
    Lost(LeadershipLost),
    /// The lease has been given back, as far as that is possible. The last output.
    Resigned,
}

/// Why a controller leads no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeadershipLost {
    /// No renewal has come in time.
    #[error("etcd has not renewed its lease within {0:?}")]
    Unrenewed(Duration),
    /// etcd has let it end.
    #[error("its lease in etcd is over: it has stood still, or somebody has revoked it")]
    Expired,
    /// The key is another's, or gone.
    #[error("etcd says that {} leads", .0.as_deref().unwrap_or("nobody"))]
    Deposed(Option<String>),
}

/// A lease, and until when whoever holds it may lead.
#[derive(Clone, Copy, Debug)]
struct Lease {
    id: i64,
    ttl: Duration,
    until: Time,
}

#[derive(Debug)]
enum Phase {
    /// Finds out who leads.
    Reading,
    /// Somebody does: waits until that has changed.
    Watching {
        revision: i64,
    },
    /// Nobody does: gets a lease,
    Granting(Record, u64),
    /// and claims, if the last generation is still that of this revision.
    Claiming {
        lease: Lease,
        generation: u64,
        revision: i64,
    },
    /// Has a lease, and does not lead.
    Revoking {
        lease: i64,
    },
    Leading {
        lease: Lease,
        confirm: bool,
    },
    Resigning {
        lease: i64,
    },
    Ended,
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Election {
    ttl: Duration,
    phase: Phase,
    /// What is under way, since when.
    asked: Option<Time>,
    /// Not before this is the next request.
    next: Time,
    /// What was told last of who leads.
    told: Option<Option<String>>,
    outputs: VecDeque<Output>,
}

impl Election {
    /// A controller that does not lead, and will ask for leases of this length.
    pub(crate) fn new(ttl: Duration) -> Election {
        Election {
            ttl,
            phase: Phase::Reading,
            asked: None,
            next: Time::ZERO,
            told: None,
            outputs: VecDeque::new(),
        }
    }

    fn answered(&mut self, now: Time, answer: Option<Answer>) {
        let Some(asked) = self.asked.take() else { return };
        let phase = std::mem::replace(&mut self.phase, Phase::Reading);
        self.next = now;
        self.phase = match (phase, answer) {
            (Phase::Reading, Some(Answer::Read(record, clock))) => self.read(record, clock),
            (Phase::Watching { .. }, Some(Answer::Watched)) => Phase::Reading,
            (Phase::Granting(record, clock), Some(Answer::Granted { lease, ttl })) => {
                let lease = Lease { id: lease, ttl, until: usable(asked, ttl) };
                // Larger than all that led by etcd, and than those that led without: theirs is when they started. One unit
                // larger, since the numbers of jobs and groups are made of it.
                let least = record.generation.saturating_add(tick_nanos());
                let (generation, revision) = (clock.max(least), record.generation_revision);
                Phase::Claiming { lease, generation, revision }
            }
            (Phase::Claiming { lease, generation, .. }, Some(Answer::Claimed(true))) if now < lease.until => {
                self.outputs.push_back(Output::Lead(generation));
                Phase::Leading { lease, confirm: false }
            }
            // Refused, unknown or too late.
            (Phase::Claiming { lease, .. }, _) => Phase::Revoking { lease: lease.id },
            (Phase::Leading { lease, confirm }, answer) => {
                self.led(now, asked, lease, confirm, answer);
                return;
            }
            (Phase::Resigning { .. }, _) => {
                self.outputs.push_back(Output::Resigned);
                Phase::Ended
            }
            (Phase::Ended, _) => Phase::Ended,
            // What a lease is given back for may be asked again; the lease ends by itself.
            (Phase::Revoking { .. }, Some(_)) => Phase::Reading,
            (_, _) => {
                self.next = now + RETRY_AFTER;
                Phase::Reading
            }
        };
    }

    fn read(&mut self, record: Record, clock: u64) -> Phase {
        let leader = record.leader.as_ref().map(|leader| leader.name.clone());
        if self.told.as_ref() != Some(&leader) {
            self.told = Some(leader.clone());
            self.outputs.push_back(Output::StandBy(leader));
        }
        match record.leader {
            Some(_) => Phase::Watching { revision: record.revision },
            None => Phase::Granting(record, clock),
        }
    }

    /// A leader has been answered, or not.
    fn led(&mut self, now: Time, asked: Time, mut lease: Lease, confirm: bool, answer: Option<Answer>) {
        let mut confirm_next = false;
        match answer {
            Some(Answer::Renewed { ttl }) if ttl.is_zero() => return self.lose(LeadershipLost::Expired),
            Some(Answer::Renewed { ttl }) if !confirm => {
                (lease.ttl, lease.until) = (ttl, usable(asked, ttl));
                self.next = asked + ttl / PERIOD;
                confirm_next = true;
            }
            Some(Answer::Read(record, _)) if confirm => {
                if record.leader.as_ref().is_none_or(|leader| leader.lease != lease.id) {
                    let leader = record.leader.map(|leader| leader.name);
                    return self.lose(LeadershipLost::Deposed(leader));
                }
                self.next = asked + lease.ttl / PERIOD;
            }
            _ => self.next = now + RETRY_AFTER,
        }
        self.phase = Phase::Leading { lease, confirm: confirm_next };
    }

    fn lose(&mut self, why: LeadershipLost) {
        self.phase = Phase::Ended;
        self.outputs.push_back(Output::Lost(why));
    }

    fn resign(&mut self, now: Time) {
        let lease = match &self.phase {
            // An answer that would lead is not waited for: a lease that is revoked carries no key.
            Phase::Claiming { lease, .. } | Phase::Leading { lease, .. } => lease.id,
            Phase::Revoking { lease } => *lease,
            Phase::Resigning { .. } | Phase::Ended => return,
            Phase::Reading | Phase::Watching { .. } | Phase::Granting(..) => {
                self.phase = Phase::Ended;
                return self.outputs.push_back(Output::Resigned);
            }
        };
        self.phase = Phase::Resigning { lease };
        (self.asked, self.next) = (None, now);
    }

    /// What to ask next, and how long the answer may take.
    fn request(&self) -> Option<(Request, Duration)> {
        match &self.phase {
            Phase::Reading => Some((Request::Read, self.ttl / 3)),
            Phase::Watching { revision } => Some((Request::Watch { revision: *revision }, self.ttl)),
            Phase::Granting(..) => Some((Request::Grant { ttl: self.ttl }, self.ttl)),
            Phase::Claiming { lease, generation, revision } => {
                let (generation, generation_revision) = (*generation, *revision);
                Some((Request::Claim { lease: lease.id, generation, generation_revision }, self.ttl))
            }
            Phase::Leading { lease, confirm: false } => {
                Some((Request::Renew { lease: lease.id }, lease.ttl / LEADER_PATIENCE))
            }
            Phase::Leading { lease, confirm: true } => Some((Request::Read, lease.ttl / LEADER_PATIENCE)),
            Phase::Revoking { lease } | Phase::Resigning { lease } => {
                Some((Request::Revoke { lease: *lease }, self.ttl / 3))
            }
            Phase::Ended => None,
        }
    }
}

/// Until when the holder of a lease that was asked for then may lead.
fn usable(asked: Time, ttl: Duration) -> Time {
    asked + (ttl - ttl / MARGIN)
}

/// As much as two generations are apart at least.
fn tick_nanos() -> u64 {
    u64::try_from(job_ids::TICK.as_nanos()).unwrap_or(u64::MAX)
}

impl Machine for Election {
    type Input<'a> = Input;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Answered(answer) => self.answered(now, answer),
            Input::Resign => self.resign(now),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        let until = match &self.phase {
            Phase::Leading { lease, .. } => Some((lease.until, lease.ttl)),
            _ => None,
        };
        if let Some((_, ttl)) = until.filter(|(until, _)| *until <= now) {
            self.lose(LeadershipLost::Unrenewed(ttl - ttl / MARGIN));
        }
        if let Some(output) = self.outputs.pop_front() {
            return Poll::Output(output);
        }
        let Some((request, within)) = self.request().filter(|_| self.asked.is_none()) else {
            return Poll::Idle(until.map(|(until, _)| until));
        };
        if now < self.next {
            return Poll::Idle(cool_machine::earliest(Some(self.next), until.map(|(until, _)| until)));
        }
        self.asked = Some(now);
        Poll::Output(Output::Ask(request, within))
    }
}

#[cfg(test)]
mod tests;
