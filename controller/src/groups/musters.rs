//! Groups whose members come by themselves: ranks that another launcher started, and those that split a group. Each
//! asks its agent, and the agent the controller; when all have come, their group is made as a job's is. It is
//! released when no node uses it any more.
//!
//! Who has come is kept by [`cool_membership::Rendezvous`].

use crate::agents::Session;
use crate::fabric::Fabric;
use crate::groups::recoveries;
use crate::groups::{FIRST_EPOCH, Groups, Place, by_node};
use crate::jobs::deliver;
use crate::jobs::job::{Event, Limits, Post};
use cool_machine::{Duration, Time};
use cool_membership::{Failed, Member, Rendezvous};
use cool_proto::control::{Enlist, Mustered, Recovered, Withdraw, controller_message::Body};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{Instrument, info, info_span, warn};

/// Events that wait for a group; further ones wait at their agents.
const MAILBOX: usize = 1024;

/// No member waits longer than this for the others, whatever it asks for.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Those who wait, and the groups that were made for them.
pub struct Musters {
    network: Arc<dyn Fabric>,
    groups: Arc<Groups>,
    limits: Limits,
    /// When time began.
    origin: Instant,
    waiting: Mutex<Rendezvous<Place>>,
    /// Someone has come: the next deadline may be another.
    came: Notify,
    made: Mutex<BTreeMap<u64, mpsc::Sender<Post>>>,
}

impl Musters {
    /// Nobody yet.
    pub fn new(network: Arc<dyn Fabric>, groups: Arc<Groups>, limits: Limits) -> Musters {
        Musters {
            network,
            groups,
            limits,
            origin: Instant::now(),
            waiting: Mutex::default(),
            came: Notify::new(),
            made: Mutex::default(),
        }
    }

    /// A process has come.
    pub fn enlist(self: &Arc<Musters>, session: &Arc<Session>, enlist: Enlist) {
        let Enlist { key, rank, size, timeout_ms } = enlist;
        let name = &session.agent.name;
        let Some(rack) = self.network.topology().node(name).and_then(|n| n.location).map(|l| l.rack) else {
            let reason = format!("node {name} has not been found on the network yet; try again");
            return tell(session, Mustered { key, rank: Some(rank), reason, group: 0 });
        };
        let place = Place { session: session.clone(), rack };
        let deadline = self.now() + Duration::from_millis(timeout_ms).min(LONGEST);
        let member = Member { key: key.clone(), rank, size, place, deadline };
        let complete = self.waiting.lock().enlist(member);
        match complete {
            Ok(None) => self.came.notify_one(),
            Ok(Some(places)) => {
                let group = self.begin(places);
                info!(group = group.id, key, ranks = group.places.len(), "all have come");
                let span = info_span!("group", group = group.id);
                tokio::spawn(self.clone().serve(group, key).instrument(span));
            }
            Err(refusal) => {
                tell(session, Mustered { key, rank: Some(rank), reason: refusal.to_string(), group: 0 });
            }
        }
    }

    /// The survivors of a group are to be a new one. Those who are lost meanwhile are gone, too.
    pub fn regroup(self: &Arc<Musters>, old: u64, survivors: BTreeMap<u32, Place>, gone: Vec<u32>) {
        let span = info_span!("survivors", of = old);
        tokio::spawn(self.clone().serve_survivors(old, survivors, gone).instrument(span));
    }

