//! A test of the memory that an agent needs for a long message, in addition to the buffers of its
//! ranks. It must be the only test of its process, because the system counts memory by process.

use cool_nodeagent::engine::{
    EngineConfig, EngineHandle, GroupSpec, MappedCallRequest, MemberSpec, RankMemory, SharedSlice,
};
use cool_types::{ElementType, Operation};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const GROUP: u64 = 1;
const AGENTS: u32 = 4;
const GIB: u64 = 1 << 30;

/// The period of the message in bytes. It is a prime, so that no two chunks are alike.
const PERIOD: usize = 1_048_573;

/// A gibibyte that takes no memory: reading it returns the message, and written bytes are compared
/// with the message.
struct Made {
    /// Two periods, so that every part of the message up to one period is contiguous.
    pattern: Arc<Vec<u8>>,
    written: Arc<AtomicU64>,
}

impl Made {
    fn part(&self, offset: u64, len: usize) -> &[u8] {
        let at = (offset % PERIOD as u64) as usize;
        &self.pattern[at..at + len]
    }
}

impl RankMemory for Made {
    fn bytes(&self) -> u64 {
        GIB
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(self.part(offset, into.len()));
    }

    fn write(&self, offset: u64, from: &[u8]) {
        assert!(self.part(offset, from.len()) == from, "wrong bytes at {offset}");
        self.written.fetch_add(from.len() as u64, Ordering::Relaxed);
    }
}

/// Returns the peak memory of this process in KiB.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line of the peak");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn a_broadcast_of_a_gibibyte_takes_less_than_64_mib_an_agent() {
    let start = |node: u32| EngineHandle::start(EngineConfig::on_loopback(&format!("h{node}"))).unwrap();
    let agents: Vec<EngineHandle> = (0..AGENTS).map(start).collect();
    let member = |(rank, agent): (u32, &EngineHandle)| MemberSpec {
        rank,
        node: format!("h{rank}"),
        incarnation: agent.incarnation(),
        rack: rank / 2,
        ip: Ipv4Addr::LOCALHOST.into(),
        udp_port: agent.udp_port(),
        tcp_port: agent.tcp_port(),
        key: None,
    };
    let spec = GroupSpec {
        id: GROUP,
        epoch: 1,
        members: (0..).zip(&agents).map(member).collect(),
        chunk_bytes: 16 << 10,
        ..GroupSpec::default()
    };
    let pattern: Vec<u8> = (0..PERIOD as u64).map(|i| ((i * i) >> 7) as u8).collect();
    let pattern = Arc::new([&pattern[..], &pattern[..]].concat());
    let written = Arc::new(AtomicU64::new(0));
    for agent in &agents {
        agent.make_group(spec.clone()).await.unwrap();
    }
    let before = most_memory();
    let call = |(rank, agent): (u32, &EngineHandle)| {
        let memory = Arc::new(Made { pattern: Arc::clone(&pattern), written: Arc::clone(&written) });
        agent.call(MappedCallRequest {
            group: GROUP,
            rank,
            operation: Operation::Bcast,
            root: 0,
            element: ElementType::U8,
            reduce: None,
            count: GIB,
            counts: None,
            plan: String::new(),
            input: None,
            output: Some(SharedSlice::new(memory, 0, GIB).unwrap()),
            timeout: None,
            call_number: None,
            watch: false,
            background: false,
        })
    };
    let calls: Vec<_> = (0..).zip(&agents).map(call).collect();
    for call in calls {
        tokio::time::timeout(Duration::from_secs(600), call).await.expect("the call ends").unwrap();
    }
    assert_eq!(written.load(Ordering::Relaxed), u64::from(AGENTS - 1) * GIB);
    let each = (most_memory() - before) / u64::from(AGENTS);
    println!("{each} KiB an agent");
    assert!(each < 64 << 10, "{each} KiB an agent");
}
