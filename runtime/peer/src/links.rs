//! Links to the other members: a channel in each direction, opened when it is needed, and reopened
//! while the other end is a member.

use crate::channel::{Caller, ChannelError, ChannelReceiver, ChannelSender};
use crate::keys::{ChannelKeys, Contact, PublicKey};
use crate::memory::SharedBytes;
use crate::pacer::Pacer;
use crate::wire::{Frame, PART_BYTES};
use cool_swarm::{Member, Signal};
use cool_tcp::LinkEstimate;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

/// Wait before a failed link is reopened. It doubles with each attempt, up to `REOPEN_LAST`.
const REOPEN_FIRST: Duration = Duration::from_millis(500);
const REOPEN_LAST: Duration = Duration::from_secs(8);
/// A part may be sent this long before the link has room for it, because timers have this
/// granularity.
const PACED: Duration = Duration::from_millis(1);
/// Maximum delay of timers, for which the pacer makes up.
const LATE: Duration = Duration::from_millis(4);
/// Maximum number of connections whose other end has not proved yet that it has the keys. Beyond
/// it, the oldest one is closed: a member needs only a round trip, and a stranger must not use all
/// file descriptors of the process.
const HANDSHAKES_MAX: usize = 256;
/// The send buffer (SO_SNDBUF) of a channel's socket holds the bytes that the member's link carries
/// in this time. TCP then has no more bytes in flight, so that signals do not wait long in the
/// queue of a receiver's link behind blocks of several members.
const SEND_BUFFER_TIME: Duration = Duration::from_millis(2);
/// Minimum size of a send buffer: two Ethernet packets and part of a third, so that one is sent
/// while another is acknowledged.
const SEND_BUFFER_MIN_BYTES: usize = 4 << 10;
/// Size from which on a send buffer would limit nothing, because it holds the shortest block of
/// `cool copy`. The system then chooses the size.
const SEND_BUFFER_MAX_BYTES: usize = 64 << 10;

/// The events that links report to the driver.
pub(crate) enum LinkEvent {
    /// A node with this address, which has the private key of `contact` and claims to be a member
    /// that listens there, has opened a channel to this one.
    Greeted { from: Member, contact: Contact, ip: IpAddr, channel: u64 },
    /// A node that will become a member requests the common state.
    Inquired { by: Member, sender: ChannelSender },
    /// A message has arrived over a channel that was opened in the name of a member.
    Received { from: Member, channel: u64, message: LinkMessage },
    /// All bytes of a block have been passed to the system.
    HandedOver { to: Member, transfer: u32 },
    /// A channel that had failed is open again.
    Opened { to: Member },
    /// The channel with this number has ended.
    Closed { with: Member, channel: u64 },
    /// The wait before a failed link is reopened has passed.
    Reopen(Member),
}

/// A message that arrives over a channel.
pub(crate) enum LinkMessage {
    Signal(Signal),
    Part { transfer: u32, bytes: Vec<u8> },
    Half { transfer: u32 },
    Whole { transfer: u32 },
}

