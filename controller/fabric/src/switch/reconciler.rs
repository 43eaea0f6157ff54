//! Brings the tables of a switch in line with the desired state: reads this controller's entries,
//! sends the difference in batches that end with a barrier, and compares again from time to time.
//!
//! This is a machine without I/O. Its messages travel through the
//! [`channel`](crate::switch::channel). It reads and changes only flows with this controller's
//! cookie and groups with its numbers. It holds a copy of the desired tables, although the
//! [`Intent`](crate::intent::Intent) has one: the two belong to different tasks, which must not
//! share state or wait for each other.

use crate::intent::cookies::{self, COOKIE, COOKIE_MASK};
use crate::intent::inherited_state::InheritedState;
use crate::intent::retained::{RetainedEntries, StaleEntries};
use crate::intent::tables::{FlowKey, RuleCounts, SwitchTables, TableDelta};
use crate::observation::WithheldChanges;
use crate::switch::reported_form;
use crate::switch::table_change::{self, ChangeScope, TableChange};
use cool_machine::{Duration, Machine, Poll, Time};
use rs_openflow::{Body, ErrorMessage, FlowStatsRequest, Message, MultipartReply, MultipartRequest, TableId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum time for the reply to a barrier or to a request for tables.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the installed tables are compared with the expected ones.
const AUDIT_INTERVAL: Duration = Duration::from_secs(30);
/// Number of changes before a barrier: at first, and the limits between which it follows the rate
/// of the switch.
const BATCH_CHANGES_FIRST: usize = 32;
const BATCH_CHANGES_MIN: usize = 8;
const BATCH_CHANGES_MAX: usize = 256;
/// Maximum number of entries that a switch may report.
const MAX_ENTRIES: usize = 1 << 20;
/// Number of times that the same differences are removed. If they are found again, the switch
/// reports its entries in another form, or cannot hold them.
const RESTORATIONS_MAX: u32 = 3;
/// Bit that marks transactions of the reconciler. The channel's own transactions do not have it.
pub(crate) const XID_BIT: u32 = 1 << 31;

/// A change of the desired state of a switch.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableUpdate {
    /// Increases with every update. The acknowledgment names it.
    pub(crate) version: u64,
    pub(crate) delta: TableDelta,
    /// Entries that are retained though they are not desired.
    pub(crate) stale: StaleEntries,
}

impl TableUpdate {
    /// Merges a later update into this one.
    pub(crate) fn append(&mut self, later: TableUpdate) {
        self.delta.append(later.delta);
        (self.version, self.stale) = (later.version, later.stale);
    }
}

/// Entries that a switch refused, each with the reason: the first for each tree and each failover
/// group, by number, and the first of all others.
pub(crate) type EntryRefusals = BTreeMap<Option<u32>, String>;

/// Input of the machine.
#[derive(Debug)]
pub(crate) enum Input {
    /// Reads the installed entries.
    Start,
    /// The desired state has changed.
    Update(TableUpdate),
    /// The switch has replied to a transaction of the reconciler.
    Reply(Message),
}

/// Output of the machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Send(Message),
    /// State of an earlier controller. Sent once, after the first reading.
    Read(InheritedState),
    /// All entries of this version are installed, except those that the switch refused.
    Acknowledged(u64, EntryRefusals),
    /// This number of entries had been changed by others and are being restored.
    Drifted(usize),
    /// This number of entries still differs after having been restored several times, the first of
    /// them as the text states. They are left as they are.
    Unrestorable(usize, String),
    /// The entries of this controller in the switch, and the changes that are not sent, because the
    /// switch is only observed. Sent when they change.
    Withheld(WithheldChanges),
    /// The switch does not work as required.
    Failed(String),
}

