//! A copy by swarm: each rank is a member, which passes on the blocks that it has received.

use crate::background::TICK;
use crate::block_reader::BlockReader;
use crate::destination::{DestinationCopy, DestinationResult};
use crate::errors::{CopyError, CopyFileError};
use crate::generations::{GENERATION_BLOCKS, divide};
use crate::install::Install;
use crate::progress_reporter::ProgressReporter;
use crate::protocol::{CopyEvent, CopyTask};
use crate::secret::CopySecret;
use cool::Comm;
use cool_content::{BlockSet, Digest, Manifest, Piece};
use cool_peer::{
    Code, Contact, GenerationStore, InquiryHold, KeyPair, LateJoinReply, Member, MemberRole, PeerProgress,
    PublicKey, SourceIndex, SwarmConfig, SwarmPeer,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, iter};

/// Time after which the rank of a late node leaves, if its copy is complete and it has sent no
/// blocks.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Percentage of a link's rate that is left for blocks, because packets of 1500 bytes also carry
/// the headers of Ethernet, IP, TCP and Noise, and members send control messages.
const PAYLOAD_PERCENT: u64 = 93;
/// Length in bytes of an encoded address of a member: an IPv6 address, and a port, which is 0 for a
/// rank that does not take part.
const ADDRESS_BYTES: usize = 18;
/// Length in bytes of an encoded contact: its address, and its public key.
const CONTACT_BYTES: usize = ADDRESS_BYTES + size_of::<PublicKey>();

/// The content of a member, as its peer reads and writes it.
struct SwarmContent {
    manifest: Arc<Manifest>,
    /// The blocks that a node was missing at the start. The first generations contain them.
    missing: BlockSet,
    generations: Vec<Piece>,
    reader: Mutex<BlockReader>,
    /// `None` at the source.
    incoming: Option<Mutex<IncomingCopy>>,
}

/// A node's copy. It is installed as soon as it is complete, even if other nodes are still missing
/// blocks.
struct IncomingCopy {
    began: Instant,
    /// The copy and its reporter, until the copy is complete.
    destination: Option<(DestinationCopy, ProgressReporter)>,
    install: Option<Install>,
}

impl IncomingCopy {
    /// Starts to install the copy if it is complete. Blocks for other members are then read at its
    /// destination, too.
    fn install_if_complete(&mut self, reader: &Mutex<BlockReader>) -> Result<(), CopyFileError> {
        let Some((destination, _)) =
            self.destination.take_if(|(destination, _)| destination.have().is_full())
        else {
            return Ok(());
        };
        lock(reader).add_root(destination.dest().to_owned());
        self.install = Some(Install::of_destination(destination, self.began)?);
        Ok(())
    }
}

impl GenerationStore for SwarmContent {
    type Error = CopyFileError;

    fn read(&self, generation: u32) -> Result<Vec<u8>, CopyFileError> {
        let piece = &self.generations[generation as usize];
        lock(&self.reader).blocks(&piece.blocks, piece.bytes)
    }

    fn is_right(&self, generation: u32, bytes: &[u8]) -> bool {
        self.generations[generation as usize].is_right(&self.manifest, bytes)
    }

    fn keep(&self, generation: u32, bytes: &[u8]) -> Result<(), CopyFileError> {
        let Some(incoming) = &self.incoming else { return Ok(()) };
        let mut incoming = lock(incoming);
        let Some((destination, reporter)) = &mut incoming.destination else { return Ok(()) };
        destination.put_checked_piece(&self.generations[generation as usize], bytes)?;
        reporter.update(destination);
        incoming.install_if_complete(&self.reader)
    }

    /// Returns the encoded set of blocks that were missing at the start, followed by the encoded
    /// manifest.
    fn describe(&self) -> Vec<u8> {
        let words = self.missing.words();
        let words = iter::once(words.len() as u64).chain(words.iter().copied()).flat_map(u64::to_le_bytes);
        words.chain(self.manifest.encode()).collect()
    }
}

