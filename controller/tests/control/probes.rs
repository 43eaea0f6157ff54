//! Agents that measure the network for the controller, over real gRPC.

use crate::support::{Controller, FakeAgent, finished, job};
use cool_collective::CostModel;
use cool_fabric::Fabric;
use cool_proto::control::{JobSpec, Probed, agent_message};
use std::time::Duration;

/// Joins two nodes in rack 0 and one in rack 1.
async fn three(controller: &Controller) -> [FakeAgent; 3] {
    let (h1, h2) = (FakeAgent::join(controller, 1).await, FakeAgent::join(controller, 2).await);
    [h1, h2, FakeAgent::join(controller, 3).await]
}

/// A job with one rank on h1, although another rack would be fuller.
fn on_h1() -> JobSpec {
    JobSpec { hosts: vec!["h1".into()], ..job(1) }
}

#[tokio::test]
async fn probe_results_enter_the_cost_model_of_the_next_group() {
    let controller = Controller::start().await;
    let [mut h1, mut h2, mut h3] = three(&controller).await;
    // Probes between racks are first, each from one rack to the next.
    let probe = h1.probe().await;
    assert_eq!((probe.ip.as_str(), probe.port), ("10.0.0.3", 7421));
    let found = Probed {
        id: probe.id,
        latency_ns: 500_000,
        bytes_per_second: 1_250_000,
        burst: 7,
        ..Default::default()
    };
    h1.send(agent_message::Body::Probed(found)).await;
    h3.probed(700_000, 2_510_000).await;
    h1.probed(30_000, 12_500_000).await;
    h2.probed(50_000, 12_400_000).await;
    let measured = controller.probe_results().await;
    let (rack, core) = (measured.rack.unwrap(), measured.core.unwrap());
    assert_eq!((rack.probes, rack.latency_ns, rack.bytes_per_second), (2, 50_000, 12_500_000));
    assert_eq!((core.probes, core.latency_ns, core.bytes_per_second), (2, 700_000, 2_510_000));

    let mut events = controller.run(on_h1()).await.unwrap();
    let group = h1.ready().await;
    let model: CostModel = serde_json::from_str(&group.cost_model).unwrap();
    assert_eq!(model.rack.latency, Duration::from_micros(46));
    assert_eq!((model.rack.bytes_per_second, model.core.bytes_per_second), (12_500_000, 2_500_000));
    h1.launched().await;
    h1.exit(group.job, 0, 0).await;
    assert_eq!(finished(&mut events).await.code, 0);
}

#[tokio::test]
async fn a_starting_job_stops_the_probe_until_it_ends() {
    let controller = Controller::start().await;
    let [mut h1, mut h2, mut h3] = three(&controller).await;
    h1.probe().await;
    let mut events = controller.run(on_h1()).await.unwrap();
    h1.stopped().await;
    let group = h1.ready().await;
    h1.launched().await;
    h1.exit(group.job, 0, 0).await;
    assert_eq!(finished(&mut events).await.code, 0);
    h1.released().await;
    // After the job has ended, the stopped probe is repeated, and the others follow.
    h1.probed(1, 1).await;
    h3.probed(1, 1).await;
    h1.probed(1, 1).await;
    h2.probed(1, 1).await;
    assert_eq!(controller.probe_results().await.core.unwrap().probes, 2);
}

#[tokio::test]
async fn a_failed_probe_is_tried_twice_and_others_count() {
    let controller = Controller::start().await;
    let [mut h1, mut h2, mut h3] = three(&controller).await;
    for _ in 0..2 {
        let id = h1.probe().await.id;
        let failure = "no connection".to_owned();
        h1.send(agent_message::Body::Probed(Probed { id, failure, ..Default::default() })).await;
    }
    h3.probed(1, 1).await;
    h1.probed(1, 1).await;
    h2.probed(1, 1).await;
    assert_eq!(controller.probe_results().await.core.unwrap().probes, 1);
}

#[tokio::test]
async fn nodes_that_rejoin_are_measured_again() {
    let controller = Controller::start().await;
    let (mut h1, mut h2) = (FakeAgent::join(&controller, 1).await, FakeAgent::join(&controller, 2).await);
    h1.probed(1, 10).await;
    h2.probed(1, 20).await;
    assert_eq!(controller.probe_results().await.rack.unwrap().probes, 2);
    h2.leave().await;
    let mut network = controller.network.watch();
    network.wait_for(|network| network.nodes.len() == 1).await.unwrap();
    let mut h4 = FakeAgent::join(&controller, 4).await;
    h1.probed(3, 30).await;
    h4.probed(4, 40).await;
    let measured = controller.probe_results().await;
    assert_eq!((measured.rack, measured.core.unwrap().bytes_per_second), (None, 40));
}
