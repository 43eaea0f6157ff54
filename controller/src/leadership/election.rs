//! Leader election among controllers, as a machine.
//!
//! The leader holds a lease in etcd (Gray and Cheriton 1989), which it renews, and a key that is
//! bound to the lease. A controller creates the key only if it does not exist, as etcd's own
//! package `concurrency` does. In the same transaction it increases a second number, the leader's
//! generation, which serves as a fencing token (Kleppmann 2016).
//!
//! A leader stops before its lease can have expired. It measures from the time of its renewal
//! request, by its own clock, and subtracts a margin. etcd measures from the later time at which it
//! granted the renewal, and lets no other controller lead before the lease has expired. Therefore
//! two controllers never lead at the same time, whatever messages are lost or delayed. A process
//! that was paused and does not know yet that it is late has an old generation, so its actions
//! are refused.

use super::last_generation;
use cool_machine::{Duration, Machine, Poll, Time};
use std::collections::VecDeque;

/// Delay after a failed or refused request.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Fraction of the lease (1/n) by which a leader stops early. It allows for clocks with different
/// rates, and for the time to stop.
const MARGIN_DIVISOR: u32 = 6;
/// Fraction of the lease (1/n) after which a leader sends its next request: first a renewal, then a
/// check that it is still the leader.
const PERIOD_DIVISOR: u32 = 12;
/// Fraction of the lease (1/n) after which a leader's request times out and another member of etcd
/// is tried.
const LEADER_TIMEOUT_DIVISOR: u32 = 5;

/// State of the leadership in etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaderRecord {
    /// The leader, if there is one.
    pub(crate) leader: Option<Leader>,
    /// Generation of the last leader, or 0 if there was none.
    pub(crate) generation: u64,
    /// Revision of etcd in which the generation was written, or 0 if it never was.
    pub(crate) generation_revision: i64,
    /// Revision of etcd at which this was read.
    pub(crate) revision: i64,
}

/// The leader according to etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    /// Name that it gave itself.
    pub(crate) name: String,
    /// Lease to which its key is bound.
    pub(crate) lease: i64,
}

/// A request to etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EtcdRequest {
    /// Read the current leader.
    Read,
    /// Wait until the leader's key changes after this revision.
    Watch { revision: i64 },
    /// Grant a lease.
    Grant { ttl: Duration },
    /// Make the holder of the lease the leader with this generation, provided that there is no
    /// leader and the last generation is still the one of the given revision.
    Claim { lease: i64, generation: u64, generation_revision: i64 },
    /// Renew the lease for its full time.
    Renew { lease: i64 },
    /// Revoke the lease, and with it the key that is bound to it.
    Revoke { lease: i64 },
}

/// A response from etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EtcdResponse {
    /// Response to `Read`, with the time of this machine's clock in nanoseconds since 1970.
    Read(LeaderRecord, u64),
    /// Response to `Watch`: the key has changed, or the time limit has passed.
    Watched,
    Granted {
        lease: i64,
        ttl: Duration,
    },
    /// Whether the claim succeeded.
    Claimed(bool),
    /// Full time of the lease, or zero if it does not exist.
    Renewed {
        ttl: Duration,
    },
    Revoked,
}

/// An event that the driver reports.
#[derive(Debug)]
pub(crate) enum Input {
    /// The response to the last request, or `None` if its outcome is unknown.
    Responded(Option<EtcdResponse>),
    /// This controller is shutting down.
    Resign,
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Send this request, in place of any request in progress. Its response must arrive within the
    /// given time.
    Send(EtcdRequest, Duration),
    /// Another controller leads. Contains its name, if known.
    StandBy(Option<String>),
    /// Lead with this generation.
    Lead(u64),
    /// Stop leading. This is the last output.
    Lost(LeadershipLost),
    /// The lease has been revoked, if that was possible. This is the last output.
    Resigned,
}

/// Why a controller stops leading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeadershipLost {
    /// The lease was not renewed in time.
    #[error("etcd did not renew its lease within {0:?}")]
    Unrenewed(Duration),
    /// The core of this controller does not answer.
    #[error("its core has not answered within {0:?}; please report this defect")]
    Hung(Duration),
    /// The lease has expired in etcd.
    #[error("its lease in etcd has expired: the process was paused for too long, or the lease was revoked")]
    Expired,
    /// The key is missing or belongs to another controller.
    #[error("according to etcd, {} leads", .0.as_deref().unwrap_or("no controller"))]
    Deposed(Option<String>),
}

