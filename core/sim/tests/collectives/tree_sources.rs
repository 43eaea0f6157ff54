//! Groups with source-specific trees: which sources they use, and that results are right where
//! their multicasts do not arrive.

use super::support::{NODES, World, settings, settings_of};
use cool_engine::testing::ReferenceCollective;
use cool_machine::Duration;
use cool_sim::collectives::ClusterSettings;
use cool_types::Operation;

/// Time after which a source is proven, or has failed.
const PROOF_TIME: Duration = Duration::from_secs(11);

/// A group with one rank on each node.
struct Run {
    world: World,
    ranks: u16,
    calls: u64,
}

impl Run {
    fn new(settings: ClusterSettings, loss: f64, deaf: &[u16]) -> Run {
        let mut world = World::lossy(ClusterSettings { source_specific: true, ..settings }, loss);
        let ranks = world.cluster.network().nodes();
        let spec = world.cluster.group(1, &(0..ranks).collect::<Vec<_>>(), 1);
        deaf.iter().for_each(|node| world.cluster.deafen(&spec, *node));
        world.cluster.make_group(&spec).unwrap();
        Run { world, ranks, calls: 0 }
    }

    /// Executes an operation, and checks the result. Returns the number of bytes that were
    /// multicast, by rank.
    fn execute(&mut self, operation: Operation, root: u32, count: u64, plan: &str) -> Vec<u64> {
        let first = self.calls;
        let size = u32::from(self.ranks);
        let collective = ReferenceCollective::new(1, size, operation, root, count, first).by(plan);
        for request in &collective.requests {
            self.world.cluster.call(request.rank as u16, self.calls, request.clone(), Duration::ZERO);
            self.calls += 1;
        }
        self.world.run(self.calls as usize);
        let answers = (first..self.calls).map(|token| &self.world.answers()[&token].result);
        let multicast = answers.map(|answer| answer.as_ref().unwrap().traffic.bytes_multicast).collect();
        collective.check();
        multicast
    }

    /// Broadcasts 1.6 MB, which are too long to be copied, so that the root's call lasts until they
    /// have been sent. Returns whether the root multicast them.
    fn multicasts(&mut self, root: u32) -> bool {
        let bytes = self.execute(Operation::Bcast, root, 400_000, "multicast");
        let sent = bytes[root as usize];
        assert!(sent == 0 || sent == 1_600_000, "{bytes:?}");
        sent > 0
    }
}

#[test]
fn a_root_multicasts_after_its_first_message() {
    for loss in [0.0, 0.05] {
        let mut run = Run::new(settings(3), loss, &[]);
        for root in [4, 0, 5] {
            assert!(!run.multicasts(root), "root {root}, loss {loss}");
            run.world.run_for(PROOF_TIME);
            assert!(run.multicasts(root), "root {root}, loss {loss}");
        }
        assert!(run.world.cluster.unproven_sources().is_empty());
    }
}

#[test]
fn a_root_that_a_node_does_not_hear_uses_the_chain() {
    let mut run = Run::new(settings(4), 0.0, &[2]);
    let tries = |run: &mut Run, time| {
        let tried = run.multicasts(0);
        run.world.run_for(time);
        tried
    };
    assert!(!tries(&mut run, PROOF_TIME) && !tries(&mut run, PROOF_TIME));
    assert_eq!(run.world.cluster.unproven_sources(), [(0, vec!["h2".to_owned()])]);
    // It tries again some minutes later.
    assert!(!tries(&mut run, Duration::from_secs(300)) && !tries(&mut run, PROOF_TIME));
    assert_eq!(run.world.cluster.unproven_sources().len(), 2);
}

#[test]
fn a_root_that_a_node_no_longer_hears_proves_itself_again() {
    let mut run = Run::new(settings(8), 0.0, &[]);
    run.multicasts(0);
    run.world.run_for(PROOF_TIME);
    // Nodes expect multicasts of a source once they have received some in a stream.
    assert!(run.multicasts(0));
    run.world.cluster.forget_sources(2);
    // The node requests the chunks along the chain, and notices after some broadcasts.
    let noticed = (0..50).find(|_| !run.multicasts(0));
    assert!(noticed.is_some_and(|broadcasts| broadcasts > 0), "{noticed:?}");
    run.world.run_for(PROOF_TIME);
    assert_eq!(run.world.cluster.unproven_sources(), [(0, vec!["h2".to_owned()])]);
    // All nodes have left the source, and join it again with the next attempt.
    run.world.run_for(Duration::from_secs(300));
    assert!(!run.multicasts(0));
    run.world.run_for(PROOF_TIME);
    assert!(run.multicasts(0));
}

#[test]
fn eight_roots_multicast_and_further_ones_use_the_chain() {
    let mut run = Run::new(settings_of(5, [5, 5].into()), 0.0, &[]);
    for round in [false, true] {
        let roots: Vec<bool> = (0..10)
            .map(|root| {
                let multicast = run.multicasts(root);
                run.world.run_for(PROOF_TIME);
                multicast
            })
            .collect();
        assert_eq!(roots, [vec![round; 8], vec![false; 2]].concat());
    }
    // Nodes have refused these sources, which is no fault of the network.
    assert!(run.world.cluster.unproven_sources().is_empty());
}

#[test]
fn calls_with_more_roots_than_allowed_use_no_source() {
    let mut run = Run::new(settings_of(6, [5, 5].into()), 0.0, &[]);
    for _ in 0..2 {
        let bytes = run.execute(Operation::Allgather, 0, 30_000, "multicast-each");
        assert_eq!(bytes, [0; 10]);
        run.world.run_for(PROOF_TIME);
    }
    assert!(!run.multicasts(9));
    run.world.run_for(PROOF_TIME);
    assert!(run.multicasts(9));
}

#[test]
fn every_operation_is_right_with_source_specific_trees() {
    let mut run = Run::new(settings(7), 0.01, &[]);
    for _ in 0..2 {
        for operation in Operation::ALL {
            for root in 0..u32::from(NODES) {
                run.execute(operation, root, 500, "");
            }
        }
        run.world.run_for(PROOF_TIME);
    }
    assert!(run.multicasts(0));
}
