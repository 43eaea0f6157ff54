//! Members on loopback sockets of this machine, with real bytes.

use cool_peer::{
    Code, Contact, GenerationStore, InquiryError, KeyPair, Member, MemberRole, PeerProgress, SourceIndex,
    SwarmConfig, SwarmPeer, inquire,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Timeout that is long enough on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, PartialEq)]
enum StorageError {
    Read(u32),
    Keep(u32),
}

/// The description of the content for newcomers. It is longer than one message.
static DESCRIBED: [u8; 200_000] = [7; 200_000];

/// Stores generations in memory. Storing `cannot_keep` fails, and so does reading one that is not
/// held.
#[derive(Debug, Default)]
struct Shelf {
    held: Mutex<BTreeMap<u32, Vec<u8>>>,
    cannot_keep: Option<u32>,
    /// The bytes with which generations are compared. Generations without an entry are always
    /// right.
    right: BTreeMap<u32, Vec<u8>>,
}

impl GenerationStore for Shelf {
    type Error = StorageError;

    fn read(&self, generation: u32) -> Result<Vec<u8>, StorageError> {
        self.held.lock().unwrap().get(&generation).cloned().ok_or(StorageError::Read(generation))
    }

    fn is_right(&self, generation: u32, bytes: &[u8]) -> bool {
        self.right.get(&generation).is_none_or(|right| right == bytes)
    }

    fn keep(&self, generation: u32, bytes: &[u8]) -> Result<(), StorageError> {
        if self.cannot_keep == Some(generation) {
            return Err(StorageError::Keep(generation));
        }
        self.held.lock().unwrap().insert(generation, bytes.to_vec());
        Ok(())
    }

    fn describe(&self) -> Vec<u8> {
        DESCRIBED.to_vec()
    }
}

/// Returns a socket and a key pair for a member.
fn listener() -> (TcpListener, KeyPair) {
    (TcpListener::bind(("127.0.0.1", 0)).unwrap(), KeyPair::generate().unwrap())
}

/// A swarm of members in racks. The first member is the source.
struct Swarm {
    config: SwarmConfig,
    sockets: Vec<Option<(TcpListener, KeyPair)>>,
    content: BTreeMap<u32, Vec<u8>>,
}

impl Swarm {
    fn new(racks: &[u32], lengths: &[u64], code: Code) -> Swarm {
        let mut chance = ChaCha8Rng::seed_from_u64(5);
        let slots =
            (0..).zip(racks).flat_map(|(rack, slots)| (0..*slots).map(move |slot| Member { rack, slot }));
        let (mut members, mut sockets) = (Vec::new(), Vec::new());
        for member in slots {
            let (socket, key_pair) = listener();
            let contact = Contact { address: socket.local_addr().unwrap(), key: key_pair.public() };
            members.push((member, contact));
            sockets.push(Some((socket, key_pair)));
        }
        let mut content = BTreeMap::new();
        for (generation, length) in (0..).zip(lengths) {
            let mut bytes = vec![0; *length as usize];
            chance.fill(&mut bytes[..]);
            content.insert(generation, bytes);
        }
        let config = SwarmConfig {
            key: [3; 32],
            seed: 11,
            members,
            generations: lengths.to_vec(),
            blocks: 8,
            code,
            rate: None,
            limit: None,
        };
        Swarm { config, sockets, content }
    }

    fn member(&self, number: usize) -> Member {
        self.config.members[number].0
    }

    fn contact(&self, number: usize) -> Contact {
        self.config.members[number].1
    }

    /// Starts a member that already holds some generations.
    fn start(&mut self, number: usize, here: &[u32]) -> (SwarmPeer<Shelf>, Arc<Shelf>) {
        let source = (number == 0).then_some(SourceIndex { index: 0, of: 1 });
        let held: BTreeMap<u32, Vec<u8>> = match source {
            Some(_) => self.content.clone(),
            None => here.iter().map(|generation| (*generation, self.content[generation].clone())).collect(),
        };
        let shelf = Shelf { held: Mutex::new(held), right: self.content.clone(), ..Shelf::default() };
        self.start_with(number, here, shelf, source)
    }

    fn start_with(
        &mut self,
        number: usize,
        here: &[u32],
        shelf: Shelf,
        source: Option<SourceIndex>,
    ) -> (SwarmPeer<Shelf>, Arc<Shelf>) {
        let shelf = Arc::new(shelf);
        (self.start_content(number, here, Arc::clone(&shelf), source), shelf)
    }

