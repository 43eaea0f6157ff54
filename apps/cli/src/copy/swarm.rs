//! A copy by swarm: each rank is a member, and passes on what has come to it.

use super::fault::Fault;
use super::rank::{Stop, bytes_of};
use super::reader::Reader;
use super::said::{Said, Task, Teller};
use super::secret::Secret;
use super::target::Target;
use super::work::{Placing, TICK};
use cool::Comm;
use cool_content::{BlockSet, Manifest, Piece, pieces};
use cool_peer::{
    Code, Contents, InquiryHold, Member, MemberRole, PeerProgress, Share, SwarmPeer, SwarmPlan, Welcome,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, iter};

/// Blocks of a generation. Adding them up takes as many multiplications for each byte, and a link as many blocks to fill.
pub(crate) const GENERATION_BLOCKS: u16 = 32;
/// Each has a number in what members say.
const GENERATIONS_MAX: u64 = 4096;
/// Of the shortest blocks.
pub(crate) const BLOCK_MIN_BYTES: u64 = 64 << 10;
/// Of the longest, unless there would be too many generations.
const BLOCK_MAX_BYTES: u64 = 128 << 10;
/// A content is divided into as many at least before they are longer: the shorter they are the sooner all nodes have some
/// to pass on, and the longer the less is said for each byte.
const BLOCKS_BEFORE_LONGER: u64 = 512;
/// Until a rank that has its copy, and came late, goes if nobody takes anything of it.
const SERVED: Duration = Duration::from_secs(20);
/// Of what a link carries, what is left of packets of 1500 bytes beside heads of Ethernet, IP, TCP and Noise, and signals.
const PAYLOAD_PERCENT: u64 = 93;
/// What a member tells the others: an address as IPv6, and a port, which is 0 if it does not take part.
const CONTACT_BYTES: usize = 18;

/// Where a member has its content.
struct Held {
    manifest: Arc<Manifest>,
    /// What somebody lacked when it began: the first generations.
    lacking: BlockSet,
    pieces: Vec<Piece>,
    reader: Mutex<Reader>,
    /// Not at the source.
    coming: Option<Mutex<Coming>>,
}

/// A node's copy, which takes its place as soon as it is whole, whatever others lack.
struct Coming {
    began: Instant,
    /// Until it is whole.
    target: Option<(Target, Teller)>,
    placing: Option<Placing>,
}

impl Coming {
    /// Brings it to its place if it is whole; what is served to others is read there from then on.
    fn place_if_whole(&mut self, reader: &Mutex<Reader>) -> Result<(), Fault> {
        let Some((target, _)) = self.target.take_if(|(target, _)| target.have().is_full()) else {
            return Ok(());
        };
        locked(reader).may_move_to(target.dest().to_owned());
        self.placing = Some(Placing::of(target, self.began)?);
        Ok(())
    }
}

impl Contents for Held {
    type Error = Fault;

    fn read(&self, generation: u32) -> Result<Vec<u8>, Fault> {
        let piece = &self.pieces[generation as usize];
        locked(&self.reader).blocks(&piece.blocks, piece.bytes)
    }

    fn is_right(&self, generation: u32, bytes: &[u8]) -> bool {
        self.pieces[generation as usize].is_right(&self.manifest, bytes)
    }

    fn keep(&self, generation: u32, bytes: &[u8]) -> Result<(), Fault> {
        let Some(coming) = &self.coming else { return Ok(()) };
        let mut coming = locked(coming);
        let Some((target, teller)) = &mut coming.target else { return Ok(()) };
        target.put_right_piece(&self.pieces[generation as usize], bytes)?;
        teller.tell(target);
        coming.place_if_whole(&self.reader)
    }

    /// The set of what somebody lacked, then the manifest.
    fn describe(&self) -> Vec<u8> {
        let words = self.lacking.words();
        let words = iter::once(words.len() as u64).chain(words.iter().copied()).flat_map(u64::to_le_bytes);
        words.chain(self.manifest.encode()).collect()
    }
}

/// What a thread that panicked has left is never used: the copy ends with it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far a rank is, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum State {
    /// It needs nobody.
    Content,
    /// It lacks something, and nothing has come for long.
    Starved,
    /// More comes.
    Busy,
    /// It alone has the source, which cannot be read.
    GivesUp,
}

/// A rank that takes part.
pub(super) struct Swarm {
    peer: SwarmPeer<Held>,
    held: Arc<Held>,
    /// Whether nobody else has all of it from the beginning.
    only_source: bool,
    /// By their names.
    members: BTreeMap<String, Member>,
    /// Of one that came late.
    hold: Option<InquiryHold>,
}