/// A request to the task that sends over a channel.
enum SendRequest {
    Message(Frame<'static>),
    Block { transfer: u32, bytes: SharedBytes },
    Cancel { transfer: u32 },
}

struct MemberLink {
    contact: Contact,
    /// The outgoing channel (with its number) and the number of the incoming one.
    outgoing: Option<(u64, UnboundedSender<SendRequest>)>,
    incoming: Option<u64>,
    /// The last incoming channel that was accepted. It may be open when the outgoing one has ended.
    accepted: Option<u64>,
    /// The wait before the next attempt, if the last one has failed.
    wait: Option<Duration>,
}

impl MemberLink {
    fn new(contact: Contact) -> MemberLink {
        MemberLink { contact, outgoing: None, incoming: None, accepted: None, wait: None }
    }
}

pub(crate) struct Links {
    keys: Arc<ChannelKeys>,
    me: Member,
    /// The address at which this member listens.
    contact: SocketAddr,
    /// Rate of this member's link in bytes per second, if known.
    rate: Option<u64>,
    /// The estimate of this member's link that its channels share.
    estimate: LinkEstimate,
    /// Paces the blocks of all channels together, because signals wait behind whatever is queued on
    /// the link.
    pace: Arc<Mutex<Pacer>>,
    links: BTreeMap<Member, MemberLink>,
    /// Members that have left. They are not accepted again until the user reports them.
    left: BTreeSet<Member>,
    /// The number of the next channel.
    channel: u64,
    events: Sender<LinkEvent>,
}

impl Links {
    pub(crate) fn new(
        keys: Arc<ChannelKeys>,
        (me, contact): (Member, SocketAddr),
        rate: Option<u64>,
        others: impl Iterator<Item = (Member, Contact)>,
        events: Sender<LinkEvent>,
    ) -> Links {
        let links = others.filter(|(member, _)| *member != me);
        let links = links.map(|(member, contact)| (member, MemberLink::new(contact))).collect();
        Links {
            keys,
            me,
            contact,
            rate,
            // Several members may send to the same one. BBR would mistake the queue of that
            // member's link for its own (docs/design/swarm.md).
            estimate: LinkEstimate::new(true),
            pace: Arc::new(Mutex::new(Pacer::new(rate, LATE))),
            links,
            left: BTreeSet::new(),
            channel: 1 << 32,
            events,
        }
    }

    /// Returns all members, including this one, with their addresses and public keys.
    pub(crate) fn members(&self) -> Vec<(Member, Contact)> {
        let others = self.links.iter().map(|(member, link)| (*member, link.contact));
        let own = Contact { address: self.contact, key: self.keys.own.public() };
        others.chain([(self.me, own)]).collect()
    }

    /// Returns whether the sender of a greeting is a member that was not known before.
    pub(crate) fn is_new(&self, member: Member) -> bool {
        member != self.me && !self.links.contains_key(&member) && !self.left.contains(&member)
    }

    /// Opens a channel to every member, so that all of them know about this one.
    pub(crate) fn greet_all(&mut self) {
        let all: Vec<Member> = self.links.keys().copied().collect();
        all.into_iter().for_each(|member| self.open(member, false));
    }

    /// Sends a message ahead of the remaining bytes of blocks to the same member.
    pub(crate) fn send_frame(&mut self, to: Member, frame: Frame<'static>) {
        self.give(to, SendRequest::Message(frame));
    }

    /// Sends a block after the other blocks to the same member.
    pub(crate) fn send(&mut self, to: Member, transfer: u32, bytes: SharedBytes) {
        self.give(to, SendRequest::Block { transfer, bytes });
    }

    pub(crate) fn cancel(&mut self, to: Member, transfer: u32) {
        self.give(to, SendRequest::Cancel { transfer });
    }

    fn give(&mut self, to: Member, request: SendRequest) {
        let Some(link) = self.links.get_mut(&to) else { return };
        // A failed link is reopened when its wait has passed.
        if link.outgoing.is_none() && link.wait.is_none() {
            self.open(to, false);
        }
        if let Some(MemberLink { outgoing: Some((_, requests)), .. }) = self.links.get(&to) {
            // The end of a channel is reported as a separate event.
            drop(requests.send(request));
        }
    }

    fn open(&mut self, to: Member, again: bool) {
        let Some(link) = self.links.get_mut(&to) else { return };
        let (give, requests) = unbounded_channel();
        link.outgoing = Some((self.channel, give));
        let task = SendTask {
            keys: Arc::clone(&self.keys),
            me: (self.me, self.contact),
            to,
            contact: link.contact,
            again,
            rate: self.rate,
            estimate: self.estimate.clone(),
            pace: Arc::clone(&self.pace),
            events: self.events.clone(),
        };
        let channel = self.channel;
        self.channel += 1;
        tokio::spawn(async move {
            if let Err(error) = task.run(requests).await {
                tracing::debug!("channel to {to:?} at {}: {error}", task.contact.address);
            }
            // The driver may have ended.
            drop(task.events.send(LinkEvent::Closed { with: to, channel }).await);
        });
    }