/// Locks a mutex. A poisoned one is used as it is, because a panic ends the copy anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of a rank in the swarm, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum MemberState {
    /// It needs nothing from other members.
    Content,
    /// Blocks are missing, and none has arrived for a long time.
    Starved,
    /// Blocks are arriving.
    Busy,
    /// This rank is the only source, and it cannot read its files.
    SourceFailed,
}

/// A rank that is a member of the swarm.
pub(crate) struct SwarmMember {
    peer: SwarmPeer<SwarmContent>,
    content: Arc<SwarmContent>,
    /// Whether only this member has had all blocks from the start.
    only_source: bool,
    /// All members, by the names of their nodes.
    members: BTreeMap<String, Member>,
    /// For a late member: the member that sent it the configuration does not end while this is
    /// held.
    hold: Option<InquiryHold>,
}

/// The result of a member.
pub(crate) struct SwarmResult {
    /// The unfinished copy, or why there is none; `None` at the source, and if the copy is
    /// complete.
    pub(crate) destination: Option<DestinationResult>,
    /// The copy, if it is complete.
    pub(crate) install: Option<Install>,
    /// The error, if the source cannot be read.
    pub(crate) source_error: Option<CopyFileError>,
    /// Bytes sent by this node.
    pub(crate) sent: u64,
}

impl SwarmMember {
    /// Starts to spread the missing blocks. All ranks must call this together. If this node cannot
    /// take part, or the source's node cannot, the destination is returned as the inner error.
    pub(crate) fn start(
        comm: &Comm,
        root: usize,
        (task, began): (&CopyTask, Instant),
        (manifest, missing): (&Arc<Manifest>, &BlockSet),
        (source, destination): (Option<(&Path, SourceIndex)>, Option<DestinationCopy>),
    ) -> Result<Result<SwarmMember, Option<DestinationCopy>>, CopyError> {
        let secret = task.secret.ok_or(CopyError::NoSecret)?;
        let takes_part = source.is_some() || destination.is_some();
        let socket = takes_part.then(|| listen(task.address)).transpose().unwrap_or_else(|error| {
            eprintln!("cannot join the swarm: {error}");
            None
        });
        let key_pair = KeyPair::generate()?;
        let contacts = share_contacts(comm, socket.as_ref(), key_pair.public())?;
        let (Some(socket), true) = (socket, contacts[root].address.port() != 0) else {
            return Ok(Err(destination));
        };
        let (members, me) = assign_members(comm, &contacts);
        let generations = divide(manifest, missing);
        let swarm = swarm_config(task, secret, &members, &generations);
        let rate = comm.place(comm.rank()).and_then(|place| payload_rate(task.rates.on(&place.name)));
        let source_index = source.map(|(_, share)| share);
        let config = MemberConfig { me, socket, key_pair, source: source_index, rate, late: false };
        let readable = source.map_or(&*task.source, |(root, _)| root);
        let destination = destination.map(|destination| (began, destination));
        let content =
            SwarmContent::new(task, (readable, manifest), missing.clone(), generations, destination);
        let member = content.join(swarm, config)?;
        let members = members.into_iter().map(|(name, member, _)| (name, member)).collect();
        let only_source = comm.rank() == root && task.others().is_empty();
        Ok(Ok(SwarmMember { members, only_source, ..member }))
    }

    /// Joins a swarm that is under way, as the member `me`. The members at `contacts` send the
    /// configuration and the manifest, for which `open` prepares this node's copy. The manifest
    /// must have this `identity`, if it is known.
    pub(crate) fn join(
        (task, node): (&CopyTask, &str),
        began: Instant,
        (me, contacts, identity): (Member, &[Contact], Option<Digest>),
        open: impl FnOnce(Arc<Manifest>) -> Result<DestinationCopy, CopyError>,
    ) -> Result<SwarmMember, CopyError> {
        let secret = task.secret.ok_or(CopyError::NoSecret)?;
        let socket = listen(task.address)?;
        let key_pair = KeyPair::generate()?;
        let LateJoinReply { config: swarm, content, hold } =
            cool_peer::inquire(contacts, secret.key(), (me, &key_pair))?;
        let (missing, manifest) = decode_description(&content)?;
        let manifest = Arc::new(manifest);
        let generations = divide(&manifest, &missing);
        check_reply(&manifest, identity, &generations, &swarm.generations)?;
        let destination = open(Arc::clone(&manifest))?;
        let rate = payload_rate(task.rates.on(node));
        let config = MemberConfig { me, socket, key_pair, source: None, rate, late: true };
        let source = (&*task.source, &manifest);
        let content = SwarmContent::new(task, source, missing, generations, Some((began, destination)));
        Ok(SwarmMember { hold: Some(hold), ..content.join(swarm, config)? })
    }

