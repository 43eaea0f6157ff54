//! Brings a switch's tables in line with the desired state: reads what of ours is installed, sends the
//! difference in batches closed by barriers, and checks from time to time.
//!
//! A machine without I/O; the messages travel through [`session`](crate::switch::channel). Only flows with our
//! cookie and groups with our numbers are read or touched.

use crate::intent::cookies::{COOKIE, COOKIE_MASK};
use crate::intent::inherited_state::InheritedState;
use crate::intent::retained::{RetainedEntries, StaleEntries};
use crate::intent::tables::{SwitchTables, TableDelta};
use crate::switch::table_change::{self, ChangeScope, TableChange};
use cool_machine::{Duration, Machine, Poll, Time};
use rs_openflow::{Body, ErrorMessage, FlowStatsRequest, Message, MultipartReply, MultipartRequest, TableId};
use std::collections::{BTreeMap, VecDeque};

/// How long a switch may take to answer a barrier or to tell its tables.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// How often installed tables are compared with what we believe of them.
const AUDIT_INTERVAL: Duration = Duration::from_secs(30);
/// NetworkChanges before a barrier.
const BATCH_CHANGES: usize = 256;
/// Entries that a switch may tell of.
const MAX_ENTRIES: usize = 1 << 20;
/// Transactions of ours have this bit; the session's own do not.
pub(crate) const XID: u32 = 1 << 31;

/// A change of what a switch is to hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableUpdate {
    /// Counts upwards; the answer names it.
    pub(crate) version: u64,
    pub(crate) delta: TableDelta,
    /// What is retained though it is not desired.
    pub(crate) stale: StaleEntries,
}

impl TableUpdate {
    /// Merges a later update into this one.
    pub(crate) fn append(&mut self, later: TableUpdate) {
        self.delta.append(later.delta);
        (self.version, self.stale) = (later.version, later.stale);
    }
}

/// Entries that a switch refused, and why: the first of each tree, and of each group for fast failover, by its number,
/// and of all that is for none.
pub(crate) type EntryRefusals = BTreeMap<Option<u32>, String>;

/// What may happen.
#[derive(Debug)]
pub(crate) enum Input {
    /// Begin: read what is installed.
    Start,
    /// The desired state has changed.
    Update(TableUpdate),
    /// The switch answered one of our transactions.
    Reply(Message),
}

/// What to do, or to know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Send(Message),
    /// The switch has told what it holds, for the first time.
    Read(InheritedState),
    /// Everything desired in this version is installed, but for what the switch refused.
    Acknowledged(u64, EntryRefusals),
    /// This number of our entries had been changed by somebody else; they are being restored.
    Drifted(usize),
    /// The switch cannot be worked with.
    Failed(String),
}

