//! A copy by swarm: each rank is a member, and passes on what has come to it.

use super::fault::Fault;
use super::rank::{Stop, bytes_of};
use super::reader::Reader;
use super::said::{Task, Teller};
use super::target::Target;
use cool::Comm;
use cool_content::{BlockSet, Manifest, Piece, pieces};
use cool_peer::{Code, Contents, Member, MemberRole, PeerProgress, Share, SwarmPeer, SwarmPlan};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Blocks of a generation. Adding them up takes as many multiplications for each byte, and a link as many blocks to fill.
pub(crate) const BLOCKS: u16 = 32;
/// Bytes of a generation, unless there would be too many: each has a number in what members say.
const GENERATION_BYTES: u64 = 2 << 20;
/// Of a block, unless there would be too many.
pub(crate) const BLOCK_BYTES: u64 = GENERATION_BYTES / BLOCKS as u64;
const GENERATIONS_MAX: u64 = 4096;
/// Of what a link carries, what is left of packets of 1500 bytes beside heads of Ethernet, IP, TCP and Noise, and signals.
const PAYLOAD_PERCENT: u64 = 93;
/// What a member tells the others: an address as IPv6, and a port, which is 0 if it does not take part.
const CONTACT_BYTES: usize = 18;
/// What the source tells all: the key, and what rings follow from.
const SECRET_BYTES: usize = 40;

/// Where a member has its content.
struct Held {
    pieces: Vec<Piece>,
    reader: Mutex<Reader>,
    /// Not at the source.
    target: Option<Mutex<(Target, Teller)>>,
}

impl Contents for Held {
    type Error = Fault;

    fn read(&self, generation: u32) -> Result<Vec<u8>, Fault> {
        let piece = &self.pieces[generation as usize];
        locked(&self.reader).blocks(&piece.blocks, piece.bytes)
    }

    fn keep(&self, generation: u32, bytes: &[u8]) -> Result<(), Fault> {
        let Some(target) = &self.target else { return Ok(()) };
        let (target, teller) = &mut *locked(target);
        target.put_piece(&self.pieces[generation as usize], bytes)?;
        teller.tell(target);
        Ok(())
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
    /// It has the source, which cannot be read.
    GivesUp,
}

/// A rank that takes part.
pub(super) struct Swarm {
    peer: SwarmPeer<Held>,
    held: Arc<Held>,
    is_source: bool,
    /// By their names.
    members: BTreeMap<String, Member>,
}

/// How it has gone.
pub(super) struct Ended {
    /// The copy, or why there is none; none at the source.
    pub(super) target: Option<Result<Target, Fault>>,
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
        task: &Task,
        (manifest, lacking): (&Arc<Manifest>, &BlockSet),
        target: Option<Target>,
    ) -> Result<Result<Swarm, Option<Target>>, Stop> {
        let is_source = comm.rank() == root;
        let takes_part = is_source || target.is_some();
        let socket = takes_part.then(|| listen(task.address)).transpose().unwrap_or_else(|error| {
            eprintln!("no member of the swarm: {error}");
            None
        });
        let contacts = share_contacts(comm, socket.as_ref())?;
        let mut secret = [0; SECRET_BYTES];
        if is_source {
            getrandom::fill(&mut secret).map_err(io::Error::from)?;
        }
        comm.bcast(&mut secret, root)?;
        let (Some(socket), true) = (socket, contacts[root].port() != 0) else { return Ok(Err(target)) };
        let (members, mine) = members(comm, &contacts);
        let generation = generation_bytes(manifest, lacking);
        let pieces: Vec<Piece> = pieces(manifest, lacking, generation).collect();
        let plan = plan(task, secret, &members, &pieces);
        let here = |piece: &Piece| {
            target.as_ref().is_some_and(|t| piece.blocks.iter().all(|block| t.have().contains(*block)))
        };
        let here = (0..).zip(&pieces).filter(|(_, piece)| here(piece)).map(|(number, _)| number).collect();
        let source = is_source.then_some(Share { index: 0, of: 1 });
        let role = MemberRole { me: mine, socket, here, source };
        let readable = target.as_ref().map_or_else(|| task.source.clone(), Target::root);
        let held = Arc::new(Held {
            pieces,
            reader: Mutex::new(Reader::new(readable, Arc::clone(manifest))),
            target: target.map(|target| {
                let teller = task.teller(&target);
                Mutex::new((target, teller))
            }),
        });
        let peer = SwarmPeer::start(plan, role, Arc::clone(&held))?;
        let members = members.into_iter().map(|(name, member, _)| (name, member)).collect();
        Ok(Ok(Swarm { peer, held, is_source, members }))
    }

    /// How far this rank is; waits a while if more is to come.
    pub(super) fn state(&self, at_most: Duration) -> State {
        let progress = self.peer.wait_until(PeerProgress::is_whole, at_most);
        match progress {
            PeerProgress { ended: true, .. } if self.is_source => State::GivesUp,
            PeerProgress { ended: true, .. } => State::Content,
            _ if progress.is_whole() => State::Content,
            PeerProgress { starved: true, .. } => State::Starved,
            _ => State::Busy,
        }
    }

    /// These nodes are gone.
    pub(super) fn leave(&self, nodes: &[String]) {
        nodes.iter().filter_map(|name| self.members.get(name)).for_each(|member| self.peer.leave(*member));
    }

    /// Takes part no longer.
    pub(super) fn end(self) -> Ended {
        let sent = self.peer.progress().sent;
        let fault = self.peer.stop().err();
        // Nobody else holds it once the member has ended.
        let target = Arc::into_inner(self.held).and_then(|held| held.target);
        let target = target.map(|held| held.into_inner().unwrap_or_else(PoisonError::into_inner).0);
        match (target, fault) {
            (Some(target), Some(fault)) => {
                let given_up = target.give_up().err();
                Ended { target: Some(Err(given_up.unwrap_or(fault))), fault: None, sent }
            }
            (target, fault) => Ended { target: target.map(Ok), fault, sent },
        }
    }
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

fn generation_bytes(manifest: &Manifest, lacking: &BlockSet) -> usize {
    let bytes = bytes_of(manifest, lacking);
    usize::try_from(GENERATION_BYTES.max(bytes.div_ceil(GENERATIONS_MAX))).unwrap_or(usize::MAX)
}

fn plan(
    task: &Task,
    secret: [u8; SECRET_BYTES],
    members: &[(String, Member, SocketAddr)],
    pieces: &[Piece],
) -> SwarmPlan {
    let [key @ .., a, b, c, d, e, f, g, h] = secret;
    let generations: Vec<u64> = pieces.iter().map(|piece| piece.bytes as u64).collect();
    SwarmPlan {
        key,
        seed: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        members: members.iter().map(|(_, member, contact)| (*member, *contact)).collect(),
        generations,
        blocks: BLOCKS,
        code: Code::Linear,
        rate: task.rate.checked_mul(PAYLOAD_PERCENT).map(|rate| rate / 100).filter(|rate| *rate > 0),
        limit: task.limit,
    }
}
