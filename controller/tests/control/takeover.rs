//! A controller that is killed and restarted, as seen by its agents and callers.

use crate::support::{Controller, FakeAgent, event, finished, job, registration};
use cool_controller::timeouts::Timeouts;
use cool_proto::control::{Description, Exited, Group, Held, HeldGroups, Register, agent_message, job_event};
use cool_proto::{CONTROL_MESSAGE_BYTES_MAX, features};
use prost::Message;
use prost::bytes::Bytes;
use std::time::Duration;
use tonic::Code;

/// Starts a job with one rank on each of h1 and h3 under a controller that is then killed.
async fn orphaned() -> Group {
    let first = Controller::start().await;
    let mut h1 = FakeAgent::join(&first, 1).await;
    let mut h3 = FakeAgent::join(&first, 3).await;
    let _events = first.run(job(2)).await.unwrap();
    let group = h1.ready().await;
    h3.ready().await;
    h1.launched().await;
    h3.launched().await;
    group
}

/// Rejoins with this group, its running ranks, and ranks that exited with these codes.
async fn reconnect(
    controller: &Controller,
    i: u8,
    group: &Group,
    life: u64,
    ranks: &[u32],
    exited: &[(u32, i32)],
) -> FakeAgent {
    let exited = exited.iter().map(|(rank, code)| Exited {
        job: group.job,
        rank: *rank,
        code: *code,
        ..Exited::default()
    });
    // One agent holds the description, and the other the decoded group.
    let (whole, description) = match i {
        3 => (None, Description::from_group(group).unwrap().encode_to_vec().into()),
        _ => (Some(group.clone()), Bytes::new()),
    };
    let held = Held {
        group: whole,
        description,
        controller: life,
        ranks: ranks.to_vec(),
        exited: exited.collect(),
        ..Held::default()
    };
    let mut register = registration(i);
    register.held = vec![held];
    let mut agent = FakeAgent::try_join(controller, register).await.unwrap();
    agent.registered().await;
    agent
}

#[tokio::test]
async fn a_job_continues_under_another_controller() {
    let group = orphaned().await;
    let second = Controller::start().await;
    assert_eq!(second.attend(group.job).await.unwrap_err().code(), Code::NotFound);
    // One rank exited while there was no controller.
    let mut h1 = reconnect(&second, 1, &group, 1, &[], &[(0, 0)]).await;
    let mut h3 = reconnect(&second, 3, &group, 1, &[1], &[]).await;
    let mut events = loop {
        match second.attend(group.job).await {
            Ok(events) => break events,
            Err(status) => assert_eq!(status.code(), Code::NotFound),
        }
    };
    assert!(matches!(event(&mut events).await, job_event::Body::Exited(e) if (e.rank, e.code) == (0, 0)));
    assert_eq!(second.network.groups(), [group.id]);
    assert_eq!(second.groups().await.len(), 1);
    h3.print(group.job, 1, "still here").await;
    assert!(matches!(event(&mut events).await, job_event::Body::Output(o) if o.line == b"still here"));
    h3.exit(group.job, 1, 0).await;
    assert_eq!(finished(&mut events).await.code, 0);
    h1.released().await;
    h3.released().await;
    assert!(second.network.groups().is_empty());
    let mut events = second.run(job(1)).await.unwrap();
    let next = h1.ready().await;
    assert!(next.id > group.id && next.job > group.job);
    h1.launched().await;
    h1.exit(next.job, 0, 3).await;
    assert_eq!(finished(&mut events).await.code, 3);
}

#[tokio::test]
async fn a_job_resumes_from_reports_larger_than_a_message() {
    let group = orphaned().await;
    let second = Controller::start().await;
    let _h3 = reconnect(&second, 3, &group, 1, &[1], &[]).await;
    // Long entries without use.
    let long = || Held { user: "u".repeat(CONTROL_MESSAGE_BYTES_MAX / 2), ..Held::default() };
    let register = Register { held: vec![long()], ..registration(1) };
    let mut h1 = FakeAgent::try_join(&second, register).await.unwrap();
    assert_ne!(h1.registered().await.features & features::HELD_GROUPS, 0);
    let last = Held { group: Some(group.clone()), controller: 1, ranks: vec![0], ..Held::default() };
    for held in [vec![long()], vec![last]] {
        h1.send(agent_message::Body::Held(HeldGroups { held })).await;
    }
    let mut events = loop {
        if let Ok(events) = second.attend(group.job).await {
            break events;
        }
    };
    h1.print(group.job, 0, "still here").await;
    assert!(matches!(event(&mut events).await, job_event::Body::Output(o) if o.line == b"still here"));
}

