//! Links to the other members: a channel each way, opened when it is needed, and opened again while the other is a member.

use crate::channel::{Caller, ChannelError, Listener, Speaker, SwarmKey};
use crate::memory::Bytes;
use crate::pacer::Pacer;
use crate::wire::{Frame, PART_BYTES};
use cool_swarm::{Member, Signal};
use cool_tcp::LinkEstimate;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Until a link that has failed is tried again; each time twice as long.
const REOPEN_FIRST: Duration = Duration::from_millis(500);
const REOPEN_LAST: Duration = Duration::from_secs(8);
/// Parts go this much earlier than the link has room for them: timers are not finer.
const PACED: Duration = Duration::from_millis(1);
/// By which timers are late.
const LATE: Duration = Duration::from_millis(4);
/// The send buffer (SO_SNDBUF) of a channel's socket has what the member's link carries in that time. TCP has no more under way, so
/// that signals do not wait long in the queue of a receiver's link behind what several members send it.
const SEND_BUFFER_TIME: Duration = Duration::from_millis(2);
/// Two packets of Ethernet and a part of one, so that the next goes while the first is acknowledged.
const SEND_BUFFER_MIN_BYTES: usize = 4 << 10;
/// The shortest block of `cool copy`: a buffer for that would hold nothing back, so the system chooses one.
const SEND_BUFFER_MAX_BYTES: usize = 64 << 10;

/// What a member hears and notices.
pub(crate) enum Event {
    /// A member, that listens there, has opened a channel to here.
    Greeted { from: Member, contact: SocketAddr, channel: u64 },
    /// One that will be a member wants to be told what members know.
    Inquired { by: Member, speaker: Speaker },
    /// It said something.
    Heard { from: Member, heard: Heard },
    /// All of a block was handed over to the system.
    HandedOver { to: Member, transfer: u32 },
    /// A channel that had failed is open again.
    Opened { to: Member },
    /// A channel has ended.
    Closed { with: Member, channel: u64 },
    /// It is time to try again.
    Reopen(Member),
}

/// What comes over a channel.
pub(crate) enum Heard {
    Signal(Signal),
    Part { transfer: u32, bytes: Vec<u8> },
    Half { transfer: u32 },
    Whole { transfer: u32 },
}

/// What is to go over a channel.
enum Job {
    Say(Frame<'static>),
    Block { transfer: u32, bytes: Bytes },
    Cancel { transfer: u32 },
}

struct Link {
    address: SocketAddr,
    /// The channel to the member, and from it.
    speaking: Option<(u64, UnboundedSender<Job>)>,
    listening: Option<u64>,
    /// Until the next try, if the last one has failed.
    wait: Option<Duration>,
}

pub(crate) struct Links {
    key: SwarmKey,
    me: Member,
    /// Where this member listens.
    contact: SocketAddr,
    /// Of this member's link, in bytes per second, if it is known.
    rate: Option<u64>,
    /// What its channels know of it.
    estimate: LinkEstimate,
    /// How fast blocks go over it by all channels together: signals wait behind what waits in its queue.
    pace: Arc<Mutex<Pacer>>,
    links: BTreeMap<Member, Link>,
    /// Who is no member any more, and is not to come again.
    left: BTreeSet<Member>,
    /// The number of the next channel.
    channel: u64,
    events: Sender<Event>,
}

impl Links {
    pub(crate) fn new(
        key: SwarmKey,
        (me, contact): (Member, SocketAddr),
        rate: Option<u64>,
        others: impl Iterator<Item = (Member, SocketAddr)>,
        events: Sender<Event>,
    ) -> Links {
        let links = others.filter(|(member, _)| *member != me);
        let link =
            |(member, address)| (member, Link { address, speaking: None, listening: None, wait: None });
        let links = links.map(link).collect();
        Links {
            key,
            me,
            contact,
            rate,
            // Several members send to one, whose link has a queue then that BBR takes for its own (docs/design/swarm.md).
            estimate: LinkEstimate::new(true),
            pace: Arc::new(Mutex::new(Pacer::new(rate, LATE))),
            links,
            left: BTreeSet::new(),
            channel: 1 << 32,
            events,
        }
    }

    /// All members, this one among them, and where they listen.
    pub(crate) fn members(&self) -> Vec<(Member, SocketAddr)> {
        let others = self.links.iter().map(|(member, link)| (*member, link.address));
        others.chain([(self.me, self.contact)]).collect()
    }

    /// Whether one that says hello is a member that was not known before.
    pub(crate) fn is_new(&self, member: Member) -> bool {
        member != self.me && !self.links.contains_key(&member) && !self.left.contains(&member)
    }

    /// Opens a channel to everyone, so that all know of this member.
    pub(crate) fn greet_all(&mut self) {
        let all: Vec<Member> = self.links.keys().copied().collect();
        all.into_iter().for_each(|member| self.open(member, false));
    }