    /// Returns the state of this rank and of the late members that it knows. Waits at most
    /// `timeout` if more blocks are to arrive.
    pub(crate) fn state(&self, timeout: Duration) -> MemberState {
        let progress = self.peer.wait_until(|progress| progress.is_whole() && progress.guests == 0, timeout);
        match progress {
            PeerProgress { ended: false, guests: 1.., starved: false, .. } => MemberState::Busy,
            PeerProgress { ended: true, .. } if self.only_source => MemberState::SourceFailed,
            PeerProgress { ended: true, .. } => MemberState::Content,
            _ if progress.is_whole() => MemberState::Content,
            PeerProgress { starved: true, .. } => MemberState::Starved,
            _ => MemberState::Busy,
        }
    }

    /// Takes part without a group, until this rank has its copy and no member is missing blocks, or
    /// until no more blocks arrive.
    pub(crate) fn serve(&self) {
        let is_over = |progress: &PeerProgress| {
            let idle = if progress.is_whole() { !progress.wanted } else { progress.starved };
            idle || progress.alone
        };
        let (mut sent, mut last_sent) = (0, Instant::now());
        loop {
            let progress = self.peer.wait_until(is_over, TICK);
            if progress.sent != sent {
                (sent, last_sent) = (progress.sent, Instant::now());
            }
            let unused = progress.is_whole() && last_sent.elapsed() > IDLE_TIMEOUT;
            if progress.ended || unused || is_over(&progress) {
                return;
            }
        }
    }

    /// Removes the members on lost nodes.
    pub(crate) fn remove_members(&self, nodes: &[String]) {
        nodes.iter().filter_map(|name| self.members.get(name)).for_each(|member| self.peer.leave(*member));
    }

    /// Leaves the swarm, and returns the result.
    pub(crate) fn end(self) -> SwarmResult {
        let SwarmMember { peer, content, hold, members, .. } = self;
        let sent = peer.progress().sent;
        report_expelled(&peer, &members);
        let error = peer.stop().err();
        drop(hold);
        // This is the last reference once the peer has stopped.
        let incoming = Arc::into_inner(content).and_then(|content| content.incoming);
        let incoming = incoming.map(|copy| copy.into_inner().unwrap_or_else(PoisonError::into_inner));
        let Some(IncomingCopy { destination, install, .. }) = incoming else {
            return SwarmResult { destination: None, install: None, source_error: error, sent };
        };
        let destination = match (destination, error) {
            (Some((destination, _)), Some(error)) => Some(Err(destination.discard(error))),
            (Some((destination, _)), None) => Some(Ok(destination)),
            (None, Some(error)) => {
                // The error concerns only the blocks for other members: the copy is complete.
                eprintln!("{error}; this node stopped serving others");
                None
            }
            (None, None) => None,
        };
        SwarmResult { destination, install, source_error: None, sent }
    }
}

/// Reports the members that have sent wrong bytes.
fn report_expelled(peer: &SwarmPeer<SwarmContent>, members: &BTreeMap<String, Member>) {
    for expelled in peer.expelled() {
        let named = members.iter().find(|(_, member)| **member == expelled).map(|(name, _)| name.clone());
        let node = named.unwrap_or_else(|| format!("member {} of rack {}", expelled.slot, expelled.rack));
        // An error is ignored, because sending the rank's last event will then fail, too.
        drop(CopyEvent::Expelled { node }.send());
    }
}

