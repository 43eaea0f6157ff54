//! Survivors of groups, with simulated agents over real gRPC.

use crate::support::{Controller, FakeAgent};
use cool_proto::control::{
    Enlist, Group, GroupReady, RanksLeft, Recover, Recovered, agent_message, controller_message,
};

const PATIENT: u64 = 60_000;

/// Forms a group with one rank on each of h1 to h4.
async fn group(controller: &Controller) -> (Vec<FakeAgent>, Group) {
    let mut agents = Vec::new();
    for host in 1..=4 {
        let agent = FakeAgent::join(controller, host).await;
        let rank = host as u32 - 1;
        let enlist = Enlist { key: "job".into(), rank, size: 4, timeout_ms: PATIENT, ticket: 0 };
        agent.send(agent_message::Body::Enlist(enlist)).await;
        agents.push(agent);
    }
    let mut group = Group::default();
    for agent in &mut agents {
        group = agent.ready().await;
    }
    for agent in &mut agents {
        assert!(matches!(agent.receive().await, controller_message::Body::Enlisted(_)));
    }
    (agents, group)
}

async fn recover(agent: &FakeAgent, group: &Group, rank: u32, timeout_ms: u64, agree: Option<u64>) {
    agent
        .send(agent_message::Body::Recover(Recover {
            group: group.id,
            rank,
            timeout_ms,
            agree,
            ..Recover::default()
        }))
        .await;
}

async fn recovered(agent: &mut FakeAgent) -> Recovered {
    match agent.receive().await {
        controller_message::Body::Recovered(recovered) => recovered,
        other => panic!("not recovered: {other:?}"),
    }
}

#[tokio::test]
async fn survivors_of_a_lost_node_and_rank_form_a_new_group() {
    let controller = Controller::start().await;
    let (mut agents, group) = group(&controller).await;
    recover(&agents[0], &group, 0, PATIENT, Some(0b011)).await;
    recover(&agents[2], &group, 2, PATIENT, Some(0b110)).await;
    agents.remove(1).leave().await;
    let left = RanksLeft { group: group.id, ranks: vec![3], unused: true };
    agents[2].send(agent_message::Body::Left(left)).await;
    let agreed = Recovered { group: group.id, gone: vec![1, 3], flags: 0b010, ..Recovered::default() };
    for agent in &mut agents[..2] {
        assert_eq!(recovered(agent).await, agreed);
    }

    recover(&agents[1], &group, 2, PATIENT, None).await;
    recover(&agents[0], &group, 0, PATIENT, None).await;
    let new = agents[0].ready().await;
    assert_eq!(agents[1].ready().await, new);
    let nodes: Vec<_> = new.members.iter().map(|m| (m.rank, m.node.as_str())).collect();
    assert_eq!(nodes, [(0, "h1"), (1, "h3")]);
    let made = Recovered { flags: 0, new_group: new.id, ..agreed };
    for agent in &mut agents[..2] {
        assert_eq!(recovered(agent).await, made);
    }
    // Both groups are released when no node uses them any more.
    for (agent, rank) in [(0, 0), (1, 2)] {
        let left = RanksLeft { group: group.id, ranks: vec![rank], unused: true };
        agents[agent].send(agent_message::Body::Left(left)).await;
    }
    for agent in &mut agents {
        agent.released().await;
    }
    assert_eq!(controller.network.groups(), [new.id]);
}

#[tokio::test]
async fn a_node_lost_while_a_group_is_formed_is_left_out() {
    let controller = Controller::start().await;
    let (mut agents, group) = group(&controller).await;
    for (rank, agent) in (0..).zip(&agents) {
        recover(agent, &group, rank, PATIENT, None).await;
    }
    let mut first = Group::default();
    for agent in &mut agents[..3] {
        first = agent.group().await;
        let ready = GroupReady { group: first.id, epoch: first.epoch };
        agent.send(agent_message::Body::GroupReady(ready)).await;
    }
    assert_eq!(first.members.len(), 4);
    agents.pop().unwrap().leave().await;
    for agent in &mut agents {
        agent.released().await;
        let second = agent.ready().await;
        assert_eq!((second.members.len(), second.id), (3, first.id + 1));
    }
    for agent in &mut agents {
        let made = recovered(agent).await;
        assert_eq!((made.gone, made.new_group), (vec![3], first.id + 1));
    }
}

#[tokio::test]
async fn late_and_foreign_survivors_are_refused() {
    let controller = Controller::start().await;
    let (mut agents, group) = group(&controller).await;
    recover(&agents[3], &group, 1, PATIENT, None).await;
    let refused = recovered(&mut agents[3]).await;
    assert_eq!((refused.rank, refused.new_group), (Some(1), 0));
    assert!(refused.failure.contains("rank 1 of group 1 is not on node h4"), "{}", refused.failure);
    recover(&agents[0], &group, 0, 1, Some(1)).await;
    assert_eq!(recovered(&mut agents[0]).await.gone, [1, 2, 3]);
    recover(&agents[3], &group, 3, PATIENT, Some(1)).await;
    let refused = recovered(&mut agents[3]).await;
    assert!(refused.failure.contains("rank 3 counts as lost from group 1"), "{}", refused.failure);
}