    fn start_content<C: GenerationStore>(
        &mut self,
        number: usize,
        here: &[u32],
        content: Arc<C>,
        source: Option<SourceIndex>,
    ) -> SwarmPeer<C> {
        let (socket, key_pair) = self.sockets[number].take().unwrap();
        let role = MemberRole {
            me: self.member(number),
            socket,
            key_pair,
            here: here.to_vec(),
            source,
            rate: None,
            late: false,
        };
        SwarmPeer::start(self.config.clone(), role, content).unwrap()
    }

    fn start_all(&mut self) -> Vec<(SwarmPeer<Shelf>, Arc<Shelf>)> {
        (0..self.config.members.len()).map(|number| self.start(number, &[])).collect()
    }

    /// Waits until a member has stored all bytes, and checks them.
    fn await_whole(&self, peer: &SwarmPeer<Shelf>, shelf: &Shelf) {
        let progress = peer.wait_until(PeerProgress::is_whole, PATIENCE);
        assert!(progress.is_whole(), "{progress:?}");
        assert!(*shelf.held.lock().unwrap() == self.content, "the bytes differ");
    }
}

const LENGTHS: [u64; 6] = [80_000, 100_001, 7, 65_536, 200_000, 1];

#[test]
fn every_member_receives_every_byte_with_every_code() {
    for code in [Code::Linear, Code::RarestBlock, Code::RandomBlock] {
        let mut swarm = Swarm::new(&[3, 1, 2], &LENGTHS, code);
        let peers = swarm.start_all();
        for (peer, shelf) in &peers {
            swarm.await_whole(peer, shelf);
        }
        for (peer, _) in peers {
            assert_eq!(peer.stop(), Ok(()), "{code:?}");
        }
    }
}

#[test]
fn members_serve_the_generations_that_they_started_with() {
    let mut swarm = Swarm::new(&[2, 2], &LENGTHS, Code::Linear);
    // There is no source; two members together hold everything.
    let one = swarm.start(1, &[0, 2, 4]);
    let two = swarm.start(2, &[1, 3, 4, 5]);
    let three = swarm.start(3, &[]);
    for (peer, shelf) in [&one, &two, &three] {
        swarm.await_whole(peer, shelf);
    }
}

#[test]
fn members_may_leave_and_a_late_one_receives_everything() {
    let mut swarm = Swarm::new(&[3, 2], &[300_000; 8], Code::Linear);
    // The late member is not announced, so the others do not know about it before it joins.
    let late = swarm.config.members.pop().unwrap();
    let mut peers = swarm.start_all();
    let (leaves, _) = peers.remove(2);
    assert_eq!(leaves.stop(), Ok(()));
    let gone = swarm.member(2);
    peers.iter().for_each(|(peer, _)| peer.leave(gone));
    swarm.await_whole(&peers[1].0, &peers[1].1);
    swarm.config.members.push(late);
    peers.iter().for_each(|(peer, _)| peer.join(late.0, late.1));
    let (peer, shelf) = swarm.start(4, &[]);
    swarm.await_whole(&peer, &shelf);
    for (peer, shelf) in &peers {
        swarm.await_whole(peer, shelf);
    }
}

#[test]
fn a_late_member_inquires_and_the_others_wait_for_it() {
    let mut swarm = Swarm::new(&[2, 2], &[300_000; 8], Code::Linear);
    let mut peers = swarm.start_all();
    for (peer, shelf) in &peers {
        swarm.await_whole(peer, shelf);
    }
    let gone = peers.remove(1).0;
    assert_eq!(gone.stop(), Ok(()));
    let left = swarm.member(1);
    peers.iter().for_each(|(peer, _)| peer.leave(left));
    let me = Member { rack: 0, slot: 2 };
    // The first of these members has left.
    let contacts = [swarm.contact(1), swarm.contact(2)];
    let (socket, key_pair) = listener();
    let inquire = |contacts: &[Contact], key| inquire(contacts, key, (me, &key_pair));
    assert!(matches!(inquire(&contacts[..1], [3; 32]), Err(InquiryError::Silent { members: 1, .. })));
    assert!(matches!(inquire(&contacts, [4; 32]), Err(InquiryError::Silent { members: 2, .. })), "wrong key");
    let told = inquire(&contacts, [3; 32]).unwrap();
    assert!(told.content == DESCRIBED && told.config.generations == swarm.config.generations);
    let waits = |(peer, _): &&(SwarmPeer<Shelf>, Arc<Shelf>)| peer.progress().guests == 1;
    assert_eq!(peers.iter().filter(waits).count(), 1, "one member waits for it before it sends a hello");
    let role = MemberRole { me, socket, key_pair, here: vec![3], source: None, rate: None, late: true };
    let shelf =
        Arc::new(Shelf { held: Mutex::new([(3, swarm.content[&3].clone())].into()), ..Shelf::default() });
    let late = SwarmPeer::start(told.config, role, Arc::clone(&shelf)).unwrap();
    swarm.await_whole(&late, &shelf);
    for (peer, _) in &peers {
        // It has reported to them that it holds everything.
        let progress = peer.wait_until(|progress| progress.guests == 0 && !progress.wanted, PATIENCE);
        assert!(progress.guests == 0 && !progress.wanted, "{progress:?}");
    }
    peers.into_iter().for_each(|(peer, _)| assert_eq!(peer.stop(), Ok(())));
    assert!(late.wait_until(|progress| progress.alone, PATIENCE).alone);
}

