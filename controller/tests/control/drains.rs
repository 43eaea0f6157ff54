//! Operators stop the start of jobs, on some nodes or everywhere.

use crate::support::{Controller, FakeAgent, job, soon};
use cool_proto::control::{DrainRequest, JobSpec, TopologyRequest};
use tempfile::TempDir;
use tonic::{Code, Status};

async fn drain(controller: &Controller, nodes: &[&str], end: bool) -> Result<Vec<String>, Status> {
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
    let request = DrainRequest { end, wait: !end, nodes };
    let mut client = controller.client().await;
    Ok(soon("the drain", client.drain(request)).await?.into_inner().nodes)
}

#[tokio::test]
async fn a_drained_node_gets_no_jobs_until_the_end_of_the_drain() {
    let controller = Controller::start().await;
    let (_h1, mut h2) = (FakeAgent::join(&controller, 1).await, FakeAgent::join(&controller, 2).await);
    let mut elsewhere = controller.run(JobSpec { hosts: vec!["h2".into()], ..job(1) }).await.unwrap();
    let id = h2.ready().await.job;
    h2.launched().await;
    // It does not wait for jobs on other nodes.
    assert_eq!(drain(&controller, &["h1"], false).await.unwrap(), ["h1"]);
    let refused = controller.run(JobSpec { hosts: vec!["h1".into()], ..job(1) }).await.unwrap_err();
    assert!(refused.message().contains("no node h1 (drained) is ready; ready nodes: h2"), "{refused}");
    let refused = controller.run(job(4)).await.unwrap_err();
    assert!(refused.message().contains("; drained: h1"), "{refused}");
    let topology = controller.client().await.get_topology(TopologyRequest {}).await.unwrap().into_inner();
    assert!(topology.warnings.iter().any(|warning| warning.starts_with("node h1 is drained")));
    h2.exit(id, 0, 0).await;
    assert_eq!(crate::support::finished(&mut elsewhere).await.code, 0);
    let unknown = drain(&controller, &["h9"], false).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.message().contains("no node h9")), (Code::InvalidArgument, true));
    drain(&controller, &["h1"], true).await.unwrap();
    controller.run(JobSpec { hosts: vec!["h1".into()], ..job(1) }).await.unwrap();
}

#[tokio::test]
async fn a_drain_outlasts_the_controller() {
    let directory = TempDir::new().unwrap();
    let first = Controller::with_state(directory.path()).await;
    let _h1 = FakeAgent::join(&first, 1).await;
    drain(&first, &[], false).await.unwrap();
    let second = Controller::with_state(directory.path()).await;
    let _h1 = FakeAgent::join(&second, 1).await;
    let refused = second.run(job(1)).await.unwrap_err();
    assert!(refused.message().contains("the controller is drained"), "{refused}");
    drain(&second, &[], true).await.unwrap();
    second.run(job(1)).await.unwrap();
}