#[derive(Debug)]
enum ReconcilerState {
    /// Nothing asked yet.
    New,
    /// Waiting for both answers; what they told so far.
    Reading {
        told: SwitchTables,
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
pub(crate) struct Reconciler {
    state: ReconcilerState,
    /// Flows that the switch may be given.
    max_flows: Option<u32>,
    installed: SwitchTables,
    desired: SwitchTables,
    retained: RetainedEntries,
    /// Of the last update; `None` before the first.
    version: Option<u64>,
    /// Where `desired` may differ from `installed`.
    differing: ChangeScope,
    /// Whether that version has been answered for.
    acknowledged: bool,
    read_before: bool,
    /// A newer version came while a batch was under way.
    stale: bool,
    /// What is left to send for the version being installed.
    stages: VecDeque<VecDeque<TableChange>>,
    /// What an error may refer to.
    sent: BTreeMap<u32, TableChange>,
    /// The refusals since the last answer.
    refusals: EntryRefusals,
    /// A flow was withheld since the last comparison.
    withheld: bool,
    next_xid: u32,
    deadline: Option<Time>,
    outputs: VecDeque<Output>,
}

impl Reconciler {
    /// Of a switch that is given no more flows than these.
    pub(crate) fn new(max_flows: Option<u32>) -> Reconciler {
        Reconciler {
            state: ReconcilerState::New,
            max_flows,
            installed: SwitchTables::default(),
            desired: SwitchTables::default(),
            retained: RetainedEntries::default(),
            version: None,
            differing: ChangeScope::default(),
            acknowledged: true,
            read_before: false,
            stale: false,
            stages: VecDeque::new(),
            sent: BTreeMap::new(),
            refusals: EntryRefusals::new(),
            withheld: false,
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
        self.state = ReconcilerState::Reading {
            told: SwitchTables::default(),
            flows: Some(flows),
            groups: Some(groups),
        };
        self.deadline = Some(now + REPLY_TIMEOUT);
    }

    fn reply(&mut self, now: Time, message: Message) {
        match message.body {
            Body::Error(failure) => self.failed(now, message.xid, &failure),
            Body::BarrierReply if matches!(self.state, ReconcilerState::Applying { barrier } if barrier == message.xid) =>
            {
                self.sent.clear();
                match self.stale {
                    true => self.compare(now),
                    false => self.proceed(now),
                }
            }
            Body::MultipartReply(reply) => self.table_reply(now, message.xid, reply.more(), reply.body),
            _ => {}
        }
    }

    fn table_reply(&mut self, now: Time, xid: u32, more: bool, body: MultipartReply) {
        let ReconcilerState::Reading { told, flows, groups } = &mut self.state else { return };
        match body {
            MultipartReply::Flow(list) if *flows == Some(xid) => {
                list.into_iter().for_each(|flow| table_change::record_flow(told, flow));
                flows.take_if(|_| !more);
            }
            MultipartReply::GroupDesc(list) if *groups == Some(xid) => {
                list.into_iter().for_each(|group| table_change::record_group(told, group));
                groups.take_if(|_| !more);
            }
            _ => return,
        }
        if told.flows.len() + told.groups.len() > MAX_ENTRIES {
            return self.fail(format!("it tells of more than {MAX_ENTRIES} entries"));
        }
        // A switch that goes on telling is alive.
        self.deadline = Some(now + REPLY_TIMEOUT);
        if flows.is_none() && groups.is_none() {
            let told = core::mem::take(told);
            if self.read_before {
                let scope = ChangeScope::all(&told, &self.installed);
                let stages = table_change::stages(&told, &self.installed, scope, &RetainedEntries::default());
                let drifted: usize = stages.iter().map(Vec::len).sum();
                if drifted > 0 {
                    self.outputs.push_back(Output::Drifted(drifted));
                }
            } else {
                self.read_before = true;
                self.outputs
                    .push_back(Output::Read(crate::intent::inherited_state::InheritedState::read(&told)));
            }
            self.installed = told;
            self.differing = ChangeScope::all(&self.installed, &self.desired);
            self.compare(now);
        }
    }

    fn failed(&mut self, now: Time, xid: u32, failure: &ErrorMessage) {
        let why = match failure.code_name() {
            Some(code) => format!("{} {code}", failure.kind),
            None => format!("{} {}", failure.kind, failure.code),
        };
        if let ReconcilerState::Reading { flows, groups, .. } = &self.state
            && (*flows == Some(xid) || *groups == Some(xid))
        {
            return self.fail(format!("it does not tell its flows and groups: {why}"));
        }
        if matches!(self.state, ReconcilerState::Applying { barrier } if barrier == xid) {
            return self.fail(format!("it refused a barrier: {why}"));
        }
        if let Some(change) = self.sent.remove(&xid) {
            change.refused(&mut self.installed, failure);
            change.note(&mut self.differing);
            self.refusals.entry(change.group()).or_insert_with(|| format!("{change}: {why}"));
            self.deadline = Some(now + REPLY_TIMEOUT);
        }
    }

    fn fail(&mut self, why: String) {
        self.state = ReconcilerState::Failed;
        self.deadline = None;
        self.outputs.push_back(Output::Failed(why));
    }

    fn update(&mut self, now: Time, update: TableUpdate) {
        for (key, flow) in update.delta.flows {
            match flow {
                Some(flow) => self.desired.flows.insert(key.clone(), flow),
                None => self.desired.flows.remove(&key),
            };
            self.retained.withdrawn.insert(key.clone());
            self.differing.flows.insert(key);
        }
        for (id, buckets) in update.delta.groups {
            match buckets {
                Some(buckets) => self.desired.groups.insert(id, Some(buckets)),
                None => self.desired.groups.remove(&id),
            };
            self.differing.groups.insert(id);
        }
        if self.retained.stale != update.stale {
            self.retained.stale = update.stale;
            // What was retained may be due to go.
            self.differing = ChangeScope::all(&self.installed, &self.desired);
        }
        if !self.retained.stale.unicast {
            self.retained.withdrawn.clear();
        }
        self.version = Some(update.version);
        self.acknowledged = false;
        self.stale = true;
        // What was sent is waited for first, so that an error is known to belong to it.
        if matches!(self.state, ReconcilerState::Idle) {
            self.compare(now);
        }
    }

    /// Starts on the difference between what is installed and what is desired. NetworkChanges of an earlier
    /// difference that were not sent are found again.
    fn compare(&mut self, now: Time) {
        self.stale = false;
        self.refusals.clear();
        if self.version.is_some() {
            for change in self.stages.drain(..).flatten() {
                change.note(&mut self.differing);
            }
            let scope = core::mem::take(&mut self.differing);
            let stages = table_change::stages(&self.installed, &self.desired, scope, &self.retained);
            self.stages = stages.into_iter().map(VecDeque::from).collect();
            // Also what is found by a check, or refused before and tried again, is answered for.
            self.acknowledged &= self.stages.is_empty();
        }
        self.proceed(now);
    }

    /// Sends the next batch, or answers.
    fn proceed(&mut self, now: Time) {
        let Some(stage) = self.stages.front_mut() else {
            let room = self.max_flows.is_none_or(|most| self.installed.flows.len() < most as usize);
            if core::mem::take(&mut self.withheld) && room {
                // What came first was withheld for what has gone meanwhile.
                return self.compare(now);
            }
            self.state = ReconcilerState::Idle;
            self.deadline = Some(now + AUDIT_INTERVAL);
            if let Some(version) = self.version.filter(|_| !self.acknowledged) {
                self.acknowledged = true;
                let refusals = core::mem::take(&mut self.refusals);
                self.outputs.push_back(Output::Acknowledged(version, refusals));
            }
            return;
        };
        let batch: Vec<TableChange> = stage.drain(..stage.len().min(BATCH_CHANGES)).collect();
        if stage.is_empty() {
            self.stages.pop_front();
        }
        for change in batch {
            if self.is_beyond_bound(&change) {
                self.withheld = true;
                change.note(&mut self.differing);
                let why = format!("{change}: it may have {} flows", self.installed.flows.len());
                self.refusals.entry(change.group()).or_insert(why);
                continue;
            }
            change.apply(&mut self.installed);
            let xid = self.send(change.message());
            self.sent.insert(xid, change);
        }
        let barrier = self.send(Body::BarrierRequest);
        self.state = ReconcilerState::Applying { barrier };
        self.deadline = Some(now + REPLY_TIMEOUT);
    }

    /// Whether this is one flow more than the operator allows. Groups' trees were refused before; this holds for unicast, and
    /// as a table that is full does: the entry is left out, told, and tried again when there is room.
    fn is_beyond_bound(&self, change: &TableChange) -> bool {
        let TableChange::PutFlow(key, _) = change else { return false };
        let installed = &self.installed.flows;
        self.max_flows.is_some_and(|most| installed.len() >= most as usize) && !installed.contains_key(key)
    }

    fn time_out(&mut self, now: Time) {
        match &self.state {
            ReconcilerState::Idle => self.read(now),
            ReconcilerState::Reading { .. } => {
                self.fail(format!("it did not tell its tables within {REPLY_TIMEOUT:?}"))
            }
            ReconcilerState::Applying { .. } => {
                self.fail(format!("it did not answer a barrier within {REPLY_TIMEOUT:?}"))
            }
            ReconcilerState::New | ReconcilerState::Failed => {}
        }
    }
}

impl Machine for Reconciler {
    type Input<'a> = Input;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Start => self.read(now),
            Input::Update(update) => self.update(now, update),
            Input::Reply(message) => self.reply(now, message),
        }
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        if self.outputs.is_empty() && self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.time_out(now);
        }
        match self.outputs.pop_front() {
            Some(output) => Poll::Output(output),
            None => Poll::Idle(self.deadline),
        }
    }
}

#[cfg(test)]
mod tests;
