//! Agents that join, are rejected, leave and rejoin, over real gRPC.

use crate::support::{Controller, FakeAgent, finished, job, registration, soon};
use cool_fabric::{Fabric, TopologySnapshot};
use cool_proto::control::agent_message::Body;
use cool_proto::control::{Group, Held, LldpNeighbor, Member, NeighborChanged, Register, TopologyRequest};
use std::sync::Arc;
use tonic::Code;

async fn refusal(controller: &Controller, register: Register) -> tonic::Status {
    FakeAgent::try_join(controller, register).await.err().expect("the agent is admitted")
}

#[tokio::test]
async fn connected_nodes_appear_in_the_topology() {
    let controller = Controller::start().await;
    let h1 = FakeAgent::join(&controller, 1).await;
    let _h3 = FakeAgent::join(&controller, 3).await;
    let mut client = controller.client().await;
    let mut nodes = async || client.get_topology(TopologyRequest {}).await.unwrap().into_inner().nodes;
    let before = nodes().await;
    let seen: Vec<_> =
        before.iter().map(|n| (n.name.as_str(), n.ip.as_str(), n.rack, n.slots, n.located)).collect();
    assert_eq!(seen, [("h1", "10.0.0.1", 0, 2, true), ("h3", "10.0.0.3", 1, 2, true)]);

    h1.leave().await;
    // The name becomes free once the node has been removed everywhere.
    let back = crate::support::soon("the name", async {
        loop {
            match FakeAgent::try_join(&controller, registration(1)).await {
                Ok(agent) => break agent,
                Err(status) => assert_eq!(status.code(), Code::AlreadyExists),
            }
        }
    });
    let _h1 = back.await;
    let after = nodes().await;
    assert_eq!(after.len(), 2);
    assert_ne!(after[0].id, before[0].id, "a number is never used twice");
}

#[tokio::test]
async fn a_changed_neighbor_reaches_the_network() {
    let controller = Controller::start().await;
    let agent = FakeAgent::join(&controller, 1).await;
    let mut network = controller.network.watch();
    let mut neighbor_of = async |neighbor: Option<LldpNeighbor>, chassis: Option<&str>| {
        agent.send(Body::NeighborChanged(NeighborChanged { neighbor })).await;
        let is_expected = |network: &Arc<TopologySnapshot>| {
            network.reported_racks.get("h1").is_some_and(|rack| {
                rack.neighbor.as_ref().map(|neighbor| neighbor.chassis.as_str()) == chassis
            })
        };
        soon("the neighbor", network.wait_for(is_expected)).await.unwrap();
    };
    let neighbor = |chassis: &str| {
        Some(LldpNeighbor { chassis: chassis.into(), port: "e1".into(), system_name: String::new() })
    };
    neighbor_of(neighbor("leaf1"), Some("leaf1")).await;
    // Texts that a terminal must not show are refused.
    neighbor_of(neighbor("\x1b[2J"), Some("leaf1")).await;
    neighbor_of(None, None).await;
}

#[tokio::test]
async fn a_second_agent_with_the_same_name_is_refused() {
    let controller = Controller::start().await;
    let mut first = FakeAgent::join(&controller, 1).await;
    let refused = refusal(&controller, registration(1)).await;
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().contains("\"h1\" is already connected"), "{refused}");
    // The first agent is not affected.
    let mut events = controller.run(job(1)).await.unwrap();
    let group = first.ready().await;
    first.launched().await;
    first.exit(group.job, 0, 0).await;
    assert_eq!(finished(&mut events).await.code, 0);
}

#[tokio::test]
async fn an_agent_of_another_version_is_refused_and_named() {
    let controller = Controller::start().await;
    let refused = refusal(&controller, Register { version: 77, ..registration(1) }).await;
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("\"h1\" speaks version 77"), "{refused}");
}

#[tokio::test]
async fn an_agent_with_an_invalid_registration_is_refused() {
    let controller = Controller::start().await;
    let refused = refusal(&controller, Register { ip: "nowhere".into(), ..registration(1) }).await;
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("\"nowhere\""), "{refused}");
}

#[tokio::test]
async fn an_agent_with_many_large_groups_can_rejoin() {
    let controller = Controller::start().await;
    let member = |rank| Member { rank, node: format!("node-in-a-rack-{rank}"), ..Member::default() };
    let group = |id| Group { id, members: (0..10_000).map(member).collect(), ..Group::default() };
    let held: Vec<Held> =
        (1..=24).map(|id| Held { group: Some(group(id)), controller: 99, ..Held::default() }).collect();
    let names = held.iter().flat_map(|held| &held.group).flat_map(|group| &group.members);
    let bytes: usize = names.map(|member| member.node.len()).sum();
    assert!(bytes > 4 << 20, "{bytes}: gRPC would take it by default");
    FakeAgent::try_join(&controller, Register { held, ..registration(1) }).await.unwrap();
}

#[test]
fn a_frozen_agent_counts_as_disconnected() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ours, theirs) = (tokio::runtime::Runtime::new().unwrap(), runtime());
    let controller = ours.block_on(Controller::start());
    let _frozen = theirs.block_on(FakeAgent::join(&controller, 1));
    // Nothing drives `theirs` any more: its sockets stay open, but its pings remain without a
    // response.
    ours.block_on(async {
        let mut client = controller.client().await;
        let away = async {
            loop {
                let nodes = client.get_topology(TopologyRequest {}).await.unwrap().into_inner().nodes;
                match nodes[0].away_ms {
                    Some(_) => return nodes[0].located,
                    None => tokio::task::yield_now().await,
                }
            }
        };
        assert!(crate::support::soon("that it is away", away).await);
    });
}
