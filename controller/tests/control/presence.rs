//! Agents that disconnect and either reconnect or do not, over real gRPC.

use crate::support::{Controller, FakeAgent, event, finished, job, registration, soon};
use cool_controller::timeouts::Timeouts;
use cool_proto::control::{
    AttendRequest, Enlist, JobEvent, Register, TopologyRequest, agent_message, job_event,
};
use std::time::Duration;
use tonic::{Code, Streaming};

/// Starts a job with one rank on h1 and one on h3.
async fn running(controller: &Controller) -> (FakeAgent, FakeAgent, u64, Streaming<JobEvent>) {
    let (mut h1, mut h3) = (FakeAgent::join(controller, 1).await, FakeAgent::join(controller, 3).await);
    let mut events = controller.run(job(2)).await.unwrap();
    let id = h1.ready().await.job;
    h3.ready().await;
    h1.launched().await;
    h3.launched().await;
    assert!(matches!(event(&mut events).await, job_event::Body::Started(_)));
    (h1, h3, id, events)
}

/// Waits until an agent is disconnected, or connected again.
async fn away(controller: &Controller, node: &str, is_away: bool) {
    let mut client = controller.client().await;
    let seen = async {
        loop {
            let nodes = client.get_topology(TopologyRequest {}).await.unwrap().into_inner().nodes;
            let node = nodes.iter().find(|n| n.name == node).expect("the node is there");
            if node.away_ms.is_some() == is_away {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    soon("the state of the node", seen).await;
}

#[tokio::test]
async fn a_broken_connection_loses_and_repeats_no_message() {
    let controller = Controller::start().await;
    let (h1, h3, id, mut events) = running(&controller).await;
    let session = h1.disconnect();
    away(&controller, "h1", true).await;
    controller.signal(id, 10).await.unwrap();
    // No job may be started on a disconnected node.
    let refused = controller.run(Default::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let refused = controller.run(cool_proto::control::JobSpec { hosts: vec!["h1".into()], ..job(1) }).await;
    assert!(refused.unwrap_err().message().contains("no node h1 is ready; ready nodes: h3"));
    let refused = controller.run(job(1000)).await.unwrap_err();
    assert!(refused.message().ends_with("; disconnected: h1"), "{refused}");
    let (mut h1, registered) = FakeAgent::reconnect(&controller, 1, session).await;
    // It had already reported that it was ready.
    assert_eq!((registered.node, registered.resumed), (session.node, Some(1)));
    assert_eq!(h1.signalled().await.signal, 10);
    away(&controller, "h1", false).await;
    // The connection breaks again before the controller has noticed.
    let session = h1.disconnect();
    let (h1, registered) = FakeAgent::reconnect(&controller, 1, session).await;
    assert_eq!(registered.resumed, Some(1));
    h1.print(id, 0, "still here").await;
    assert!(matches!(event(&mut events).await, job_event::Body::Output(o) if o.line == b"still here"));
    h1.exit(id, 0, 0).await;
    h3.exit(id, 1, 0).await;
    assert_eq!(finished(&mut events).await.code, 0);
}

#[tokio::test]
async fn a_waiting_rank_keeps_waiting_while_disconnected() {
    let controller = Controller::start().await;
    let (h1, mut h3) = (FakeAgent::join(&controller, 1).await, FakeAgent::join(&controller, 3).await);
    let enlist = |rank| {
        agent_message::Body::Enlist(Enlist {
            key: "all".into(),
            rank,
            size: 2,
            timeout_ms: 60_000,
            ticket: 0,
        })
    };
    h1.send(enlist(0)).await;
    // The connection breaks once the message has arrived.
    let mut client = controller.client().await;
    let session = h1.disconnect();
    away(&controller, "h1", true).await;
    h3.send(enlist(1)).await;
    let (mut h1, registered) = FakeAgent::reconnect(&controller, 1, session).await;
    if registered.resumed == Some(0) {
        // The message had not arrived when the connection broke, so it is sent again.
        h1.send(enlist(0)).await;
    }
    h3.ready().await;
    let group = h1.ready().await;
    assert_eq!(group.members.len(), 2);
    assert_eq!(client.get_topology(TopologyRequest {}).await.unwrap().into_inner().nodes.len(), 2);
}

#[tokio::test]
async fn a_lost_node_cannot_resume_its_session() {
    let timeouts = Timeouts { agent: Duration::from_millis(100), ..Timeouts::default() };
    let controller = Controller::with_timeouts(timeouts).await;
    let (h1, mut h3, id, mut events) = running(&controller).await;
    let session = h1.disconnect();
    h3.killed().await;
    h3.exit(id, 1, 1).await;
    let end = finished(&mut events).await;
    assert_eq!((end.code, end.rank), (1, Some(0)));
    assert_eq!(end.reason, "node h1 was lost: its agent has been disconnected for 100ms");
    let (_, registered) = FakeAgent::reconnect(&controller, 1, session).await;
    assert_eq!(registered.resumed, None);
    assert_ne!(registered.node, session.node);
}

#[tokio::test]
async fn a_restarted_agent_gets_a_new_session() {
    let controller = Controller::start().await;
    let (h1, mut h3, id, mut events) = running(&controller).await;
    let session = h1.disconnect();
    away(&controller, "h1", true).await;
    let register = Register { incarnation: 2, session: Some(session), ..registration(1) };
    let mut anew = FakeAgent::try_join(&controller, register).await.unwrap();
    assert_eq!(anew.registered().await.resumed, None);
    h3.killed().await;
    h3.exit(id, 1, 1).await;
    let end = finished(&mut events).await;
    assert_eq!(end.reason, "node h1 was lost: its agent was restarted, or has lost its session");
}

#[tokio::test]
async fn a_caller_that_returns_too_late_gets_the_reason() {
    let timeouts = Timeouts { caller: Duration::from_millis(100), ..Timeouts::default() };
    let controller = Controller::with_timeouts(timeouts).await;
    let (mut h1, mut h3, id, events) = running(&controller).await;
    drop(events);
    for (agent, rank) in [(&mut h1, 0), (&mut h3, 1)] {
        agent.killed().await;
        agent.exit(id, rank, 1).await;
        agent.released().await;
    }
    let attend = AttendRequest { job: id, spec: None, numbered: true };
    let refused = soon("the end of the job", async {
        loop {
            match controller.client().await.attend(attend.clone()).await {
                Err(refused) if refused.code() == Code::FailedPrecondition => return refused,
                // The job was about to drop its last events. It now keeps them for another grace
                // time, whose end no event reports.
                Ok(_) => tokio::time::sleep(2 * timeouts.caller).await,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    let refused = refused.await;
    assert!(
        refused.message().contains("has ended: its caller has not reconnected within 100ms"),
        "{refused}"
    );
}