    /// A group of an earlier controller: what concerns it is kept until it is resumed. `None` if
    /// the number is in use.
    pub fn reserve(&self, id: u64) -> Option<mpsc::Receiver<Post>> {
        let (sender, mailbox) = mpsc::channel(MAILBOX);
        match self.made.lock().entry(id) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                vacant.insert(sender);
                Some(mailbox)
            }
        }
    }

    /// A reserved group will not be resumed.
    pub fn forget(&self, id: u64) {
        self.made.lock().remove(&id);
    }

    /// Resumes a reserved group whose nodes have all come back; `users` are the sessions that use it.
    pub fn resume(
        self: &Arc<Musters>,
        id: u64,
        places: Vec<Place>,
        mailbox: mpsc::Receiver<Post>,
        users: BTreeSet<u32>,
    ) {
        info!(group = id, ranks = places.len(), "group goes on");
        let musters = self.clone();
        let mut group = Mustering { id, places, mailbox };
        let until_unused = async move {
            group.unused(users).await;
            musters.made_no_more(&group).await;
        };
        tokio::spawn(until_unused.instrument(info_span!("group", group = id)));
    }

    async fn made_no_more(&self, group: &Mustering) {
        self.made.lock().remove(&group.id);
        self.groups.release(&*self.network, group.id, &group.places).await;
        info!("group released");
    }

    /// A process that waited is gone.
    pub fn withdraw(&self, session: &Session, withdraw: &Withdraw) {
        let here = |place: &Place| place.session.number == session.number;
        let failed = self.waiting.lock().withdraw(&withdraw.key, withdraw.rank, here);
        failed.into_iter().for_each(fail);
    }

    /// The way to a group that was made here.
    pub fn mailbox(&self, group: u64) -> Option<mpsc::Sender<Post>> {
        self.made.lock().get(&group).cloned()
    }

    /// A node's session has ended.
    pub async fn node_left(&self, session: &Session, reason: &str) {
        let why = format!("node {}: {reason}", session.agent.name);
        let failed = self.waiting.lock().lose(&why, |place| place.session.number == session.number);
        failed.into_iter().for_each(fail);
        let mailboxes: Vec<_> = self.made.lock().values().cloned().collect();
        for mailbox in mailboxes {
            deliver(Some(mailbox), session, Event::Left(reason.to_owned())).await;
        }
    }

    /// Gives up those who wait for too long. Never ends.
    pub async fn watch(&self) {
        loop {
            let deadline = self.waiting.lock().deadline();
            match deadline {
                None => self.came.notified().await,
                Some(deadline) => tokio::select! {
                    () = sleep_until(self.origin + Duration::from_nanos(deadline.as_nanos())) => {}
                    () = self.came.notified() => {}
                },
            }
            let failed = self.waiting.lock().overdue(self.now());
            failed.into_iter().for_each(fail);
        }
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A group with the next number.
    fn begin(&self, places: Vec<Place>) -> Mustering {
        let id = self.groups.number();
        let (sender, mailbox) = mpsc::channel(MAILBOX);
        self.made.lock().insert(id, sender);
        Mustering { id, places, mailbox }
    }

    /// A group from the coming of its last member to its release.
    async fn serve(self: Arc<Musters>, mut group: Mustering, key: String) {
        let (made, reason) = match self.form(&mut group).await {
            Ok(()) => (group.id, String::new()),
            Err(reason) => (0, reason),
        };
        if made == 0 {
            warn!(reason, "the group is not made");
        }
        for (session, _) in by_node(&group.places).values() {
            tell(session, Mustered { key: key.clone(), rank: None, group: made, reason: reason.clone() });
        }
        if made != 0 {
            group.unused(by_node(&group.places).into_keys().collect()).await;
        }
        self.made_no_more(&group).await;
    }

    /// The same for survivors: if nodes are lost while it is made, without them.
    async fn serve_survivors(
        self: Arc<Musters>,
        old: u64,
        mut survivors: BTreeMap<u32, Place>,
        mut gone: Vec<u32>,
    ) {
        loop {
            let mut group = self.begin(survivors.values().cloned().collect());
            let formed = self.form(&mut group).await;
            let (new_group, failure) = match formed {
                Ok(()) => (group.id, String::new()),
                Err(reason) => {
                    self.made_no_more(&group).await;
                    let lost: Vec<u32> = survivors
                        .extract_if(.., |_, place| place.session.has_ended())
                        .map(|(rank, _)| rank)
                        .collect();
                    warn!(reason, ?lost, "the survivors have no group yet");
                    gone.extend(&lost);
                    gone.sort_unstable();
                    if survivors.is_empty() {
                        return;
                    }
                    if !lost.is_empty() {
                        continue;
                    }
                    (0, reason)
                }
            };
            let recovered = Recovered { group: old, gone, flags: 0, new_group, failure, rank: None };
            recoveries::tell(&survivors, &recovered);
            if new_group != 0 {
                info!(group = new_group, ranks = group.places.len(), "the survivors have a group");
                group.unused(by_node(&group.places).into_keys().collect()).await;
                self.made_no_more(&group).await;
            }
            return;
        }
    }

    /// Makes the group and waits until its members are ready.
    async fn form(&self, group: &mut Mustering) -> Result<(), String> {
        self.groups.make(&*self.network, group.id, 0, &group.places).await?;
        let mut unready: BTreeSet<u32> = by_node(&group.places).into_keys().collect();
        let deadline = Instant::now() + self.limits.group_ready;
        while !unready.is_empty() {
            let Ok(Some(Post { from, event })) = timeout_at(deadline, group.mailbox.recv()).await else {
                return Err(format!(
                    "not ready on {} within {:?}; look at the logs of the agents there",
                    group.names(&unready),
                    self.limits.group_ready
                ));
            };
            match event {
                Event::Ready(FIRST_EPOCH) => drop(unready.remove(&from)),
                Event::GroupFailed(reason) => {
                    return Err(format!("{}: {reason}", group.names(&[from].into())));
                }
                Event::Left(reason) if group.has(from) => {
                    return Err(format!("node {} is gone: {reason}", group.names(&[from].into())));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A group whose members have all come.
struct Mustering {
    id: u64,
    places: Vec<Place>,
    mailbox: mpsc::Receiver<Post>,
}

impl Mustering {
    /// Waits until none of these sessions uses the group any more.
    async fn unused(&mut self, mut users: BTreeSet<u32>) {
        while !users.is_empty() {
            // The sender is kept as long as this waits.
            let Some(post) = self.mailbox.recv().await else { return };
            if matches!(post.event, Event::Unused | Event::Left(_)) {
                users.remove(&post.from);
            }
        }
    }

    fn has(&self, session: u32) -> bool {
        self.places.iter().any(|place| place.session.number == session)
    }

    /// The names of the nodes of these sessions.
    fn names(&self, sessions: &BTreeSet<u32>) -> String {
        let nodes = by_node(&self.places).into_iter().filter(|(number, _)| sessions.contains(number));
        nodes.map(|(_, (session, _))| session.agent.name.clone()).collect::<Vec<_>>().join(", ")
    }
}

/// Tells those who wait that they do so in vain.
fn fail(failed: Failed<Place>) {
    let Failed { key, places, reason } = failed;
    info!(key, reason, "no group");
    for (session, _) in by_node(&places).into_values() {
        tell(&session, Mustered { key: key.clone(), rank: None, group: 0, reason: reason.clone() });
    }
}

/// An agent that is gone has nobody who waits.
fn tell(session: &Session, mustered: Mustered) {
    let _ = session.send(Body::Mustered(mustered));
}