#[test]
fn a_member_that_cannot_store_fails_and_the_others_continue() {
    let mut swarm = Swarm::new(&[3], &LENGTHS, Code::Linear);
    let source = swarm.start(0, &[]);
    let full = Shelf { cannot_keep: Some(4), ..Shelf::default() };
    let (full, _) = swarm.start_with(1, &[], full, None);
    let (peer, shelf) = swarm.start(2, &[]);
    swarm.await_whole(&peer, &shelf);
    let progress = full.wait_until(|progress| progress.ended, PATIENCE);
    assert!(progress.ended && !progress.is_whole(), "{progress:?}");
    assert_eq!(full.stop(), Err(StorageError::Keep(4)));
    assert_eq!(source.0.stop(), Ok(()));
}

#[test]
fn only_the_lying_source_is_expelled() {
    let mut swarm = Swarm::new(&[3, 2], &LENGTHS, Code::Linear);
    let wrong = swarm.content.iter().map(|(generation, bytes)| {
        let wrong = bytes.iter().map(|byte| byte ^ u8::from(generation % 2 == 0));
        (*generation, wrong.collect())
    });
    let lying = Shelf { held: Mutex::new(wrong.collect()), ..Shelf::default() };
    let liar = swarm.start_with(1, &[], lying, Some(SourceIndex { index: 1, of: 2 })).0;
    let others: Vec<_> = (2..5).map(|number| swarm.start(number, &[])).collect();
    for (peer, _) in &others {
        peer.wait_until(|progress| progress.expelled > 0, PATIENCE);
        assert_eq!(peer.expelled(), [swarm.member(1)].into());
    }
    let honest = swarm.start(0, &[]);
    for (peer, shelf) in &others {
        swarm.await_whole(peer, shelf);
        assert_eq!(peer.expelled(), [swarm.member(1)].into());
    }
    others.into_iter().chain([honest]).for_each(|(peer, _)| assert_eq!(peer.stop(), Ok(())));
    assert_eq!(liar.stop(), Ok(()));
}

/// The lengths of the generations of a content of 1 TiB, and of those that are transferred of it.
const LONG_CONTENT_BYTES: u64 = 1 << 40;
const LONG_GENERATION_BYTES: u64 = 4 << 20;
const TRANSFERRED_BYTES: u64 = 24 * LONG_GENERATION_BYTES;
const LONG_GENERATION_BLOCKS: usize = 32;

/// A content whose bytes follow from their generation and block, and that is stored nowhere.
#[derive(Default)]
struct ComputedContent {
    read_bytes: AtomicU64,
}

fn computed_generation(generation: u32) -> Vec<u8> {
    let block = |block: usize| {
        let page = [generation.to_le_bytes(), (block as u32).to_le_bytes()].concat();
        page.repeat(LONG_GENERATION_BYTES as usize / LONG_GENERATION_BLOCKS / page.len())
    };
    (0..LONG_GENERATION_BLOCKS).map(block).collect::<Vec<_>>().concat()
}

impl GenerationStore for ComputedContent {
    type Error = StorageError;

    fn read(&self, generation: u32) -> Result<Vec<u8>, StorageError> {
        self.read_bytes.fetch_add(LONG_GENERATION_BYTES, Ordering::Relaxed);
        Ok(computed_generation(generation))
    }