#[derive(Debug)]
enum ReconcilerState {
    /// Nothing has been requested yet.
    New,
    /// Waits for both tables, and collects the entries received so far.
    Reading {
        reported: SwitchTables,
        flows: Option<u32>,
        groups: Option<u32>,
    },
    /// Waits for the reply to the barrier with this transaction.
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
    /// Maximum number of flows.
    max_flows: Option<u32>,
    /// Whether the switch is only observed: differences are computed and reported, and never sent.
    observes: bool,
    /// The last report of changes that are not sent.
    reported: Option<WithheldChanges>,
    installed: SwitchTables,
    desired: SwitchTables,
    retained: RetainedEntries,
    /// Version of the last update; `None` before the first.
    version: Option<u64>,
    /// Entries in which `desired` may differ from `installed`.
    differing: ChangeScope,
    /// Whether `version` has been acknowledged.
    acknowledged: bool,
    read_before: bool,
    /// Differences that the last check found, and the number of checks in a row that found them.
    drift: (Vec<Vec<TableChange>>, u32),
    /// Flows of this controller that the last check found though they had not been installed.
    unexpected: BTreeSet<FlowKey>,
    /// Whether a newer version arrived while a batch was being applied.
    stale: bool,
    /// Number of changes in the next batch, and the time at which the last batch was sent.
    batch_changes: usize,
    batch_sent: Time,
    /// Remaining changes for the version that is being installed.
    stages: VecDeque<VecDeque<TableChange>>,
    /// Changes to which an error may refer.
    sent: BTreeMap<u32, TableChange>,
    /// Refusals since the last acknowledgment.
    refusals: EntryRefusals,
    /// Requests of a check that was abandoned and that the switch has not answered completely.
    abandoned: Vec<u32>,
    /// Whether a flow was withheld since the last comparison.
    withheld: bool,
    next_xid: u32,
    deadline: Option<Time>,
    outputs: VecDeque<Output>,
}

impl Reconciler {
    /// Creates the reconciler of a switch that may hold at most `max_flows` flows. If the switch is
    /// only observed, the reconciler acknowledges each version without a change of the switch.
    pub(crate) fn new(max_flows: Option<u32>, observes: bool) -> Reconciler {
        Reconciler {
            state: ReconcilerState::New,
            max_flows,
            observes,
            reported: None,
            installed: SwitchTables::default(),
            desired: SwitchTables::default(),
            retained: RetainedEntries::default(),
            version: None,
            differing: ChangeScope::default(),
            acknowledged: true,
            read_before: false,
            drift: (Vec::new(), 0),
            unexpected: BTreeSet::new(),
            stale: false,
            batch_changes: BATCH_CHANGES_FIRST,
            batch_sent: Time::ZERO,
            stages: VecDeque::new(),
            sent: BTreeMap::new(),
            refusals: EntryRefusals::new(),
            abandoned: Vec::new(),
            withheld: false,
            next_xid: 0,
            deadline: None,
            outputs: VecDeque::new(),
        }
    }

    fn send(&mut self, body: Body) -> u32 {
        self.next_xid = (self.next_xid + 1) & !XID_BIT;
        let xid = self.next_xid | XID_BIT;
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
            reported: SwitchTables::default(),
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
                self.adapt_batches(now);
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
        if let Some(at) = self.abandoned.iter().position(|asked| *asked == xid) {
            // The switch answers the barrier after this report, and shows until then that it is
            // alive.
            if matches!(self.state, ReconcilerState::Applying { .. }) {
                self.deadline = Some(now + REPLY_TIMEOUT);
            }
            if !more {
                self.abandoned.swap_remove(at);
            }
            return;
        }
        let ReconcilerState::Reading { reported, flows, groups } = &mut self.state else { return };
        match body {
            MultipartReply::Flow(list) if *flows == Some(xid) => {
                list.into_iter().for_each(|flow| table_change::record_flow(reported, flow));
                flows.take_if(|_| !more);
            }
            MultipartReply::GroupDesc(list) if *groups == Some(xid) => {
                list.into_iter().for_each(|group| table_change::record_group(reported, group));
                groups.take_if(|_| !more);
            }
            _ => return,
        }
        if reported.flows.len() + reported.groups.len() > MAX_ENTRIES {
            return self.fail(format!("it reports more than {MAX_ENTRIES} entries"));
        }
        // A switch that continues to report is alive.
        self.deadline = Some(now + REPLY_TIMEOUT);
        self.finish_reading(now);
    }

    /// Compares the reported tables with the expected ones, once both are complete.
    fn finish_reading(&mut self, now: Time) {
        let ReconcilerState::Reading { reported, flows: None, groups: None } = &mut self.state else {
            return;
        };
        let mut reported = core::mem::take(reported);
        if self.read_before {
            // An observer has installed nothing that could have changed.
            if !self.observes {
                reported = self.check(reported);
            }
        } else {
            self.read_before = true;
            self.outputs
                .push_back(Output::Read(crate::intent::inherited_state::InheritedState::read(&reported)));
        }
        self.installed = reported;
        self.differing = ChangeScope::all(&self.installed, &self.desired);
        self.compare(now);
    }

