//! Messages that exceed a limit affect only their sender.

use crate::support::{Controller, FakeAgent, finished, job};
use cool_proto::control::{AttendRequest, Exited, JobSpec, agent_message};
use cool_proto::delivery;
use cool_proto::job_request::{COMMAND_BYTES_MAX, TOOL_REQUEST_BYTES_MAX};
use tonic::Code;

fn with_argument(bytes: usize) -> JobSpec {
    JobSpec { args: vec!["x".repeat(bytes)], ..job(1) }
}

#[tokio::test]
async fn a_command_that_no_node_can_start_is_refused() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let refused = controller.run(with_argument(COMMAND_BYTES_MAX)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("bytes; at most 159744 are possible"), "{refused}");

    let _events = controller.run(with_argument(COMMAND_BYTES_MAX - 1000)).await.unwrap();
    let group = h1.ready().await;
    assert_eq!(h1.launched().await.args[0].len(), COMMAND_BYTES_MAX - 1000);
    let spec = Some(with_argument(COMMAND_BYTES_MAX));
    let attended = AttendRequest { job: group.job, spec, numbered: true };
    let refused = controller.client().await.attend(attended).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn an_oversized_request_is_refused_before_it_is_decoded() {
    let controller = Controller::start().await;
    let _h1 = FakeAgent::join(&controller, 1).await;
    let refused = controller.run(with_argument(TOOL_REQUEST_BYTES_MAX)).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert!(controller.jobs().await.is_empty());
}

#[tokio::test]
async fn long_commands_are_listed_abbreviated() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let (hosts, racks) = (vec!["h1".into(); 1000], vec![0; 1000]);
    let args = vec!["argument".into(); 8000];
    let _long = controller.run(JobSpec { hosts, racks, args, ..job(1) }).await.unwrap();
    h1.ready().await;
    h1.launched().await;
    let _short = controller.run(JobSpec { args: vec!["a".into(), "b".into()], ..job(1) }).await.unwrap();
    let listed = controller.jobs().await;
    let sizes: Vec<usize> = listed.iter().map(delivery::bytes).collect();
    assert!(sizes.iter().all(|bytes| *bytes < 10_000), "{sizes:?}");
    let args = listed.into_iter().map(|job| job.spec.unwrap().args);
    assert_eq!(args.map(|args| args.last().unwrap().clone()).collect::<Vec<_>>(), ["...", "b"]);
}

#[tokio::test]
async fn a_long_reason_of_an_agent_is_abbreviated() {
    let controller = Controller::start().await;
    let (mut events, group, [h1]) = controller.start_job([1], job(1)).await;
    // Longer than the request of a tool may be.
    let error = format!("cannot start {}: install it", "x".repeat(2 * TOOL_REQUEST_BYTES_MAX));
    let exited = Exited { job: group.job, code: 127, error, ..Exited::default() };
    h1.send(agent_message::Body::Exited(exited)).await;
    let end = finished(&mut events).await;
    assert!(end.reason.starts_with("rank 0 on h1: cannot start xxx"), "{}", end.reason);
    assert!(end.reason.ends_with("x: install it") && end.reason.len() < 2000);
}
