//! Proofs of trees: the controller lets agents probe the trees of a group before the group is used.

use crate::support::{Controller, FakeAgent, finished, job, registration};
use cool_proto::control::{
    DiagnoseRequest, Examined, Group, Held, JobEvent, MissingProbes, QuerierChanged, TreesProbed,
    TreesProven, TreesSilent, agent_message, controller_message::Body,
};
use cool_proto::features;
use std::sync::atomic::Ordering;
use tonic::Streaming;

impl FakeAgent {
    /// Receives a request to prove trees, and reports that the probes of these nodes are missing.
    /// Returns the number of the proof.
    async fn trees_probed(&mut self, tree: &str, from: &[&str]) -> u64 {
        let Body::ProveTrees(request) = self.receive().await else { panic!("not a proof") };
        let from: Vec<String> = from.iter().map(ToString::to_string).collect();
        let received = u32::from(from.is_empty());
        let missing =
            Vec::from_iter((!from.is_empty()).then(|| MissingProbes { tree: tree.to_owned(), from }));
        let probed = TreesProbed { group: request.group, number: request.number, missing, received };
        self.send(agent_message::Body::TreesProbed(probed)).await;
        request.number
    }

    /// Reports that the node hears a querier for the first time.
    async fn querier_heard(&mut self) {
        let heard = QuerierChanged { can_query: true, ip: "10.0.0.254".to_owned() };
        self.send(agent_message::Body::QuerierChanged(heard)).await;
    }

    /// Receives the end of a proof. Returns the withdrawn trees.
    async fn proven(&mut self) -> Vec<String> {
        let Body::TreesProven(TreesProven { withdrawn, .. }) = self.receive().await else { panic!("no end") };
        withdrawn
    }
}

/// A job with a rank on h1 and one on h3, whose group has a tree that they must prove.
struct ProvingJob {
    controller: Controller,
    h1: FakeAgent,
    h3: FakeAgent,
    events: Streaming<JobEvent>,
    group: Group,
    tree: String,
}

impl ProvingJob {
    /// Starts the job. Both nodes have made its group.
    async fn start() -> ProvingJob {
        let controller = Controller::start().await;
        controller.network.needs_proof.store(true, Ordering::Relaxed);
        let (mut h1, mut h3) = (FakeAgent::join(&controller, 1).await, FakeAgent::join(&controller, 3).await);
        let events = controller.run(job(2)).await.unwrap();
        let group = h1.ready().await;
        h3.ready().await;
        let tree = group.trees[0].address.clone();
        ProvingJob { controller, h1, h3, events, group, tree }
    }

    /// Lets the ranks start, after the proof has ended without a withdrawn tree.
    async fn started() -> ProvingJob {
        let mut proving = ProvingJob::start().await;
        let tree = proving.tree.clone();
        for agent in [&mut proving.h1, &mut proving.h3] {
            agent.trees_probed(&tree, &[]).await;
        }
        for agent in [&mut proving.h1, &mut proving.h3] {
            assert!(agent.proven().await.is_empty());
            agent.launched().await;
        }
        proving
    }

    /// Returns the trees that the controller lists for the group.
    async fn listed_trees(&self) -> Vec<String> {
        let [group] = &self.controller.groups().await[..] else { panic!("there is one group") };
        group.trees.iter().map(|tree| tree.address.clone()).collect()
    }

    /// Lets the ranks run to their end, after the proof has ended with these withdrawn trees.
    async fn finish(&mut self, withdrawn: &[String]) {
        for (rank, agent) in (0..).zip([&mut self.h1, &mut self.h3]) {
            assert_eq!(agent.proven().await, withdrawn);
            agent.launched().await;
            agent.exit(self.group.job, rank, 0).await;
        }
        assert_eq!(finished(&mut self.events).await.code, 0);
    }
}

#[tokio::test]
async fn ranks_start_once_all_nodes_have_proven_the_trees() {
    let mut proving = ProvingJob::start().await;
    let tree = proving.tree.clone();
    proving.h1.trees_probed(&tree, &[]).await;
    proving.h3.trees_probed(&tree, &[]).await;
    assert_eq!(proving.listed_trees().await, [tree]);
    proving.finish(&[]).await;
}