    /// Compares reported tables with those that should be installed. Returns the tables that the
    /// switch must be assumed to hold.
    fn check(&mut self, mut reported: SwitchTables) -> SwitchTables {
        let scope = ChangeScope::all(&reported, &self.installed);
        reported_form::rename_flows(&mut reported, &self.installed, &scope);
        let scope = ChangeScope::all(&reported, &self.installed);
        let drift = table_change::stages(&reported, &self.installed, scope, &RetainedEntries::default());
        let entries: usize = drift.iter().map(Vec::len).sum();
        let checks = if drift == self.drift.0 { self.drift.1 + 1 } else { 1 };
        let is_form = checks > RESTORATIONS_MAX && table_change::may_be_a_form(&drift, &reported);
        match drift.first().and_then(|stage| stage.first()) {
            None => {}
            Some(first) if is_form && checks == RESTORATIONS_MAX + 1 => {
                self.outputs.push_back(Output::Unrestorable(entries, first.to_string()));
            }
            Some(_) if is_form => {}
            Some(_) => self.outputs.push_back(Output::Drifted(entries)),
        }
        self.drift = (drift, checks);
        if is_form {
            return self.installed.clone();
        }
        let unexpected = reported.flows.keys().filter(|key| !self.installed.flows.contains_key(*key));
        self.unexpected = unexpected.cloned().collect();
        reported
    }

    fn failed(&mut self, now: Time, xid: u32, failure: &ErrorMessage) {
        let why = match failure.code_name() {
            Some(code) => format!("{} {code}", failure.kind),
            None => format!("{} {}", failure.kind, failure.code),
        };
        if let ReconcilerState::Reading { reported, flows, groups } = &mut self.state {
            if *flows == Some(xid) {
                return self.fail(format!("it does not report its flows: {why}"));
            }
            // A switch without group tables refuses the request, and has no groups. Another one may
            // still hold those that were installed.
            if groups.take_if(|asked| *asked == xid).is_some() {
                reported.groups.clone_from(&self.installed.groups);
                return self.finish_reading(now);
            }
        }
        if matches!(self.state, ReconcilerState::Applying { barrier } if barrier == xid) {
            return self.fail(format!("it refused a barrier: {why}"));
        }
        if let Some(change) = self.sent.remove(&xid) {
            change.refused(&mut self.installed, failure);
            change.add_to(&mut self.differing);
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
            // Entries that were retained may have to be removed.
            self.differing = ChangeScope::all(&self.installed, &self.desired);
        }
        if !self.retained.stale.unicast {
            self.retained.withdrawn.clear();
        }
        self.version = Some(update.version);
        self.acknowledged = false;
        self.stale = true;
        // A check may take seconds, and must not delay a change, such as a new path after a
        // failure. It is abandoned: the reported entries are ignored, and the next check follows
        // later.
        if self.read_before
            && let ReconcilerState::Reading { flows, groups, .. } = &self.state
        {
            self.abandoned = flows.iter().chain(groups).copied().collect();
            self.state = ReconcilerState::Idle;
        }
        // The batch under way must be acknowledged first, because otherwise an error could not be
        // attributed.
        if matches!(self.state, ReconcilerState::Idle) {
            self.compare(now);
        }
    }

    /// Computes the difference between installed and desired entries, and starts to apply it. It
    /// also contains the changes of an earlier difference that were not sent.
    fn compare(&mut self, now: Time) {
        self.stale = false;
        self.refusals.clear();
        if self.version.is_some() {
            for change in self.stages.drain(..).flatten() {
                change.add_to(&mut self.differing);
            }
            let scope = core::mem::take(&mut self.differing);
            reported_form::rename_flows(&mut self.installed, &self.desired, &scope);
            let mut stages = table_change::stages(&self.installed, &self.desired, scope, &self.retained);
            // An unexpected flow may be another form of one that is sent again. If it were deleted
            // afterwards, the switch would delete the flow that was sent.
            table_change::delete_first(&mut stages, &core::mem::take(&mut self.unexpected));
            if !self.observes {
                self.make_room(&mut stages);
            }
            self.stages = stages.into_iter().map(VecDeque::from).collect();
            // Differences that a check found, or that were refused before, must be acknowledged as
            // well.
            self.acknowledged &= self.observes || self.stages.is_empty();
        }
        self.proceed(now);
    }