    /// Says something, before what is left of blocks to the same member.
    pub(crate) fn say(&mut self, to: Member, frame: Frame<'static>) {
        self.give(to, Job::Say(frame));
    }

    /// Sends a block behind the others to the same member.
    pub(crate) fn send(&mut self, to: Member, transfer: u32, bytes: Bytes) {
        self.give(to, Job::Block { transfer, bytes });
    }

    pub(crate) fn cancel(&mut self, to: Member, transfer: u32) {
        self.give(to, Job::Cancel { transfer });
    }

    fn give(&mut self, to: Member, job: Job) {
        let Some(link) = self.links.get_mut(&to) else { return };
        // A link that has failed is opened again when its time has come.
        if link.speaking.is_none() && link.wait.is_none() {
            self.open(to, false);
        }
        if let Some(Link { speaking: Some((_, jobs)), .. }) = self.links.get(&to) {
            // That a channel has ended is an event of its own.
            drop(jobs.send(job));
        }
    }

    fn open(&mut self, to: Member, again: bool) {
        let Some(link) = self.links.get_mut(&to) else { return };
        let (give, jobs) = unbounded_channel();
        link.speaking = Some((self.channel, give));
        let speaking = Speaking {
            key: self.key,
            me: (self.me, self.contact),
            to,
            address: link.address,
            again,
            rate: self.rate,
            estimate: self.estimate.clone(),
            pace: Arc::clone(&self.pace),
            events: self.events.clone(),
        };
        let channel = self.channel;
        self.channel += 1;
        tokio::spawn(async move {
            if let Err(error) = speaking.run(jobs).await {
                tracing::debug!("channel to {to:?} at {}: {error}", speaking.address);
            }
            // Nobody may listen any more.
            drop(speaking.events.send(Event::Closed { with: to, channel }).await);
        });
    }

    /// A member is there again, perhaps at another address.
    pub(crate) fn join(&mut self, member: Member, address: SocketAddr) {
        if member != self.me {
            self.left.remove(&member);
            self.links.insert(member, Link { address, speaking: None, listening: None, wait: None });
        }
    }

    /// A member is none any more.
    pub(crate) fn leave(&mut self, member: Member) {
        self.links.remove(&member);
        self.left.insert(member);
    }

    /// A member has opened a channel to here; whether nothing was heard of it for a while. None if it is no member.
    pub(crate) fn greeted(&mut self, from: Member, channel: u64) -> Option<bool> {
        let link = self.links.get_mut(&from)?;
        link.listening = Some(channel);
        Some(link.wait.take().is_some())
    }

    /// A channel has ended; whether it was in use, so that what was under way with the member is lost.
    pub(crate) fn closed(&mut self, with: Member, channel: u64) -> bool {
        let Some(link) = self.links.get_mut(&with) else { return false };
        let speaking = link.speaking.as_ref().is_some_and(|(number, _)| *number == channel);
        if !speaking && link.listening != Some(channel) {
            return false;
        }
        (link.speaking, link.listening) = (None, None);
        let wait = link.wait.map_or(REOPEN_FIRST, |wait| (2 * wait).min(REOPEN_LAST));
        link.wait = Some(wait);
        let events = self.events.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            drop(events.send(Event::Reopen(with)).await);
        });
        true
    }

    /// Tries a link again that has failed.
    pub(crate) fn reopen(&mut self, member: Member) {
        if self.links.get(&member).is_some_and(|link| link.speaking.is_none() && link.wait.is_some()) {
            self.open(member, true);
        }
    }

    /// A link that had failed is open again; whether it was still awaited.
    pub(crate) fn opened(&mut self, to: Member) -> bool {
        self.links.get_mut(&to).is_some_and(|link| link.wait.take().is_some())
    }
}

/// One end of a channel.
struct Speaking {
    key: SwarmKey,
    me: (Member, SocketAddr),
    to: Member,
    address: SocketAddr,
    again: bool,
    rate: Option<u64>,
    estimate: LinkEstimate,
    pace: Arc<Mutex<Pacer>>,
    events: Sender<Event>,
}

impl Speaking {
    /// How fast blocks go, which is right even if another channel has panicked.
    fn pace(&self) -> MutexGuard<'_, Pacer> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When a part may go.
    fn turn(&self) -> Instant {
        let due = self.pace().due();
        due.and_then(|due| due.checked_sub(PACED)).unwrap_or_else(Instant::now)
    }

    /// Whether as many bytes may go now, unless another channel has been quicker; then they count as gone.
    fn has_turn(&self, bytes: usize) -> bool {
        let now = Instant::now();
        let mut pace = self.pace();
        let may_go = pace.due().is_none_or(|due| due <= now + PACED);
        if may_go {
            pace.went(now, bytes);
        }
        may_go
    }