/// Configuration of a member.
struct MemberConfig {
    me: Member,
    socket: TcpListener,
    key_pair: KeyPair,
    source: Option<SourceIndex>,
    /// Rate of this node's link for blocks, in bytes per second.
    rate: Option<u64>,
    late: bool,
}

impl SwarmContent {
    /// Returns the content of a member. `target` is its copy, with the start time of its rank;
    /// `None` at the source.
    fn new(
        task: &CopyTask,
        (source, manifest): (&Path, &Arc<Manifest>),
        missing: BlockSet,
        generations: Vec<Piece>,
        destination: Option<(Instant, DestinationCopy)>,
    ) -> SwarmContent {
        let readable =
            destination.as_ref().map_or_else(|| source.to_owned(), |(_, destination)| destination.root());
        let incoming = destination.map(|(began, destination)| {
            let reporter = ProgressReporter::new(task, &destination);
            Mutex::new(IncomingCopy { began, destination: Some((destination, reporter)), install: None })
        });
        let reader = Mutex::new(BlockReader::new(readable, Arc::clone(manifest)));
        SwarmContent { manifest: Arc::clone(manifest), missing, generations, reader, incoming }
    }

    /// Returns the numbers of the generations of which this node's copy has all blocks. Returns
    /// none at a source.
    fn present(&self) -> Vec<u32> {
        let Some(incoming) = &self.incoming else { return Vec::new() };
        let incoming = lock(incoming);
        let Some((destination, _)) = &incoming.destination else { return Vec::new() };
        let present = |piece: &Piece| piece.blocks.iter().all(|block| destination.have().contains(*block));
        (0..).zip(&self.generations).filter(|(_, piece)| present(piece)).map(|(number, _)| number).collect()
    }

    /// Joins the swarm with this content. A copy that is complete already is installed.
    fn join(self, swarm: SwarmConfig, config: MemberConfig) -> Result<SwarmMember, CopyError> {
        let MemberConfig { me, socket, key_pair, source, rate, late } = config;
        let (rack, slot, contact, key) = (me.rack, me.slot, socket.local_addr()?, Some(key_pair.public()));
        let role = MemberRole { me, socket, key_pair, here: self.present(), source, rate, late };
        if let Some(incoming) = &self.incoming {
            lock(incoming).install_if_complete(&self.reader)?;
        }
        let content = Arc::new(self);
        let peer = SwarmPeer::start(swarm, role, Arc::clone(&content))?;
        CopyEvent::Member { rack, slot, contact, key }.send()?;
        Ok(SwarmMember { peer, content, only_source: false, members: BTreeMap::new(), hold: None })
    }
}

/// Decodes the result of [`GenerationStore::describe`].
fn decode_description(content: &[u8]) -> Result<(BlockSet, Manifest), CopyError> {
    let truncated = || CopyError::Source("the members of the swarm sent a truncated manifest".to_owned());
    let (count, rest) = content.split_first_chunk().ok_or_else(truncated)?;
    let bytes = usize::try_from(u64::from_le_bytes(*count)).ok().and_then(|count| count.checked_mul(8));
    let (words, manifest) = bytes.and_then(|bytes| rest.split_at_checked(bytes)).ok_or_else(truncated)?;
    let manifest = Manifest::decode(manifest)?;
    let words: Vec<u64> = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    Ok((BlockSet::from_words(manifest.blocks().len(), &words), manifest))
}

/// Checks the reply of a member: the manifest against the identity that the source has reported,
/// and the configuration against the generations of this release.
fn check_reply(
    manifest: &Manifest,
    identity: Option<Digest>,
    generations: &[Piece],
    configured: &[u64],
) -> Result<(), CopyError> {
    let unlike = |what| CopyError::Source(format!("a member of the swarm sent {what}"));
    if identity.is_some_and(|identity| identity != manifest.identity()) {
        return Err(unlike("the manifest of another content"));
    }
    if !generations.iter().map(|piece| piece.bytes as u64).eq(configured.iter().copied()) {
        return Err(unlike("a plan of another release; install the same release on all nodes"));
    }
    Ok(())
}