/// How it has gone.
pub(super) struct Ended {
    /// The copy, or why there is none; none at the source, and if it is whole.
    pub(super) target: Option<Result<Target, Fault>>,
    /// The copy if it is whole.
    pub(super) placing: Option<Placing>,
    /// Why the source cannot be read.
    pub(super) fault: Option<Fault>,
    /// Bytes that have left this node.
    pub(super) sent: u64,
}

impl Swarm {
    /// Begins to spread what somebody lacks: all ranks call this together. A node that cannot take part, or
    /// whose source cannot, gets its target back.
    pub(super) fn start(
        comm: &Comm,
        root: usize,
        (task, began): (&Task, Instant),
        (manifest, lacking): (&Arc<Manifest>, &BlockSet),
        (source, target): (Option<(&Path, Share)>, Option<Target>),
    ) -> Result<Result<Swarm, Option<Target>>, Stop> {
        let secret = task.secret.ok_or(Stop::Secret)?;
        let takes_part = source.is_some() || target.is_some();
        let socket = takes_part.then(|| listen(task.address)).transpose().unwrap_or_else(|error| {
            eprintln!("no member of the swarm: {error}");
            None
        });
        let contacts = share_contacts(comm, socket.as_ref())?;
        let (Some(socket), true) = (socket, contacts[root].port() != 0) else { return Ok(Err(target)) };
        let (members, me) = members(comm, &contacts);
        let pieces = divided(manifest, lacking);
        let plan = plan(task, secret, &members, &pieces);
        let rate = comm.place(comm.rank()).and_then(|place| payload(task.rates.on(&place.name)));
        let part = Part { me, socket, source: source.map(|(_, share)| share), rate, late: false };
        let readable = source.map_or(&*task.source, |(root, _)| root);
        let target = target.map(|target| (began, target));
        let held = Held::new(task, (readable, manifest), lacking.clone(), pieces, target);
        let peer = held.take_part(plan, part)?;
        let members = members.into_iter().map(|(name, member, _)| (name, member)).collect();
        let only_source = comm.rank() == root && task.others().is_empty();
        Ok(Ok(Swarm { members, only_source, ..peer }))
    }

    /// Begins to take part in a swarm that is under way, as the member `me`; what is copied comes from its members, and
    /// `open` looks at what is here.
    pub(super) fn join(
        (task, node): (&Task, &str),
        began: Instant,
        (me, contacts): (Member, &[SocketAddr]),
        open: impl FnOnce(Arc<Manifest>) -> Result<Target, Stop>,
    ) -> Result<Swarm, Stop> {
        let secret = task.secret.ok_or(Stop::Secret)?;
        let socket = listen(task.address)?;
        let Welcome { plan, content, hold } = cool_peer::inquire(contacts, secret.key(), me)?;
        let (lacking, manifest) = described(&content)?;
        let manifest = Arc::new(manifest);
        let pieces = divided(&manifest, &lacking);
        let target = open(Arc::clone(&manifest))?;
        let rate = payload(task.rates.on(node));
        let part = Part { me, socket, source: None, rate, late: true };
        let held = Held::new(task, (&task.source, &manifest), lacking, pieces, Some((began, target)));
        Ok(Swarm { hold: Some(hold), ..held.take_part(plan, part)? })
    }

    /// How far this rank is, and those that have come late, as far as it knows; waits a while if more is to come.
    pub(super) fn state(&self, at_most: Duration) -> State {
        let progress = self.peer.wait_until(|progress| progress.is_whole() && progress.guests == 0, at_most);
        match progress {
            PeerProgress { ended: false, guests: 1.., starved: false, .. } => State::Busy,
            PeerProgress { ended: true, .. } if self.only_source => State::GivesUp,
            PeerProgress { ended: true, .. } => State::Content,
            _ if progress.is_whole() => State::Content,
            PeerProgress { starved: true, .. } => State::Starved,
            _ => State::Busy,
        }
    }

    /// Takes part, without a group, until this rank has its copy and nobody lacks anything any more, or until nothing comes.
    pub(super) fn serve(&self) {
        let over = |progress: &PeerProgress| {
            let lacks = if progress.is_whole() { !progress.wanted } else { progress.starved };
            lacks || progress.alone
        };
        let (mut sent, mut moved) = (0, Instant::now());
        loop {
            let progress = self.peer.wait_until(over, TICK);
            if progress.sent != sent {
                (sent, moved) = (progress.sent, Instant::now());
            }
            let idle = progress.is_whole() && moved.elapsed() > SERVED;
            if progress.ended || idle || over(&progress) {
                return;
            }
        }
    }

