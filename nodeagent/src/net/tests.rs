//! Engines over real sockets on loopback: chains only, since loopback has no trees.

use crate::engine::{EngineConfig, EngineHandle, GroupSpec, MemberSpec, StartError};
use crate::fault_injection::Losses;
use cool_collective::CostModel;
use cool_engine::testing::{Collective, OPERATIONS};
use cool_proto::local::{Failure, Operation, Stats, failure::Kind};
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::time::timeout;

const GROUP: u64 = 3;

/// The node of each rank.
const PLACES: [usize; 5] = [1, 0, 2, 0, 1];

fn config(node: usize) -> EngineConfig {
    EngineConfig::on_loopback(&format!("h{node}"))
}

async fn engines() -> Vec<EngineHandle> {
    engines_that_lose(|_| None).await
}

async fn engines_that_lose(losses: impl Fn(usize) -> Option<Losses>) -> Vec<EngineHandle> {
    let start = |node| EngineHandle::start(EngineConfig { losses: losses(node), ..config(node) }).unwrap();
    let engines: Vec<EngineHandle> = (0..3).map(start).collect();
    let member = |(rank, node): (u32, usize)| MemberSpec {
        rank,
        node: format!("h{node}"),
        rack: node as u32 / 2,
        ip: Ipv4Addr::LOCALHOST,
        udp_port: engines[node].udp_port(),
        tcp_port: engines[node].tcp_port(),
    };
    let spec = GroupSpec {
        id: GROUP,
        epoch: 1,
        members: (0..).zip(PLACES).map(member).collect(),
        trees: Vec::new(),
        chunk_bytes: 8 * 1024,
        host_bytes_per_second: 0,
        cost_model: CostModel::default(),
    };
    for engine in &engines {
        engine.make_group(spec.clone()).await.unwrap();
    }
    engines
}

/// All ranks that `calls` names make a call; answers in their order.
async fn call(
    engines: &[EngineHandle],
    collective: &Collective,
    calls: impl Fn(u32) -> bool,
) -> Vec<Result<Stats, Failure>> {
    let requests = collective.requests.iter().filter(|request| calls(request.rank));
    let open: Vec<_> = requests.map(|r| engines[PLACES[r.rank as usize]].call(r.clone())).collect();
    let mut done = Vec::new();
    for call in open {
        done.push(timeout(Duration::from_secs(120), call).await.expect("every call ends"));
    }
    done
}

#[tokio::test]
async fn every_operation_works_over_sockets() {
    every_operation_works(&engines().await, &[0, 10, 40_000, 200_000]).await;
}

#[tokio::test]
async fn every_operation_works_where_datagrams_are_thrown_away() {
    let losses = |node| Some(format!("0.1:{node}").parse().unwrap());
    every_operation_works(&engines_that_lose(losses).await, &[10, 40_000]).await;
}

async fn every_operation_works(engines: &[EngineHandle], counts: &[u64]) {
    for &count in counts {
        for operation in OPERATIONS {
            let collective = Collective::new(GROUP, 5, operation, 3, count, 1);
            for result in call(engines, &collective, |_| true).await {
                assert!(result.is_ok(), "{operation:?} of {count}: {result:?}");
            }
            collective.check();
        }
    }
}

#[tokio::test]
async fn an_engine_that_stops_is_missed_by_the_others() {
    let mut engines = engines().await;
    let collective = Collective::new(GROUP, 5, Operation::Barrier, 0, 0, 1);
    assert!(call(&engines, &collective, |_| true).await.iter().all(Result::is_ok));
    let last = engines.pop();
    let others = call(&engines, &collective, |rank| PLACES[rank as usize] != 2);
    let (others, ()) = tokio::join!(others, async { drop(last) });
    for result in others {
        let failed = result.unwrap_err();
        assert_eq!((failed.kind(), &failed.ranks[..]), (Kind::Lost, &[2][..]), "{}", failed.message);
        assert!(failed.message.contains("node h2"), "{}", failed.message);
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let first = EngineHandle::start(config(0)).unwrap();
    let taken = EngineConfig { udp_port: first.udp_port(), ..config(1) };
    let error = EngineHandle::start(taken).unwrap_err();
    assert!(matches!(&error, StartError::Bind { protocol: "UDP", .. }), "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{}", first.udp_port())), "{error}");
}