/// A lease, and the time until which its holder may lead.
#[derive(Clone, Copy, Debug)]
struct Lease {
    id: i64,
    ttl: Duration,
    until: Time,
}

#[derive(Debug)]
enum ElectionPhase {
    /// Reads the current leader.
    Reading,
    /// Another controller leads: waits for a change.
    Watching {
        revision: i64,
    },
    /// There is no leader: requests a lease.
    Granting(LeaderRecord, u64),
    /// Claims the leadership, provided that the generation of this revision is still the last one.
    Claiming {
        lease: Lease,
        generation: u64,
        revision: i64,
    },
    /// Gives up a lease without having led.
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

/// State of the election.
#[derive(Debug)]
pub(crate) struct Election {
    ttl: Duration,
    phase: ElectionPhase,
    /// Time at which the request in progress was sent.
    asked: Option<Time>,
    /// Earliest time of the next request.
    next: Time,
    /// The leader that was reported last.
    announced: Option<Option<String>>,
    outputs: VecDeque<Output>,
}

impl Election {
    /// Returns a controller that does not lead and will request leases of this length.
    pub(crate) fn new(ttl: Duration) -> Election {
        Election {
            ttl,
            phase: ElectionPhase::Reading,
            asked: None,
            next: Time::ZERO,
            announced: None,
            outputs: VecDeque::new(),
        }
    }

    fn on_response(&mut self, now: Time, response: Option<EtcdResponse>) {
        let Some(asked) = self.asked.take() else { return };
        let phase = std::mem::replace(&mut self.phase, ElectionPhase::Reading);
        self.next = now;
        self.phase = match (phase, response) {
            (ElectionPhase::Reading, Some(EtcdResponse::Read(record, clock))) => {
                self.on_record(record, clock)
            }
            (ElectionPhase::Watching { .. }, Some(EtcdResponse::Watched)) => ElectionPhase::Reading,
            (ElectionPhase::Granting(record, clock), Some(EtcdResponse::Granted { lease, ttl })) => {
                let lease = Lease { id: lease, ttl, until: usable(asked, ttl) };
                // The generation must exceed that of every earlier leader. Leaders without etcd use
                // their start time as generation.
                let generation = last_generation::after(record.generation, clock);
                let revision = record.generation_revision;
                ElectionPhase::Claiming { lease, generation, revision }
            }
            (ElectionPhase::Claiming { lease, generation, .. }, Some(EtcdResponse::Claimed(true)))
                if now < lease.until =>
            {
                self.outputs.push_back(Output::Lead(generation));
                ElectionPhase::Leading { lease, confirm: false }
            }
            // The claim was refused, too late, or its outcome is unknown.
            (ElectionPhase::Claiming { lease, .. }, _) => ElectionPhase::Revoking { lease: lease.id },
            (ElectionPhase::Leading { lease, confirm }, response) => {
                self.on_leader_response(now, asked, lease, confirm, response);
                return;
            }
            (ElectionPhase::Resigning { .. }, _) => {
                self.outputs.push_back(Output::Resigned);
                ElectionPhase::Ended
            }
            (ElectionPhase::Ended, _) => ElectionPhase::Ended,
            // Whatever the response, try again. At worst, the lease expires.
            (ElectionPhase::Revoking { .. }, Some(_)) => ElectionPhase::Reading,
            (_, _) => {
                self.next = now + RETRY_DELAY;
                ElectionPhase::Reading
            }
        };
    }

    fn on_record(&mut self, record: LeaderRecord, clock: u64) -> ElectionPhase {
        let leader = record.leader.as_ref().map(|leader| leader.name.clone());
        if self.announced.as_ref() != Some(&leader) {
            self.announced = Some(leader.clone());
            self.outputs.push_back(Output::StandBy(leader));
        }
        match record.leader {
            Some(_) => ElectionPhase::Watching { revision: record.revision },
            None => ElectionPhase::Granting(record, clock),
        }
    }