#[tokio::test]
async fn a_rank_that_failed_during_a_restart_fails_the_job() {
    let group = orphaned().await;
    let second = Controller::start().await;
    let _h1 = reconnect(&second, 1, &group, 1, &[], &[(0, 9)]).await;
    let mut h3 = reconnect(&second, 3, &group, 1, &[1], &[]).await;
    let mut events = loop {
        if let Ok(events) = second.attend(group.job).await {
            break events;
        }
    };
    h3.killed().await;
    h3.send(agent_message::Body::Exited(Exited { job: group.job, rank: 1, signal: 15, ..Exited::default() }))
        .await;
    let end = finished(&mut events).await;
    assert_eq!((end.code, end.rank), (9, Some(0)));
}

#[tokio::test]
async fn groups_and_jobs_that_are_not_reclaimed_are_ended() {
    let wait = Duration::from_millis(200);
    let timeouts = Timeouts { agent: wait, caller: wait, ..Timeouts::default() };
    // A node does not reconnect.
    let (group, second) = (orphaned().await, Controller::with_timeouts(timeouts).await);
    let mut h1 = reconnect(&second, 1, &group, 1, &[0], &[]).await;
    h1.killed().await;
    h1.released().await;
    assert_eq!(second.attend(group.job).await.unwrap_err().code(), Code::NotFound);
    // Both nodes reconnect, but the caller of the job does not.
    let (group, second) = (orphaned().await, Controller::with_timeouts(timeouts).await);
    let mut h1 = reconnect(&second, 1, &group, 1, &[0], &[]).await;
    let mut h3 = reconnect(&second, 3, &group, 1, &[1], &[]).await;
    h1.killed().await;
    h3.killed().await;
    h1.exit(group.job, 0, 1).await;
    h3.exit(group.job, 1, 1).await;
    h1.released().await;
    h3.released().await;
    assert!(second.groups().await.is_empty());
}

#[tokio::test]
async fn numbers_that_no_controller_assigns_are_not_continued() {
    let group = Group { id: u64::MAX, ..orphaned().await };
    let second = Controller::start().await;
    let mut h1 = reconnect(&second, 1, &group, 1, &[0], &[]).await;
    h1.killed().await;
    h1.released().await;
    let mut events = second.run(job(1)).await.unwrap();
    let next = h1.ready().await;
    h1.launched().await;
    assert!(next.id > 0 && next.id < u64::MAX, "{}", next.id);
    h1.exit(next.job, 0, 0).await;
    finished(&mut events).await;
}

#[tokio::test]
async fn a_node_that_reconnects_too_late_drops_its_groups() {
    let timeouts = Timeouts { agent: Duration::from_millis(100), ..Timeouts::default() };
    let controller = Controller::with_timeouts(timeouts).await;
    // An agent is connected, so the controller is not isolated.
    let _h3 = FakeAgent::join(&controller, 3).await;
    let mut h1 = FakeAgent::try_join(&controller, registration(1)).await.unwrap();
    let registered = h1.registered().await;
    let mut events = controller.run(job(1)).await.unwrap();
    let group = h1.ready().await;
    h1.launched().await;
    drop(h1);
    let end = finished(&mut events).await;
    assert_eq!(end.reason, "node h1 was lost: its agent has been disconnected for 100ms");
    let mut h1 = reconnect(&controller, 1, &group, registered.controller, &[0], &[]).await;
    h1.killed().await;
    h1.released().await;
}

#[tokio::test]
async fn an_enlisted_group_is_released_when_all_ranks_left() {
    let mut group = orphaned().await;
    group.job = 0;
    let second = Controller::start().await;
    let mut h1 = reconnect(&second, 1, &group, 1, &[0], &[]).await;
    let mut h3 = reconnect(&second, 3, &group, 1, &[], &[]).await;
    h1.send(agent_message::Body::Left(cool_proto::control::RanksLeft {
        group: group.id,
        ranks: vec![0],
        unused: true,
    }))
    .await;
    h1.released().await;
    h3.released().await;
    assert!(second.groups().await.is_empty());
}
