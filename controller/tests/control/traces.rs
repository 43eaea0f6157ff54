//! Traces of calls, requested from agents and forwarded.

use crate::support::{Controller, FakeAgent, soon};
use cool_proto::control::{CallRecord, TraceEvent, Traced, agent_message};
use tonic::Streaming;

async fn event(events: &mut Streaming<TraceEvent>) -> Option<TraceEvent> {
    soon("an event", events.message()).await.unwrap()
}

fn piece(id: u64, call: u64, end: bool) -> agent_message::Body {
    agent_message::Body::Traced(Traced {
        id,
        records: vec![CallRecord { call, ..CallRecord::default() }],
        end,
    })
}

#[tokio::test]
async fn traces_are_forwarded_by_node_and_silent_nodes_are_named() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let mut h2 = FakeAgent::join(&controller, 2).await;
    let mut events = controller.trace().await;
    let id = h1.traced().await;
    assert_eq!(h2.traced().await, id);
    h1.send(piece(id, 4, false)).await;
    h1.send(piece(id, 5, true)).await;
    // Messages after the last one, and responses to unknown requests, are ignored.
    h1.send(piece(id, 6, true)).await;
    h1.send(piece(id + 1, 7, true)).await;
    for call in [4, 5] {
        let event = event(&mut events).await.unwrap();
        assert_eq!((event.node.as_str(), event.records[0].call), ("h1", call));
    }
    assert_eq!(event(&mut events).await.unwrap().silent, ["h2"]);
    assert_eq!(event(&mut events).await, None);
}

#[tokio::test]
async fn a_trace_without_nodes_is_empty() {
    let controller = Controller::start().await;
    let mut events = controller.trace().await;
    assert_eq!(event(&mut events).await, Some(TraceEvent::default()));
    assert_eq!(event(&mut events).await, None);
}