    /// These nodes are gone.
    pub(super) fn leave(&self, nodes: &[String]) {
        nodes.iter().filter_map(|name| self.members.get(name)).for_each(|member| self.peer.leave(*member));
    }

    /// Takes part no longer.
    pub(super) fn end(self) -> Ended {
        let Swarm { peer, held, hold, members, .. } = self;
        let sent = peer.progress().sent;
        name_expelled(&peer, &members);
        let fault = peer.stop().err();
        drop(hold);
        // Nobody else holds it once the member has ended.
        let coming = Arc::into_inner(held).and_then(|held| held.coming);
        let coming = coming.map(|held| held.into_inner().unwrap_or_else(PoisonError::into_inner));
        let Some(Coming { target, placing, .. }) = coming else {
            return Ended { target: None, placing: None, fault, sent };
        };
        let target = match (target, fault) {
            (Some((target, _)), Some(fault)) => Some(Err(target.give_up().err().unwrap_or(fault))),
            (Some((target, _)), None) => Some(Ok(target)),
            (None, Some(fault)) => {
                // It has its copy all the same.
                eprintln!("{fault}; others were served no longer");
                None
            }
            (None, None) => None,
        };
        Ended { target, placing, fault: None, sent }
    }
}

/// Says who has sent wrong bytes.
fn name_expelled(peer: &SwarmPeer<Held>, members: &BTreeMap<String, Member>) {
    for expelled in peer.expelled() {
        let named = members.iter().find(|(_, member)| **member == expelled).map(|(name, _)| name.clone());
        let node = named.unwrap_or_else(|| format!("member {} of rack {}", expelled.slot, expelled.rack));
        // If nobody hears it the command is gone.
        drop(Said::Expelled { node }.say());
    }
}

/// What a rank is in a swarm.
struct Part {
    me: Member,
    socket: TcpListener,
    source: Option<Share>,
    /// Of its own link.
    rate: Option<u64>,
    late: bool,
}

impl Held {
    /// Of a node's copy, whose rank began then; or of the source.
    fn new(
        task: &Task,
        (source, manifest): (&Path, &Arc<Manifest>),
        lacking: BlockSet,
        pieces: Vec<Piece>,
        target: Option<(Instant, Target)>,
    ) -> Held {
        let readable = target.as_ref().map_or_else(|| source.to_owned(), |(_, target)| target.root());
        let coming = target.map(|(began, target)| {
            let teller = task.teller(&target);
            Mutex::new(Coming { began, target: Some((target, teller)), placing: None })
        });
        let reader = Mutex::new(Reader::new(readable, Arc::clone(manifest)));
        Held { manifest: Arc::clone(manifest), lacking, pieces, reader, coming }
    }

    /// Generations that are here.
    fn here(&self) -> Vec<u32> {
        let Some(coming) = &self.coming else { return Vec::new() };
        let coming = locked(coming);
        let Some((target, _)) = &coming.target else { return Vec::new() };
        let here = |piece: &Piece| piece.blocks.iter().all(|block| target.have().contains(*block));
        (0..).zip(&self.pieces).filter(|(_, piece)| here(piece)).map(|(number, _)| number).collect()
    }

    /// Becomes a member's content; a copy that is whole already takes its place.
    fn take_part(self, plan: SwarmPlan, part: Part) -> Result<Swarm, Stop> {
        let Part { me, socket, source, rate, late } = part;
        let (rack, slot, contact) = (me.rack, me.slot, socket.local_addr()?);
        let role = MemberRole { me, socket, here: self.here(), source, rate, late };
        if let Some(coming) = &self.coming {
            locked(coming).place_if_whole(&self.reader)?;
        }
        let held = Arc::new(self);
        let peer = SwarmPeer::start(plan, role, Arc::clone(&held))?;
        Said::Member { rack, slot, contact }.say()?;
        Ok(Swarm { peer, held, only_source: false, members: BTreeMap::new(), hold: None })
    }
}

/// The content's generations: first what somebody lacked when it began, then what only one that comes late can lack.
fn divided(manifest: &Manifest, lacking: &BlockSet) -> Vec<Piece> {
    let of = |blocks: &BlockSet| pieces(manifest, blocks, generation_bytes(manifest, blocks)).collect();
    let all: [Vec<Piece>; 2] = [of(lacking), of(&lacking.complement())];
    all.concat()
}