#[tokio::test]
async fn a_tree_that_falls_silent_is_proven_again_and_returns() {
    let mut proving = ProvingJob::started().await;
    let (tree, group) = (proving.tree.clone(), proving.group.id);
    // A node outside of the group cannot cause a proof.
    let h5 = FakeAgent::join(&proving.controller, 5).await;
    let silent = agent_message::Body::TreesSilent(TreesSilent { group });
    h5.send(silent.clone()).await;
    proving.h3.send(silent).await;
    let first = proving.h3.trees_probed(&tree, &["h1"]).await;
    assert_eq!(proving.h1.trees_probed(&tree, &[]).await, first);
    for agent in [&mut proving.h1, &mut proving.h3] {
        assert_eq!(agent.proven().await, std::slice::from_ref(&tree));
    }
    assert!(proving.listed_trees().await.is_empty());
    // The network changes, so the tree is tried at once.
    proving.h1.querier_heard().await;
    for agent in [&mut proving.h1, &mut proving.h3] {
        assert!(agent.trees_probed(&tree, &[]).await > first);
    }
    for agent in [&mut proving.h1, &mut proving.h3] {
        assert!(agent.proven().await.is_empty());
    }
    assert_eq!(proving.listed_trees().await, [tree]);
}

#[tokio::test]
async fn earlier_agents_prove_the_trees_of_a_group_only_once() {
    let controller = Controller::start().await;
    controller.network.needs_proof.store(true, Ordering::Relaxed);
    let mut earlier = registration(1);
    earlier.features = features::ALL & !features::REPEATED_PROOFS;
    let mut h1 = FakeAgent::try_join(&controller, earlier).await.unwrap();
    h1.registered().await;
    let mut h3 = FakeAgent::join(&controller, 3).await;
    let mut events = controller.run(job(2)).await.unwrap();
    let group = h1.ready().await;
    h3.ready().await;
    for agent in [&mut h1, &mut h3] {
        agent.trees_probed(&group.trees[0].address, &[]).await;
    }
    for (rank, agent) in (0..).zip([&mut h1, &mut h3]) {
        assert!(agent.proven().await.is_empty());
        agent.launched().await;
        agent.send(agent_message::Body::TreesSilent(TreesSilent { group: group.id })).await;
        agent.exit(group.job, rank, 0).await;
    }
    assert_eq!(finished(&mut events).await.code, 0);
    // The next message is not a proof.
    h1.released().await;
    h3.released().await;
}

#[tokio::test]
async fn another_controller_continues_to_prove_withdrawn_trees() {
    let ProvingJob { group, tree, .. } = ProvingJob::started().await;
    let second = Controller::start().await;
    let mut agents = Vec::new();
    for i in [1, 3] {
        let mut register = registration(i);
        register.held = vec![Held {
            group: Some(group.clone()),
            controller: 1,
            ranks: vec![u32::from(i) / 2],
            proven: Some(TreesProven { group: group.id, withdrawn: vec![tree.clone()] }),
            ..Held::default()
        }];
        let mut agent = FakeAgent::try_join(&second, register).await.unwrap();
        agent.registered().await;
        agents.push(agent);
    }
    while second.attend(group.job).await.is_err() {}
    assert!(second.groups().await.iter().all(|group| group.trees.is_empty()));
    agents[0].querier_heard().await;
    for agent in &mut agents {
        agent.trees_probed(&tree, &[]).await;
    }
    for agent in &mut agents {
        assert!(agent.proven().await.is_empty());
    }
}

#[tokio::test]
async fn a_tree_that_does_not_reach_all_is_withdrawn_everywhere() {
    let mut proving = ProvingJob::start().await;
    let tree = proving.tree.clone();
    proving.h3.trees_probed(&tree, &["h1"]).await;
    proving.h1.trees_probed(&tree, &[]).await;
    proving.finish(std::slice::from_ref(&tree)).await;
    let ProvingJob { controller, mut h1, mut h3, .. } = proving;
    h1.released().await;
    h3.released().await;

    // The node is named, and further groups of these nodes do not wait for a proof.
    let mut client = controller.client().await;
    let request = tokio::spawn(async move { client.diagnose(DiagnoseRequest {}).await });
    for agent in [&mut h1, &mut h3] {
        let Body::Examine(examine) = agent.receive().await else { panic!("not an examination") };
        agent.send(agent_message::Body::Examined(Examined { id: examine.id, ..Examined::default() })).await;
    }
    let findings = request.await.unwrap().unwrap().into_inner().findings;
    let names_path = |about: &str, wrong: &str| about == "node h3" && wrong.contains("multicasts of h1");
    assert!(findings.iter().any(|finding| names_path(&finding.about, &finding.wrong)), "{findings:?}");
    let _events = controller.run(job(2)).await.unwrap();
    for agent in [&mut h1, &mut h3] {
        agent.ready().await;
    }
    for agent in [&mut h1, &mut h3] {
        assert_eq!(agent.proven().await.len(), 1);
        agent.launched().await;
    }
}
