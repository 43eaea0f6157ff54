//! Keys of groups: which agents and tools receive them.

use crate::support::{Controller, FakeAgent, finished, registration};
use cool_proto::control::{Group, GroupsRequest, JobSpec, Register, job_event::Body};
use cool_proto::features;

/// Runs a job on h1 and h2. Returns its group as both agents and a tool receive it.
async fn received_groups(registration_of_h2: Register) -> ([Group; 2], [Group; 2]) {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let mut h2 = FakeAgent::try_join(&controller, registration_of_h2).await.unwrap();
    h2.registered().await;
    let spec = JobSpec { ranks: 4, ranks_per_node: 2, program: "true".into(), ..JobSpec::default() };
    let mut events = controller.run(spec).await.unwrap();
    let (first, second) = (h1.ready().await, h2.ready().await);
    let shown = controller.client().await.list_groups(GroupsRequest {}).await.unwrap().into_inner().groups;
    h1.launched().await;
    h2.launched().await;
    let started = loop {
        if let Some(Body::Started(started)) = events.message().await.unwrap().and_then(|event| event.body) {
            break started.group.unwrap();
        }
    };
    for rank in 0..4 {
        let agent = if first.members[rank as usize].node == "h1" { &mut h1 } else { &mut h2 };
        agent.exit(first.job, rank, 0).await;
    }
    assert_eq!(finished(&mut events).await.code, 0);
    ([first, second], [shown[0].clone(), started])
}

#[tokio::test]
async fn the_agents_of_a_group_get_its_key_and_tools_do_not() {
    let (keys, shown) = received_groups(registration(2)).await;
    assert_eq!(keys[0], keys[1]);
    assert_eq!(keys[0].key.as_ref().map(|key| key.value.len()), Some(32));
    let of_nodes = keys[0]
        .members
        .iter()
        .filter_map(|member| Some((member.node.as_str(), member.key.as_ref()?.value[0])));
    let mut of_nodes: Vec<(&str, u8)> = of_nodes.collect();
    of_nodes.sort_unstable();
    assert_eq!(of_nodes, [("h1", 1), ("h2", 2)]);
    assert!(!format!("{keys:?}").contains(&format!("{:?}", [1, 1, 1])), "keys are not shown");
    for group in shown {
        assert!(group.key.is_none() && group.members.iter().all(|member| member.key.is_none()));
    }
}

#[tokio::test]
async fn agents_connect_in_parallel_unless_one_of_them_is_old() {
    let parallel = async |features| {
        let ([group, other], _) = received_groups(Register { features, ..registration(2) }).await;
        assert_eq!(group, other);
        group.connections_per_hop
    };
    let earlier = features::ALL & !features::PARALLEL_CONNECTIONS;
    let counts = [parallel(features::ALL).await, parallel(earlier).await, parallel(0).await];
    assert_eq!(counts, [8, 1, 1], "the controller's option is 8");
}

#[tokio::test]
async fn a_large_group_has_no_agent_keys_unless_an_agent_is_old() {
    for (features, expected) in [(features::ALL, 0), (features::TAGS, 3)] {
        let controller = Controller::start().await;
        let mut h1 = FakeAgent::join(&controller, 1).await;
        let _h2 = FakeAgent::join(&controller, 2).await;
        let mut h3 =
            FakeAgent::try_join(&controller, Register { features, ..registration(3) }).await.unwrap();
        h3.registered().await;
        let spec = JobSpec { ranks: 3, ranks_per_node: 1, program: "true".into(), ..JobSpec::default() };
        let _events = controller.run(spec).await.unwrap();
        let group = h1.group().await;
        assert_eq!(group, h3.group().await);
        let keys = group.members.iter().filter(|member| member.key.is_some()).count();
        assert_eq!((keys, group.on_demand, group.key.is_some()), (expected, expected == 0, true));
    }
}

#[tokio::test]
async fn a_group_with_an_agent_of_an_earlier_release_has_no_key() {
    let ([with, _], _) = received_groups(Register { features: 0, key: None, ..registration(2) }).await;
    assert!(with.key.is_none());
    let (keyed, _) = received_groups(registration(2)).await;
    assert_eq!(with.chunk_bytes, keyed[0].chunk_bytes + 12);
}
