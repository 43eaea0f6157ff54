//! Groups that are formed by rendezvous, with simulated agents over real gRPC.

use crate::support::{Controller, FakeAgent};
use cool_controller::timeouts::Timeouts;
use cool_proto::control::{
    Enlist, Enlisted, GroupFailed, RanksLeft, Withdraw, agent_message, controller_message,
};
use std::time::Duration;

const PATIENT: u64 = 60_000;

async fn enlist_rank(agent: &FakeAgent, key: &str, rank: u32, size: u32, timeout_ms: u64) {
    let enlist = Enlist { key: key.into(), rank, size, timeout_ms, ticket: 0 };
    agent.send(agent_message::Body::Enlist(enlist)).await;
}

async fn enlisted(agent: &mut FakeAgent) -> Enlisted {
    match agent.receive().await {
        controller_message::Body::Enlisted(enlisted) => enlisted,
        other => panic!("not enlisted: {other:?}"),
    }
}

#[tokio::test]
async fn a_group_is_formed_by_the_last_rank_and_released_unused() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let mut h3 = FakeAgent::join(&controller, 3).await;
    enlist_rank(&h1, "job 1", 2, 3, PATIENT).await;
    enlist_rank(&h3, "job 1", 1, 3, PATIENT).await;
    enlist_rank(&h3, "another", 0, 2, PATIENT).await;
    enlist_rank(&h1, "job 1", 0, 3, PATIENT).await;
    let group = h1.ready().await;
    assert_eq!(h3.ready().await, group);
    let nodes: Vec<_> = group.members.iter().map(|m| (m.rank, m.node.as_str(), m.rack)).collect();
    assert_eq!(nodes, [(0, "h1", 0), (1, "h3", 1), (2, "h1", 0)]);
    assert_eq!(group.trees.len(), 1);
    let made = Enlisted { key: "job 1".into(), group: group.id, ..Enlisted::default() };
    assert_eq!(enlisted(&mut h1).await, made);
    assert_eq!(enlisted(&mut h3).await, made);
    assert_eq!(controller.groups().await, [group.clone().without_keys()]);

    h1.send(agent_message::Body::Left(RanksLeft { group: group.id, ranks: vec![0], unused: true })).await;
    // The outcome of another group shows that the earlier message has arrived.
    enlist_rank(&h1, "alone", 0, 1, PATIENT).await;
    let alone = h1.ready().await;
    assert_eq!(enlisted(&mut h1).await.group, alone.id);
    assert_eq!(controller.groups().await.len(), 2);
    h3.send(agent_message::Body::Left(RanksLeft { group: group.id, ranks: vec![0], unused: true })).await;
    h1.released().await;
    h3.released().await;
    assert_eq!(controller.network.groups(), [alone.id]);
}

#[tokio::test]
async fn waiting_ranks_are_informed_of_a_failure() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let h2 = FakeAgent::join(&controller, 2).await;
    enlist_rank(&h1, "late", 0, 2, 1).await;
    let failed = enlisted(&mut h1).await;
    assert_eq!((failed.key.as_str(), failed.group), ("late", 0));
    assert!(failed.reason.contains("rank 1 of late did not join in time"), "{}", failed.reason);

    enlist_rank(&h1, "gone", 0, 2, PATIENT).await;
    enlist_rank(&h1, "gone", 0, 2, PATIENT).await;
    let refused = enlisted(&mut h1).await;
    assert_eq!(refused.rank, Some(0));
    assert!(refused.reason.contains("two processes claim to be rank 0"), "{}", refused.reason);
    enlist_rank(&h2, "left", 0, 3, PATIENT).await;
    enlist_rank(&h1, "left", 1, 3, PATIENT).await;
    h1.send(agent_message::Body::Withdraw(Withdraw { key: "gone".into(), rank: 0 })).await;
    // The last of an agent's messages is processed last.
    enlist_rank(&h1, "left", 5, 3, PATIENT).await;
    assert!(enlisted(&mut h1).await.reason.contains("rank 5 of 3"));
    h2.leave().await;
    let failed = enlisted(&mut h1).await;
    assert!(
        failed.reason.contains("rank 0 of left left before all ranks had joined: node h2"),
        "{}",
        failed.reason
    );
}

#[tokio::test]
async fn outcomes_are_reported_by_ticket_to_ranks_of_one_key() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let h2 = FakeAgent::join(&controller, 2).await;
    let with_ticket = |rank, ticket| {
        let enlist = Enlist { key: "again".into(), rank, size: 3, timeout_ms: PATIENT, ticket };
        agent_message::Body::Enlist(enlist)
    };
    h1.send(with_ticket(0, 7)).await;
    h1.send(with_ticket(1, 8)).await;
    // Another process with the same name is refused individually. The refusal also shows that both
    // earlier requests have arrived.
    h1.send(with_ticket(0, 9)).await;
    assert_eq!(enlisted(&mut h1).await.tickets, [9]);
    h2.send(with_ticket(2, 1)).await;
    let group = h1.ready().await;
    h2.send(agent_message::Body::GroupFailed(GroupFailed { group: group.id, reason: "no sockets".into() }))
        .await;
    let failed = enlisted(&mut h1).await;
    assert_eq!((failed.group, failed.tickets.as_slice()), (0, &[7, 8][..]));
}

#[tokio::test]
async fn an_agent_that_cannot_form_the_group_is_named() {
    let controller =
        Controller::with_timeouts(Timeouts { group_ready: Duration::from_secs(60), ..Timeouts::default() })
            .await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let mut h2 = FakeAgent::join(&controller, 2).await;
    enlist_rank(&h1, "a", 0, 2, PATIENT).await;
    enlist_rank(&h2, "a", 1, 2, PATIENT).await;
    let group = h1.ready().await;
    h2.group().await;
    let failed = GroupFailed { group: group.id, reason: "no sockets".into() };
    h2.send(agent_message::Body::GroupFailed(failed)).await;
    for agent in [&mut h1, &mut h2] {
        let enlisted = enlisted(agent).await;
        assert_eq!((enlisted.group, enlisted.reason.as_str()), (0, "h2: no sockets"));
        agent.released().await;
    }
    assert!(controller.groups().await.is_empty());
}