    /// Deletes flows of hosts in front of all other changes if more important flows would exceed
    /// the number that the operator permits.
    fn make_room(&mut self, stages: &mut Vec<Vec<TableChange>>) {
        let Some(most) = self.max_flows else { return };
        let installed = &self.installed.flows;
        let is_important = |change: &&TableChange| match change {
            TableChange::PutFlow(key, flow) => !installed.contains_key(key) && !cookies::is_dispensable(flow),
            _ => false,
        };
        let important = stages.iter().flatten().filter(is_important).count();
        let excess = (installed.len() + important).saturating_sub(most as usize);
        let dispensable = installed.iter().filter(|(_, flow)| cookies::is_dispensable(flow)).take(excess);
        let evicted: Vec<TableChange> =
            dispensable.map(|(key, _)| TableChange::DeleteFlow(key.clone())).collect();
        if important == 0 || evicted.is_empty() {
            return;
        }
        evicted.iter().for_each(|change| change.add_to(&mut self.differing));
        self.withheld = true;
        stages.insert(0, evicted);
    }

    /// Adapts the size of batches to the rate at which the switch executes changes, so that it can
    /// reply to barriers in time.
    fn adapt_batches(&mut self, now: Time) {
        let took = now - self.batch_sent;
        if took > REPLY_TIMEOUT / 4 {
            self.batch_changes = (self.batch_changes / 2).max(BATCH_CHANGES_MIN);
        } else if took < REPLY_TIMEOUT / 8 && self.sent.len() >= self.batch_changes {
            self.batch_changes = (self.batch_changes * 2).min(BATCH_CHANGES_MAX);
        }
    }

    /// Reports the changes of all stages instead of sending them. They remain differences.
    fn withhold(&mut self) {
        let mut withheld = WithheldChanges {
            present: RuleCounts { flows: self.installed.flows.len(), groups: self.installed.groups.len() },
            ..WithheldChanges::default()
        };
        for change in self.stages.drain(..).flatten() {
            match &change {
                TableChange::AddGroup(..) | TableChange::ModifyGroup(..) => withheld.put.groups += 1,
                TableChange::PutFlow(..) => withheld.put.flows += 1,
                TableChange::DeleteFlow(_) => withheld.deleted.flows += 1,
                TableChange::DeleteGroup(_) => withheld.deleted.groups += 1,
            }
            change.add_to(&mut self.differing);
        }
        if self.reported.replace(withheld) != Some(withheld) {
            self.outputs.push_back(Output::Withheld(withheld));
        }
    }

    /// Sends the next batch, or acknowledges the version. If the switch is only observed, nothing
    /// is sent.
    fn proceed(&mut self, now: Time) {
        if self.observes {
            self.withhold();
        }
        let Some(stage) = self.stages.front_mut() else {
            let room = self.max_flows.is_none_or(|most| self.installed.flows.len() < most as usize);
            if core::mem::take(&mut self.withheld) && room {
                // A flow may have been withheld because the table was full, and other flows were
                // removed since.
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
        let batch: Vec<TableChange> = stage.drain(..stage.len().min(self.batch_changes)).collect();
        self.batch_sent = now;
        if stage.is_empty() {
            self.stages.pop_front();
        }
        for change in batch {
            if self.is_beyond_bound(&change) {
                self.withheld = true;
                change.add_to(&mut self.differing);
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

    /// Returns whether a change would exceed the number of flows that the operator permits. Trees
    /// are refused earlier, so this concerns unicast flows. They are treated as if the table were
    /// full: the entry is left out, reported, and tried again when there is room.
    fn is_beyond_bound(&self, change: &TableChange) -> bool {
        let TableChange::PutFlow(key, _) = change else { return false };
        let installed = &self.installed.flows;
        self.max_flows.is_some_and(|most| installed.len() >= most as usize) && !installed.contains_key(key)
    }

    fn time_out(&mut self, now: Time) {
        match &self.state {
            ReconcilerState::Idle => self.read(now),
            ReconcilerState::Reading { .. } => {
                self.fail(format!("it did not report its tables within {REPLY_TIMEOUT:?}"))
            }
            ReconcilerState::Applying { .. } => {
                self.fail(format!("it did not reply to a barrier within {REPLY_TIMEOUT:?}"))
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