    fn is_right(&self, generation: u32, bytes: &[u8]) -> bool {
        bytes == computed_generation(generation)
    }

    fn keep(&self, _: u32, _: &[u8]) -> Result<(), StorageError> {
        Ok(())
    }

    fn describe(&self) -> Vec<u8> {
        Vec::new()
    }
}

#[test]
fn a_content_of_1_tib_needs_bounded_memory_and_few_reads() {
    let mut swarm = Swarm::new(&[2], &[], Code::Linear);
    swarm.config.generations =
        vec![LONG_GENERATION_BYTES; (LONG_CONTENT_BYTES / LONG_GENERATION_BYTES) as usize];
    swarm.config.blocks = LONG_GENERATION_BLOCKS as u16;
    let [(source, content), (peer, _)] = [0, 1].map(|number| {
        let content = Arc::new(ComputedContent::default());
        let source = (number == 0).then_some(SourceIndex { index: 0, of: 1 });
        (swarm.start_content(number, &[], Arc::clone(&content), source), content)
    });
    let lacking = LONG_CONTENT_BYTES - TRANSFERRED_BYTES;
    let progress = peer.wait_until(|progress| progress.lacking <= lacking, PATIENCE);
    assert!(progress.lacking <= lacking, "{progress:?}");
    let (read, sent) = (content.read_bytes.load(Ordering::Relaxed), source.progress().sent);
    assert!(read < 2 * sent, "{read} bytes were read for {sent} that were sent");
    let peak = source.memory_peak() as u64;
    assert!(peak < TRANSFERRED_BYTES * 3 / 4, "{peak} bytes were held");
    assert_eq!((source.stop(), peer.stop()), (Ok(()), Ok(())));
}

#[test]
fn a_liar_in_the_name_of_another_member_has_no_effect() {
    let mut swarm = Swarm::new(&[4], &LENGTHS, Code::Linear);
    let wrong = swarm.content.iter().map(|(generation, bytes)| (*generation, vec![1; bytes.len()]));
    let lying = Arc::new(Shelf { held: Mutex::new(wrong.collect()), ..Shelf::default() });
    // It knows all that members know, and greets each of them as member 2 before that one is there.
    let (socket, key_pair) = listener();
    let source = Some(SourceIndex { index: 0, of: 1 });
    let me = swarm.member(2);
    let role = MemberRole { me, socket, key_pair, here: Vec::new(), source, rate: None, late: true };
    let liar = SwarmPeer::start(swarm.config.clone(), role, lying).unwrap();
    let mut peers: Vec<_> = [1, 3].map(|number| swarm.start(number, &[])).into();
    peers.extend([2, 0].map(|number| swarm.start(number, &[])));
    for (peer, shelf) in &peers {
        swarm.await_whole(peer, shelf);
    }
    for (peer, _) in peers {
        assert_eq!((peer.expelled().len(), peer.stop()), (0, Ok(())));
    }
    assert_eq!(liar.stop(), Ok(()));
}

#[test]
fn a_source_that_cannot_read_returns_the_error() {
    let mut swarm = Swarm::new(&[2], &LENGTHS, Code::Linear);
    let source = swarm.start_with(0, &[], Shelf::default(), Some(SourceIndex { index: 0, of: 1 })).0;
    let (_peer, _) = swarm.start(1, &[]);
    source.wait_until(|progress| progress.ended, PATIENCE);
    assert!(matches!(source.stop(), Err(StorageError::Read(_))));
}

#[test]
fn strangers_without_the_key_do_no_harm() {
    let mut swarm = Swarm::new(&[2], &LENGTHS, Code::Linear);
    let to = swarm.contact(1);
    let peers = swarm.start_all();
    // A node that sends nothing, one that sends arbitrary bytes, and a member of another swarm.
    let _silent = std::net::TcpStream::connect(to.address).unwrap();
    let mut loud = std::net::TcpStream::connect(to.address).unwrap();
    std::io::Write::write_all(&mut loud, &[7; 5000]).unwrap();
    let mut other = Swarm::new(&[2], &LENGTHS, Code::Linear);
    other.config.key = [4; 32];
    other.config.members[1].1 = to;
    let (stranger, _) = other.start(0, &[]);
    for (peer, shelf) in &peers {
        swarm.await_whole(peer, shelf);
    }
    assert_eq!(stranger.stop(), Ok(()));
}
