//! The examination of a deployment, as requested by a tool.

use crate::support::{Controller, FakeAgent};
use cool_proto::control::{DiagnoseRequest, Examined, agent_message, controller_message::Body};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

impl FakeAgent {
    /// Receives an examination and reports the state of the node.
    async fn examined(&mut self, ahead: Duration, faults: &[&str]) {
        let Body::Examine(examine) = self.receive().await else { panic!("not an examination") };
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + ahead;
        let clock_us = i64::try_from(clock.as_micros()).unwrap();
        let faults = faults.iter().map(ToString::to_string).collect();
        self.send(agent_message::Body::Examined(Examined {
            id: examine.id,
            clock_us,
            faults,
            ..Examined::default()
        }))
        .await;
    }
}

#[tokio::test]
async fn every_agent_is_examined_and_problems_are_reported() {
    let controller = Controller::start().await;
    let (mut well, mut ill) = (FakeAgent::join(&controller, 1).await, FakeAgent::join(&controller, 2).await);
    let mut client = controller.client().await;
    let request = tokio::spawn(async move { client.diagnose(DiagnoseRequest {}).await });
    well.examined(Duration::ZERO, &[]).await;
    ill.examined(Duration::from_secs(60), &["its disk is full"]).await;
    let diagnosis = request.await.unwrap().unwrap().into_inner();
    assert_eq!(diagnosis.nodes, 2);
    let of_nodes = diagnosis.findings.iter().filter(|finding| finding.about.starts_with("node"));
    let findings: Vec<(&str, &str)> = of_nodes.map(|f| (f.about.as_str(), f.wrong.as_str())).collect();
    let [("node h2", clock), ("node h2", "its disk is full")] = findings[..] else { panic!("{findings:?}") };
    assert!(clock.starts_with("its clock is 60.0 s ahead of") || clock.contains("59.9 s ahead"), "{clock}");
}