/// Listens on the interface that leads to the source's node.
fn listen(source: IpAddr) -> io::Result<TcpListener> {
    let towards = UdpSocket::bind(SocketAddr::from((unspecified(source), 0)))?;
    // Sends no packet: the system only looks up the route.
    towards.connect((source, 9))?;
    TcpListener::bind((towards.local_addr()?.ip(), 0))
}

fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { IpAddr::from([0; 4]) } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Exchanges the addresses and public keys of all ranks. The port of a rank that does not take part
/// is 0.
fn share_contacts(
    comm: &Comm,
    socket: Option<&TcpListener>,
    key: PublicKey,
) -> Result<Vec<Contact>, CopyError> {
    let mut mine = [0; CONTACT_BYTES];
    if let Some(socket) = socket {
        let address = socket.local_addr()?;
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        mine[..16].copy_from_slice(&ip.octets());
        mine[16..ADDRESS_BYTES].copy_from_slice(&address.port().to_be_bytes());
        mine[ADDRESS_BYTES..].copy_from_slice(&key);
    }
    let mut all = vec![0; CONTACT_BYTES * comm.size()];
    comm.allgather(&mine, &mut all)?;
    let contact = |bytes: &[u8; CONTACT_BYTES]| {
        let (mut ip, mut port, mut key) = ([0; 16], [0; 2], PublicKey::default());
        ip.copy_from_slice(&bytes[..16]);
        port.copy_from_slice(&bytes[16..ADDRESS_BYTES]);
        key.copy_from_slice(&bytes[ADDRESS_BYTES..]);
        let address = SocketAddr::from((Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes(port)));
        Contact { address, key }
    };
    Ok(all.as_chunks().0.iter().map(contact).collect())
}

/// Assigns to each member the number of its rack and a slot in it, in the order of ranks. Returns
/// all members, and the member that this rank is.
fn assign_members(comm: &Comm, contacts: &[Contact]) -> (Vec<(String, Member, Contact)>, Member) {
    // The number of each rack, and how many of its members are known so far.
    let mut racks: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
    let mut mine = Member { rack: 0, slot: 0 };
    let mut members = Vec::new();
    for (rank, contact) in contacts.iter().enumerate().filter(|(_, contact)| contact.address.port() != 0) {
        let Some(place) = comm.place(rank) else { continue };
        // There are fewer than 2^32 racks.
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

fn swarm_config(
    task: &CopyTask,
    secret: CopySecret,
    members: &[(String, Member, Contact)],
    generations: &[Piece],
) -> SwarmConfig {
    let generations: Vec<u64> = generations.iter().map(|piece| piece.bytes as u64).collect();
    SwarmConfig {
        key: secret.key(),
        seed: secret.seed(),
        members: members.iter().map(|(_, member, contact)| (*member, *contact)).collect(),
        generations,
        blocks: GENERATION_BLOCKS,
        code: Code::Linear,
        rate: payload_rate(task.rate),
        limit: task.limit,
    }
}

/// Returns the rate at which a link can transfer blocks; `None` if the link's rate is unknown.
fn payload_rate(rate: u64) -> Option<u64> {
    rate.checked_mul(PAYLOAD_PERCENT).map(|rate| rate / 100).filter(|rate| *rate > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest_scan::scan;
    use tempfile::TempDir;

    #[test]
    fn a_newcomer_believes_only_the_manifest_of_the_source() {
        let directory = TempDir::new().unwrap();
        let manifest = |name: &str| {
            std::fs::write(directory.path().join(name), name).unwrap();
            scan(&directory.path().join(name)).unwrap()
        };
        let (right, other) = (manifest("right"), manifest("other"));
        let generations = |manifest: &Manifest| divide(manifest, &BlockSet::none(manifest.blocks().len()));
        let check = |manifest: &Manifest, identity, configured: &[u64]| {
            check_reply(manifest, identity, &generations(manifest), configured).is_ok()
        };
        assert!(check(&right, Some(right.identity()), &[5]) && check(&right, None, &[5]));
        assert!(!check(&other, Some(right.identity()), &[5]));
        assert!(!check(&right, Some(right.identity()), &[6]) && !check(&right, None, &[]));
    }
}
