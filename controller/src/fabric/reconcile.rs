//! Brings a switch's tables in line with what is wanted: reads what of ours is installed, sends the
//! difference in batches closed by barriers, and checks from time to time.
//!
//! A machine without I/O; the messages travel through [`session`](super::session). Only flows with our
//! cookie and groups with our numbers are read or touched.

use super::change::{self, Change};
use super::tables::{COOKIE, COOKIE_MASK, Tables};
use super::wanted;
use cool_machine::{Duration, Machine, Poll, Time};
use rs_openflow::{Body, Failure, FlowStatsRequest, Message, MultipartReply, MultipartRequest, TableId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How long a switch may take to answer a barrier or to tell its tables.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often installed tables are compared with what we believe of them.
const AUDIT: Duration = Duration::from_secs(30);
/// Changes before a barrier.
const BATCH: usize = 256;
/// Entries that a switch may tell of.
const MAX_ENTRIES: usize = 1 << 20;
/// Transactions of ours have this bit; the session's own do not.
pub(super) const XID: u32 = 1 << 31;

/// The tables that a switch is to have.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// Counts upwards; the answer names it.
    pub(super) version: u64,
    pub(super) tables: Arc<Tables>,
    /// Unicast flows that are installed but not wanted stay for now.
    pub(super) settling: bool,
}

/// What may happen.
#[derive(Debug)]
pub(super) enum Input {
    /// Begin: read what is installed.
    Start,
    /// These tables are wanted from now on.
    Want(Wanted),
    /// The switch answered one of our transactions.
    Told(Message),
}

/// What to do, or to know.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Output {
    Send(Message),
    /// The switch has told what it holds, for the first time.
    Read {
        /// The rack that it was the ToR of.
        former_rack: Option<u32>,
    },
    /// Everything wanted in this version is installed.
    Confirmed(u64),
    /// The switch refused something wanted in this version, first this, for this reason.
    Refused(u64, String),
    /// So many of our entries had been changed by somebody else; they are being restored.
    Drifted(usize),
    /// The switch cannot be worked with.
    Failed(String),
}

#[derive(Debug)]
enum State {
    /// Nothing asked yet.
    New,
    /// Waiting for both answers; what they told so far.
    Reading {
        told: Tables,
        flows: Option<u32>,
        groups: Option<u32>,
    },
    /// Waiting for the barrier with this transaction.
    Applying {
        barrier: u32,
    },
    Idle,
    Failed,
}

/// The machine.
#[derive(Debug)]
pub(super) struct Reconciler {
    state: State,
    installed: Tables,
    wanted: Option<Wanted>,
    /// Whether `wanted` has been compared with `installed` to the end.
    answered: bool,
    read_before: bool,
    /// A newer version came while a batch was under way.
    stale: bool,
    /// What is left to send for the version being installed.
    stages: VecDeque<VecDeque<Change>>,
    /// What an error may refer to.
    sent: BTreeMap<u32, Change>,
    /// The first refusal in the version being installed.
    refusal: Option<String>,
    next_xid: u32,
    deadline: Option<Time>,
    outputs: VecDeque<Output>,
}

impl Reconciler {
    pub(super) fn new() -> Reconciler {
        Reconciler {
            state: State::New,
            installed: Tables::default(),
            wanted: None,
            answered: true,
            read_before: false,
            stale: false,
            stages: VecDeque::new(),
            sent: BTreeMap::new(),
            refusal: None,
            next_xid: 0,
            deadline: None,
            outputs: VecDeque::new(),
        }
    }

    fn send(&mut self, body: Body) -> u32 {
        self.next_xid = (self.next_xid + 1) & !XID;
        let xid = self.next_xid | XID;
        self.outputs.push_back(Output::Send(Message::new(xid, body)));
        xid
    }

    fn read(&mut self, now: Time) {
        let flows = FlowStatsRequest {
            table: TableId(0),
            cookie: COOKIE,
            cookie_mask: COOKIE_MASK,
            ..FlowStatsRequest::default()
        };
        let flows = self.send(Body::MultipartRequest(MultipartRequest::Flow(flows).into()));
        let groups = self.send(Body::MultipartRequest(MultipartRequest::GroupDesc.into()));
        self.state = State::Reading { told: Tables::default(), flows: Some(flows), groups: Some(groups) };
        self.deadline = Some(now + PATIENCE);
    }

    fn told(&mut self, now: Time, message: Message) {
        match message.body {
            Body::Error(failure) => self.failed(now, message.xid, &failure),
            Body::BarrierReply if matches!(self.state, State::Applying { barrier } if barrier == message.xid) =>
            {
                self.sent.clear();
                match self.stale {
                    true => self.compare(now),
                    false => self.proceed(now),
                }
            }
            Body::MultipartReply(reply) => self.told_tables(now, message.xid, reply.more(), reply.body),
            _ => {}
        }
    }