    /// Adds a member, or changes the address and the key of one that has returned.
    pub(crate) fn join(&mut self, member: Member, contact: Contact) {
        if member != self.me {
            self.left.remove(&member);
            self.links.insert(member, MemberLink::new(contact));
        }
    }

    /// Removes a member. Closes the channel to it, and refuses its later greetings.
    pub(crate) fn leave(&mut self, member: Member) {
        self.links.remove(&member);
        self.left.insert(member);
    }

    /// Records that a node with this public key has opened a channel to this one in the name of a
    /// member. Returns whether the member's link had failed before, or `None` if it is not a member
    /// or has another key: all members know the key of the swarm, so that each could speak for
    /// another one otherwise.
    pub(crate) fn greeted(&mut self, from: Member, key: PublicKey, channel: u64) -> Option<bool> {
        let link = self.links.get_mut(&from)?;
        if link.contact.key != key {
            tracing::debug!("a node with another key opened a channel in the name of {from:?}");
            return None;
        }
        (link.incoming, link.accepted) = (Some(channel), Some(channel));
        Some(link.wait.take().is_some())
    }

    /// Returns whether messages over this channel are those of the member.
    pub(crate) fn accepts(&self, from: Member, channel: u64) -> bool {
        self.links.get(&from).is_some_and(|link| link.accepted == Some(channel))
    }

    /// Records that a channel has ended. Returns whether it was in use, in which case all transfers
    /// with the member are lost.
    pub(crate) fn closed(&mut self, with: Member, channel: u64) -> bool {
        let Some(link) = self.links.get_mut(&with) else { return false };
        let outgoing = link.outgoing.as_ref().is_some_and(|(number, _)| *number == channel);
        if !outgoing && link.incoming != Some(channel) {
            return false;
        }
        (link.outgoing, link.incoming) = (None, None);
        let wait = link.wait.map_or(REOPEN_FIRST, |wait| (2 * wait).min(REOPEN_LAST));
        link.wait = Some(wait);
        let events = self.events.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            drop(events.send(LinkEvent::Reopen(with)).await);
        });
        true
    }

    /// Reopens the link to a member if it has failed and has not been opened again since.
    pub(crate) fn reopen(&mut self, member: Member) {
        if self.links.get(&member).is_some_and(|link| link.outgoing.is_none() && link.wait.is_some()) {
            self.open(member, true);
        }
    }

    /// Records that a failed link is open again. Returns whether it was still considered failed.
    pub(crate) fn opened(&mut self, to: Member) -> bool {
        self.links.get_mut(&to).is_some_and(|link| link.wait.take().is_some())
    }
}

/// The task that sends over one channel.
struct SendTask {
    keys: Arc<ChannelKeys>,
    me: (Member, SocketAddr),
    to: Member,
    contact: Contact,
    again: bool,
    rate: Option<u64>,
    estimate: LinkEstimate,
    pace: Arc<Mutex<Pacer>>,
    events: Sender<LinkEvent>,
}

impl SendTask {
    /// Returns the pacer. Its state is valid even if another channel's task has panicked.
    fn pace(&self) -> MutexGuard<'_, Pacer> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when a part of a block may be sent.
    fn turn(&self) -> Instant {
        let due = self.pace().due();
        due.and_then(|due| due.checked_sub(PACED)).unwrap_or_else(Instant::now)
    }

    /// Returns whether this many bytes may be sent now. If so, records them as sent. Another
    /// channel may have used the turn in the meantime.
    fn has_turn(&self, bytes: usize) -> bool {
        let now = Instant::now();
        let mut pace = self.pace();
        let may_go = pace.due().is_none_or(|due| due <= now + PACED);
        if may_go {
            pace.record_sent(now, bytes);
        }
        may_go
    }