    /// Handles the response to a leader's request.
    fn on_leader_response(
        &mut self,
        now: Time,
        asked: Time,
        mut lease: Lease,
        confirm: bool,
        response: Option<EtcdResponse>,
    ) {
        let mut confirm_next = false;
        match response {
            Some(EtcdResponse::Renewed { ttl }) if ttl.is_zero() => {
                return self.lose(LeadershipLost::Expired);
            }
            Some(EtcdResponse::Renewed { ttl }) if !confirm => {
                (lease.ttl, lease.until) = (ttl, usable(asked, ttl));
                self.next = asked + ttl / PERIOD_DIVISOR;
                confirm_next = true;
            }
            Some(EtcdResponse::Read(record, _)) if confirm => {
                if record.leader.as_ref().is_none_or(|leader| leader.lease != lease.id) {
                    let leader = record.leader.map(|leader| leader.name);
                    return self.lose(LeadershipLost::Deposed(leader));
                }
                self.next = asked + lease.ttl / PERIOD_DIVISOR;
            }
            _ => self.next = now + RETRY_DELAY,
        }
        self.phase = ElectionPhase::Leading { lease, confirm: confirm_next };
    }

    fn lose(&mut self, why: LeadershipLost) {
        self.phase = ElectionPhase::Ended;
        self.outputs.push_back(Output::Lost(why));
    }

    fn resign(&mut self, now: Time) {
        let lease = match &self.phase {
            // Do not wait for a claim in progress: without the lease, its key cannot exist.
            ElectionPhase::Claiming { lease, .. } | ElectionPhase::Leading { lease, .. } => lease.id,
            ElectionPhase::Revoking { lease } => *lease,
            ElectionPhase::Resigning { .. } | ElectionPhase::Ended => return,
            ElectionPhase::Reading | ElectionPhase::Watching { .. } | ElectionPhase::Granting(..) => {
                self.phase = ElectionPhase::Ended;
                return self.outputs.push_back(Output::Resigned);
            }
        };
        self.phase = ElectionPhase::Resigning { lease };
        (self.asked, self.next) = (None, now);
    }

    /// Returns the next request, and the time limit of its response.
    fn request(&self) -> Option<(EtcdRequest, Duration)> {
        match &self.phase {
            ElectionPhase::Reading => Some((EtcdRequest::Read, self.ttl / 3)),
            ElectionPhase::Watching { revision } => {
                Some((EtcdRequest::Watch { revision: *revision }, self.ttl))
            }
            ElectionPhase::Granting(..) => Some((EtcdRequest::Grant { ttl: self.ttl }, self.ttl)),
            ElectionPhase::Claiming { lease, generation, revision } => {
                let (generation, generation_revision) = (*generation, *revision);
                Some((EtcdRequest::Claim { lease: lease.id, generation, generation_revision }, self.ttl))
            }
            ElectionPhase::Leading { lease, confirm: false } => {
                Some((EtcdRequest::Renew { lease: lease.id }, lease.ttl / LEADER_TIMEOUT_DIVISOR))
            }
            ElectionPhase::Leading { lease, confirm: true } => {
                Some((EtcdRequest::Read, lease.ttl / LEADER_TIMEOUT_DIVISOR))
            }
            ElectionPhase::Revoking { lease } | ElectionPhase::Resigning { lease } => {
                Some((EtcdRequest::Revoke { lease: *lease }, self.ttl / 3))
            }
            ElectionPhase::Ended => None,
        }
    }
}

/// Returns the time until which the holder of a lease that was requested at `asked` may lead.
fn usable(asked: Time, ttl: Duration) -> Time {
    asked + (ttl - ttl / MARGIN_DIVISOR)
}

impl Machine for Election {
    type Input<'a> = Input;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Responded(response) => self.on_response(now, response),
            Input::Resign => self.resign(now),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        let until = match &self.phase {
            ElectionPhase::Leading { lease, .. } => Some((lease.until, lease.ttl)),
            _ => None,
        };
        if let Some((_, ttl)) = until.filter(|(until, _)| *until <= now) {
            self.lose(LeadershipLost::Unrenewed(ttl - ttl / MARGIN_DIVISOR));
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
        Poll::Output(Output::Send(request, within))
    }
}

#[cfg(test)]
mod tests;