    fn told_tables(&mut self, now: Time, xid: u32, more: bool, body: MultipartReply) {
        let State::Reading { told, flows, groups } = &mut self.state else { return };
        match body {
            MultipartReply::Flow(list) if *flows == Some(xid) => {
                list.into_iter().for_each(|flow| change::note_flow(told, flow));
                flows.take_if(|_| !more);
            }
            MultipartReply::GroupDesc(list) if *groups == Some(xid) => {
                list.into_iter().for_each(|group| change::note_group(told, group));
                groups.take_if(|_| !more);
            }
            _ => return,
        }
        if told.flows.len() + told.groups.len() > MAX_ENTRIES {
            return self.fail(format!("it tells of more than {MAX_ENTRIES} entries"));
        }
        // A switch that goes on telling is alive.
        self.deadline = Some(now + PATIENCE);
        if flows.is_none() && groups.is_none() {
            let told = core::mem::take(told);
            if self.read_before {
                let drifted: usize =
                    change::stages(&told, &self.installed, |_| false).iter().map(Vec::len).sum();
                if drifted > 0 {
                    self.outputs.push_back(Output::Drifted(drifted));
                }
            } else {
                self.read_before = true;
                self.outputs.push_back(Output::Read { former_rack: wanted::former_rack(&told) });
            }
            self.installed = told;
            self.compare(now);
        }
    }

    fn failed(&mut self, now: Time, xid: u32, failure: &Failure) {
        let why = match failure.code_name() {
            Some(code) => format!("{} {code}", failure.kind),
            None => format!("{} {}", failure.kind, failure.code),
        };
        if let State::Reading { flows, groups, .. } = &self.state
            && (*flows == Some(xid) || *groups == Some(xid))
        {
            return self.fail(format!("it does not tell its flows and groups: {why}"));
        }
        if matches!(self.state, State::Applying { barrier } if barrier == xid) {
            return self.fail(format!("it refused a barrier: {why}"));
        }
        if let Some(change) = self.sent.remove(&xid) {
            change.refused(&mut self.installed, failure);
            self.refusal.get_or_insert(format!("{change}: {why}"));
            self.deadline = Some(now + PATIENCE);
        }
    }

    fn fail(&mut self, why: String) {
        self.state = State::Failed;
        self.deadline = None;
        self.outputs.push_back(Output::Failed(why));
    }

    fn want(&mut self, now: Time, wanted: Wanted) {
        self.wanted = Some(wanted);
        self.answered = false;
        self.stale = true;
        // What was sent is waited for first, so that an error is known to belong to it.
        if matches!(self.state, State::Idle) {
            self.compare(now);
        }
    }

    /// Starts on the difference between what is installed and what is wanted.
    fn compare(&mut self, now: Time) {
        self.stale = false;
        self.refusal = None;
        if let Some(wanted) = &self.wanted {
            let keep = |flow: &_| wanted.settling && wanted::is_unicast(flow);
            let stages = change::stages(&self.installed, &wanted.tables, keep);
            self.stages = stages.into_iter().map(VecDeque::from).collect();
            // Also what is found by a check, or refused before and tried again, is answered for.
            self.answered &= self.stages.is_empty();
        }
        self.proceed(now);
    }

    /// Sends the next batch, or answers.
    fn proceed(&mut self, now: Time) {
        let Some(stage) = self.stages.front_mut() else {
            self.state = State::Idle;
            self.deadline = Some(now + AUDIT);
            if let Some(wanted) = self.wanted.as_ref().filter(|_| !self.answered) {
                self.answered = true;
                self.outputs.push_back(match self.refusal.take() {
                    None => Output::Confirmed(wanted.version),
                    Some(reason) => Output::Refused(wanted.version, reason),
                });
            }
            return;
        };
        let batch: Vec<Change> = stage.drain(..stage.len().min(BATCH)).collect();
        if stage.is_empty() {
            self.stages.pop_front();
        }
        for change in batch {
            change.apply(&mut self.installed);
            let xid = self.send(change.message());
            self.sent.insert(xid, change);
        }
        let barrier = self.send(Body::BarrierRequest);
        self.state = State::Applying { barrier };
        self.deadline = Some(now + PATIENCE);
    }

    fn late(&mut self, now: Time) {
        match &self.state {
            State::Idle => self.read(now),
            State::Reading { .. } => self.fail(format!("it did not tell its tables within {PATIENCE:?}")),
            State::Applying { .. } => self.fail(format!("it did not answer a barrier within {PATIENCE:?}")),
            State::New | State::Failed => {}
        }
    }
}

impl Machine for Reconciler {
    type Input<'a> = Input;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Start => self.read(now),
            Input::Want(wanted) => self.want(now, wanted),
            Input::Told(message) => self.told(now, message),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        if self.outputs.is_empty() && self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.late(now);
        }
        match self.outputs.pop_front() {
            Some(output) => Poll::Output(output),
            None => Poll::Idle(self.deadline),
        }
    }
}

#[cfg(test)]
mod tests;