    /// Executes requests until their sender is dropped. Signals are sent between the parts of a
    /// block.
    async fn run(&self, mut requests: UnboundedReceiver<SendRequest>) -> Result<(), ChannelError> {
        let send_buffer = send_buffer_bytes(self.rate);
        let part = send_buffer.map_or(PART_BYTES, |bytes| bytes.min(PART_BYTES));
        let mut sender =
            ChannelSender::open(self.contact, &self.keys, self.me, (send_buffer, &self.estimate)).await?;
        if self.again {
            drop(self.events.send(LinkEvent::Opened { to: self.to }).await);
        }
        let mut blocks: VecDeque<(u32, SharedBytes, usize)> = VecDeque::new();
        loop {
            let request = match requests.try_recv() {
                Ok(request) => Some(request),
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {
                    let turn = (!blocks.is_empty()).then(|| self.turn());
                    tokio::select! {
                        request = requests.recv() => match request {
                            Some(request) => Some(request),
                            None => return Ok(()),
                        },
                        () = sleep_until(turn) => None,
                    }
                }
            };
            match request {
                Some(SendRequest::Message(frame)) => sender.send(&frame).await?,
                Some(SendRequest::Block { transfer, bytes }) => blocks.push_back((transfer, bytes, 0)),
                Some(SendRequest::Cancel { transfer }) => blocks.retain(|(other, ..)| *other != transfer),
                None => {
                    let Some((transfer, bytes, at)) = blocks.front_mut() else { continue };
                    let (transfer, end) = (*transfer, bytes.len().min(*at + part));
                    if !self.has_turn(end - *at) {
                        continue;
                    }
                    sender.send(&Frame::Part { transfer, bytes: &bytes[*at..end] }).await?;
                    *at = end;
                    if end == bytes.len() {
                        blocks.pop_front();
                        let done = LinkEvent::HandedOver { to: self.to, transfer };
                        if self.events.send(done).await.is_err() {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}

/// Returns the size of the send buffer for a member with a link of the given rate in bytes per
/// second, or `None` if the system should choose it.
fn send_buffer_bytes(rate: Option<u64>) -> Option<usize> {
    let bytes = rate? as f64 * SEND_BUFFER_TIME.as_secs_f64();
    Some((bytes as usize).max(SEND_BUFFER_MIN_BYTES)).filter(|bytes| *bytes < SEND_BUFFER_MAX_BYTES)
}

/// Sleeps until the given time, or forever if there is none.
pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Accepts channels of other members until the receiver of the events is dropped.
pub(crate) async fn listen(socket: TcpListener, keys: Arc<ChannelKeys>, events: Sender<LinkEvent>) {
    let (mut channel, mut handshakes) = (0, Handshakes::default());
    loop {
        let stream = tokio::select! {
            accepted = socket.accept() => accepted,
            () = events.closed() => return,
        };
        let Ok((stream, from)) = stream else {
            // The process has no file descriptors left. Some may be closed soon.
            tokio::time::sleep(REOPEN_FIRST).await;
            continue;
        };
        let (number, events, keys) = (channel, events.clone(), Arc::clone(&keys));
        channel += 1;
        let handshake = tokio::spawn(async move {
            match ChannelReceiver::accept(stream, &keys).await {
                Ok(caller) => drop(tokio::spawn(serve(caller, from, number, events))),
                Err(error) => tracing::debug!("channel from {from}: {error}"),
            }
        });
        handshakes.add(handshake.abort_handle());
    }
}

/// The handshakes of accepted connections, the oldest one first.
#[derive(Default)]
struct Handshakes(VecDeque<AbortHandle>);

impl Handshakes {
    /// Adds a handshake. Aborts the oldest one if there are too many.
    fn add(&mut self, handshake: AbortHandle) {
        if self.0.len() >= HANDSHAKES_MAX {
            self.0.retain(|handshake| !handshake.is_finished());
        }
        if self.0.len() >= HANDSHAKES_MAX
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(handshake);
    }
}

/// Reports what the node at the other end of an accepted channel sends.
async fn serve(caller: Caller, at: SocketAddr, channel: u64, events: Sender<LinkEvent>) {
    let (member, contact, receiver) = match caller {
        Caller::Member { member, contact, receiver } => (member, contact, receiver),
        Caller::Newcomer { member, sender } => {
            // The driver may have ended.
            return drop(events.send(LinkEvent::Inquired { by: member, sender }).await);
        }
    };
    let greeted = LinkEvent::Greeted { from: member, contact, ip: at.ip(), channel };
    if let Err(error) = report_messages((member, channel), greeted, receiver, &events).await {
        tracing::debug!("channel from {member:?} at {at}: {error}");
    }
    drop(events.send(LinkEvent::Closed { with: member, channel }).await);
}

/// Reports the messages of a member as events, until the channel or the driver ends.
async fn report_messages(
    (from, channel): (Member, u64),
    greeted: LinkEvent,
    mut receiver: ChannelReceiver,
    events: &Sender<LinkEvent>,
) -> Result<(), ChannelError> {
    let mut event = greeted;
    while events.send(event).await.is_ok() {
        let message = match receiver.next().await? {
            Frame::Hello { .. } | Frame::Inquire { .. } => return Err(ChannelError::Stranger),
            Frame::Signal(signal) => LinkMessage::Signal(signal),
            Frame::Part { transfer, bytes } => LinkMessage::Part { transfer, bytes: bytes.to_vec() },
            Frame::Half { transfer } => LinkMessage::Half { transfer },
            Frame::Whole { transfer } => LinkMessage::Whole { transfer },
        };
        event = LinkEvent::Received { from, channel, message };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyPair;

    #[tokio::test]
    async fn a_member_cannot_speak_for_another_one() {
        let [me, other] = [0, 1].map(|slot| Member { rack: 0, slot });
        let [mine, theirs] = [1, 2].map(|host| SocketAddr::from(([127, 0, 0, host], 9)));
        let (events, _received) = tokio::sync::mpsc::channel(1);
        let keys = Arc::new(ChannelKeys { swarm: [0; 32], own: KeyPair::generate().unwrap() });
        let contact = Contact { address: theirs, key: [1; 32] };
        let mut links = Links::new(keys, (me, mine), None, [(other, contact)].into_iter(), events);
        assert_eq!(links.greeted(other, contact.key, 1), Some(false));
        assert_eq!(links.greeted(other, [2; 32], 2), None);
        assert!(links.accepts(other, 1) && !links.accepts(other, 2));
        assert!(!links.closed(other, 2), "the end of the wrong channel has no effect");
        assert!(links.closed(other, 1));
        assert!(links.accepts(other, 1), "its last messages may still arrive");
    }

    #[tokio::test]
    async fn strangers_hold_a_bounded_number_of_connections() {
        let mut handshakes = Handshakes::default();
        let mut tasks: Vec<_> =
            (0..HANDSHAKES_MAX).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
        tasks.iter().for_each(|task| handshakes.add(task.abort_handle()));
        tasks.remove(9).abort();
        tokio::task::yield_now().await;
        for oldest in [false, true] {
            let next = tokio::spawn(std::future::pending::<()>());
            handshakes.add(next.abort_handle());
            if oldest {
                assert!(tasks.remove(0).await.unwrap_err().is_cancelled());
            }
            tasks.push(next);
        }
        assert!(tasks.iter().all(|task| !task.is_finished()));
    }

    #[test]
    fn a_send_buffer_holds_two_milliseconds_of_a_link() {
        assert_eq!(send_buffer_bytes(Some(2_500_000)), Some(5_000), "20 Mbit/s");
        assert_eq!(send_buffer_bytes(Some(100_000)), Some(SEND_BUFFER_MIN_BYTES));
        assert_eq!(send_buffer_bytes(Some(1_250_000_000)), None, "10 Gbit/s");
        assert_eq!(send_buffer_bytes(None), None);
    }
}
