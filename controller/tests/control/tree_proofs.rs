//! Proofs of trees: the controller lets agents probe the trees of a group before the group is used.

use crate::support::{Controller, FakeAgent, finished, job};
use cool_proto::control::{
    DiagnoseRequest, Examined, Group, JobEvent, MissingProbes, TreesProbed, TreesProven, agent_message,
    controller_message::Body,
};
use std::sync::atomic::Ordering;
use tonic::Streaming;

impl FakeAgent {
    /// Receives a request to prove trees, and reports that the probes of these nodes are missing.
    async fn trees_probed(&mut self, tree: &str, from: &[&str]) {
        let Body::ProveTrees(request) = self.receive().await else { panic!("not a proof") };
        let from: Vec<String> = from.iter().map(ToString::to_string).collect();
        let received = u32::from(from.is_empty());
        let missing =
            Vec::from_iter((!from.is_empty()).then(|| MissingProbes { tree: tree.to_owned(), from }));
        let probed = TreesProbed { group: request.group, number: request.number, missing, received };
        self.send(agent_message::Body::TreesProbed(probed)).await;
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
    proving.finish(&[]).await;
    assert_eq!(proving.controller.network.withdrawn(), []);
}

#[tokio::test]
async fn a_tree_that_does_not_reach_all_is_withdrawn_everywhere() {
    let mut proving = ProvingJob::start().await;
    let tree = proving.tree.clone();
    proving.h3.trees_probed(&tree, &["h1"]).await;
    proving.h1.trees_probed(&tree, &[]).await;
    proving.finish(std::slice::from_ref(&tree)).await;
    let ProvingJob { controller, mut h1, mut h3, group, .. } = proving;
    h1.released().await;
    h3.released().await;
    assert_eq!(controller.network.withdrawn(), [(group.id, [tree.parse().unwrap()].into())]);

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
        agent.launched().await;
    }
}
