//! Examinations of whether the network floods multicasts.

use crate::support::{Controller, FakeAgent};
use cool_proto::control::{
    DiagnoseRequest, Examined, FloodingReport, FloodingRole, FloodingState, FloodingTask, NeighborChanged,
    QuerierChanged, agent_message, controller_message::Body,
};

impl FakeAgent {
    /// Receives a role.
    async fn flooding_task(&mut self, role: FloodingRole) -> FloodingTask {
        match self.receive().await {
            Body::FloodingTask(task) if task.role() == role => task,
            other => panic!("not {role:?}: {other:?}"),
        }
    }

    async fn report_flooding(&self, number: u64, state: FloodingState, train: u32) {
        let report = FloodingReport { number, state: state.into(), train };
        self.send(agent_message::Body::FloodingReport(report)).await;
    }

    async fn examined_without_faults(&mut self) {
        let Body::Examine(examine) = self.receive().await else { panic!("not an examination") };
        let examined = Examined { id: examine.id, ..Examined::default() };
        self.send(agent_message::Body::Examined(examined)).await;
    }
}

#[tokio::test]
async fn a_network_that_floods_is_noted_until_it_changes() {
    let controller = Controller::start().await;
    let mut agents = Vec::new();
    for node in 1..=3 {
        agents.push(FakeAgent::join(&controller, node).await);
    }
    // The agents locate the nodes, because no switch does.
    for agent in &agents {
        agent.send(agent_message::Body::NeighborChanged(NeighborChanged { neighbor: None })).await;
    }
    let [h1, h2, h3] = &mut agents[..] else { unreachable!("there are three agents") };
    let member = h3.flooding_task(FloodingRole::Member).await;
    let listener = h2.flooding_task(FloodingRole::Listener).await;
    assert_eq!(member, FloodingTask { role: member.role, ..listener }, "the tasks differ only by the role");
    let (number, all_ready) = (member.number, FloodingState::Ready);
    h2.report_flooding(number, all_ready, 0).await;
    h3.report_flooding(number, all_ready, 0).await;
    let first = h1.flooding_task(FloodingRole::Sender).await;
    assert_eq!((&first.address, &first.nonce, first.bytes), (&member.address, &member.nonce, 1500));
    h3.report_flooding(number, FloodingState::Heard, first.train).await;
    let counted = h1.flooding_task(FloodingRole::Sender).await;
    assert_ne!(counted.train, first.train);
    h2.report_flooding(number, FloodingState::Heard, counted.train).await;
    h3.report_flooding(number, FloodingState::Heard, counted.train).await;
    h2.flooding_task(FloodingRole::None).await;
    h3.flooding_task(FloodingRole::None).await;

    let mut client = controller.client().await;
    let request = tokio::spawn(async move { client.diagnose(DiagnoseRequest {}).await });
    for agent in [&mut *h1, &mut *h2, &mut *h3] {
        agent.examined_without_faults().await;
    }
    let findings = request.await.unwrap().unwrap().into_inner().findings;
    let notes: Vec<&str> = findings.iter().filter(|f| f.note).map(|f| f.wrong.as_str()).collect();
    let [note] = notes[..] else { panic!("{findings:?}") };
    assert!(note.contains("reach 1 of 1 nodes") && note.contains("(h2)"), "{note}");

    // A querier may end it, so the network is examined again.
    let heard = QuerierChanged { can_query: true, ip: "10.0.0.254".to_owned() };
    h1.send(agent_message::Body::QuerierChanged(heard)).await;
    let again = h3.flooding_task(FloodingRole::Member).await;
    assert!(again.number == number + 1 && again.address != member.address && again.nonce != member.nonce);
}