/// What [`Contents::describe`] has said.
fn described(content: &[u8]) -> Result<(BlockSet, Manifest), Stop> {
    let cut = || Stop::Source("what members of the swarm tell is cut short".to_owned());
    let (count, rest) = content.split_first_chunk().ok_or_else(cut)?;
    let bytes = usize::try_from(u64::from_le_bytes(*count)).ok().and_then(|count| count.checked_mul(8));
    let (words, manifest) = bytes.and_then(|bytes| rest.split_at_checked(bytes)).ok_or_else(cut)?;
    let manifest = Manifest::decode(manifest)?;
    let words: Vec<u64> = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    Ok((BlockSet::from_words(manifest.blocks().len(), &words), manifest))
}

/// Listens at the address that leads to the source's node.
fn listen(source: IpAddr) -> io::Result<TcpListener> {
    let towards = UdpSocket::bind(SocketAddr::from((unspecified(source), 0)))?;
    // Nothing is sent: the system only looks up the way.
    towards.connect((source, 9))?;
    TcpListener::bind((towards.local_addr()?.ip(), 0))
}

fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { IpAddr::from([0; 4]) } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Where all ranks listen; with port 0, those that do not take part.
fn share_contacts(comm: &Comm, socket: Option<&TcpListener>) -> Result<Vec<SocketAddr>, Stop> {
    let mut mine = [0; CONTACT_BYTES];
    if let Some(socket) = socket {
        let address = socket.local_addr()?;
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        mine[..16].copy_from_slice(&ip.octets());
        mine[16..].copy_from_slice(&address.port().to_be_bytes());
    }
    let mut all = vec![0; CONTACT_BYTES * comm.size()];
    comm.allgather(&mine, &mut all)?;
    let contact = |bytes: &[u8; CONTACT_BYTES]| {
        let [ip @ .., high, low] = *bytes;
        SocketAddr::from((Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes([high, low])))
    };
    Ok(all.as_chunks().0.iter().map(contact).collect())
}

/// Who takes part, rack by rack, and which of them this rank is.
fn members(comm: &Comm, contacts: &[SocketAddr]) -> (Vec<(String, Member, SocketAddr)>, Member) {
    // The number of a rack, and how many of it were seen.
    let mut racks: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
    let mut mine = Member { rack: 0, slot: 0 };
    let mut members = Vec::new();
    for (rank, contact) in contacts.iter().enumerate().filter(|(_, contact)| contact.port() != 0) {
        let Some(place) = comm.place(rank) else { continue };
        // Fewer racks than 2^32.
        let next = racks.len() as u32;
        let (rack, slots) = racks.entry(place.rack).or_insert((next, 0));
        let member = Member { rack: *rack, slot: *slots };
        *slots += 1;
        if rank == comm.rank() {
            mine = member;
        }
        members.push((place.name.clone(), member, *contact));
    }
    (members, mine)
}

/// Bytes of a block of a content that has `bytes`.
pub(crate) fn block_bytes(bytes: u64) -> u64 {
    let least = bytes.div_ceil(GENERATIONS_MAX * u64::from(GENERATION_BLOCKS));
    (bytes / BLOCKS_BEFORE_LONGER).clamp(BLOCK_MIN_BYTES, BLOCK_MAX_BYTES).max(least)
}

fn generation_bytes(manifest: &Manifest, lacking: &BlockSet) -> usize {
    let block = block_bytes(bytes_of(manifest, lacking));
    usize::try_from(block.saturating_mul(GENERATION_BLOCKS.into())).unwrap_or(usize::MAX)
}

fn plan(
    task: &Task,
    secret: Secret,
    members: &[(String, Member, SocketAddr)],
    pieces: &[Piece],
) -> SwarmPlan {
    let generations: Vec<u64> = pieces.iter().map(|piece| piece.bytes as u64).collect();
    SwarmPlan {
        key: secret.key(),
        seed: secret.seed(),
        members: members.iter().map(|(_, member, contact)| (*member, *contact)).collect(),
        generations,
        blocks: GENERATION_BLOCKS,
        code: Code::Linear,
        rate: payload(task.rate),
        limit: task.limit,
    }
}

/// What of a link's bytes in a second can be blocks; nothing if its rate is unknown.
fn payload(rate: u64) -> Option<u64> {
    rate.checked_mul(PAYLOAD_PERCENT).map(|rate| rate / 100).filter(|rate| *rate > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_longer_where_there_are_many_and_never_too_many_for_their_numbers() {
        let kib = |kib: u64| kib << 10;
        let of = |mib: u64| block_bytes(mib << 20);
        assert_eq!((of(0), of(16), of(32)), (kib(64), kib(64), kib(64)));
        assert_eq!((of(48), of(64), of(1024)), (kib(96), kib(128), kib(128)));
        let huge = 1 << 50;
        assert!(huge / (block_bytes(huge) * u64::from(GENERATION_BLOCKS)) <= GENERATIONS_MAX);
    }
}