    /// Says what there is to say; signals go between the parts of a block. Ends when nobody has more to say.
    async fn run(&self, mut jobs: UnboundedReceiver<Job>) -> Result<(), ChannelError> {
        let send_buffer = send_buffer_bytes(self.rate);
        let part = send_buffer.map_or(PART_BYTES, |bytes| bytes.min(PART_BYTES));
        let mut speaker =
            Speaker::open(self.address, &self.key, self.me, (send_buffer, &self.estimate)).await?;
        if self.again {
            drop(self.events.send(Event::Opened { to: self.to }).await);
        }
        let mut blocks: VecDeque<(u32, Bytes, usize)> = VecDeque::new();
        loop {
            let job = match jobs.try_recv() {
                Ok(job) => Some(job),
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {
                    let turn = (!blocks.is_empty()).then(|| self.turn());
                    tokio::select! {
                        job = jobs.recv() => match job {
                            Some(job) => Some(job),
                            None => return Ok(()),
                        },
                        () = sleep_until(turn) => None,
                    }
                }
            };
            match job {
                Some(Job::Say(frame)) => speaker.send(&frame).await?,
                Some(Job::Block { transfer, bytes }) => blocks.push_back((transfer, bytes, 0)),
                Some(Job::Cancel { transfer }) => blocks.retain(|(other, ..)| *other != transfer),
                None => {
                    let Some((transfer, bytes, at)) = blocks.front_mut() else { continue };
                    let (transfer, end) = (*transfer, bytes.len().min(*at + part));
                    if !self.has_turn(end - *at) {
                        continue;
                    }
                    speaker.send(&Frame::Part { transfer, bytes: &bytes[*at..end] }).await?;
                    *at = end;
                    if end == bytes.len() {
                        blocks.pop_front();
                        let done = Event::HandedOver { to: self.to, transfer };
                        if self.events.send(done).await.is_err() {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}

/// The send buffer of a channel from a member with that rate, in bytes per second; none if the system is to choose it.
fn send_buffer_bytes(rate: Option<u64>) -> Option<usize> {
    let bytes = rate? as f64 * SEND_BUFFER_TIME.as_secs_f64();
    Some((bytes as usize).max(SEND_BUFFER_MIN_BYTES)).filter(|bytes| *bytes < SEND_BUFFER_MAX_BYTES)
}

/// Sleeps until then, or for ever.
pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Takes channels that others open, as long as anybody wants to hear of them.
pub(crate) async fn listen(socket: TcpListener, key: SwarmKey, events: Sender<Event>) {
    let mut channel = 0;
    loop {
        let stream = tokio::select! {
            accepted = socket.accept() => accepted,
            () = events.closed() => return,
        };
        let Ok((stream, from)) = stream else {
            // No more descriptors: some may be given back.
            tokio::time::sleep(REOPEN_FIRST).await;
            continue;
        };
        let (number, events) = (channel, events.clone());
        channel += 1;
        tokio::spawn(async move {
            let (member, contact, listener) = match Listener::accept(stream, &key).await {
                Ok(Caller::Member { member, contact, listener }) => (member, contact, listener),
                Ok(Caller::Newcomer { member, speaker }) => {
                    // Nobody may listen any more.
                    return drop(events.send(Event::Inquired { by: member, speaker }).await);
                }
                Err(error) => return tracing::debug!("channel from {from}: {error}"),
            };
            let greeted = Event::Greeted { from: member, contact, channel: number };
            if let Err(error) = hear(member, greeted, listener, &events).await {
                tracing::debug!("channel from {member:?} at {from}: {error}");
            }
            drop(events.send(Event::Closed { with: member, channel: number }).await);
        });
    }
}

/// Passes on what a member says, until it ends or nobody listens.
async fn hear(
    from: Member,
    greeted: Event,
    mut listener: Listener,
    events: &Sender<Event>,
) -> Result<(), ChannelError> {
    let mut event = greeted;
    while events.send(event).await.is_ok() {
        let heard = match listener.next().await? {
            Frame::Hello { .. } | Frame::Inquire { .. } => return Err(ChannelError::Stranger),
            Frame::Signal(signal) => Heard::Signal(signal),
            Frame::Part { transfer, bytes } => Heard::Part { transfer, bytes: bytes.to_vec() },
            Frame::Half { transfer } => Heard::Half { transfer },
            Frame::Whole { transfer } => Heard::Whole { transfer },
        };
        event = Event::Heard { from, heard };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_buffer_has_what_a_link_carries_in_two_milliseconds_unless_that_is_a_block() {
        assert_eq!(send_buffer_bytes(Some(2_500_000)), Some(5_000), "20 Mbit/s");
        assert_eq!(send_buffer_bytes(Some(100_000)), Some(SEND_BUFFER_MIN_BYTES));
        assert_eq!(send_buffer_bytes(Some(1_250_000_000)), None, "10 Gbit/s");
        assert_eq!(send_buffer_bytes(None), None);
    }
}
