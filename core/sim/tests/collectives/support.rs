//! The cluster of the tests for single cases: six nodes in three racks, and helper functions.

use cool_engine::testing::{Buffer, ReferenceCollective};
use cool_engine::{
    CallFailure, CallRequest, ElementType, GroupSpec, Input, RankCommand, TransferKind, TransferRequest,
};
use cool_machine::{Duration, Time};
use cool_sim::Shape;
use cool_sim::collectives::{Answer, ClusterSettings, SimulatedCluster, Step};
use cool_types::Operation;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// Three racks of 3, 1 and 2 nodes. Their numbers are not in order.
pub(crate) const SHAPE: [u16; 3] = [3, 1, 2];
pub(crate) const NODES: u16 = 6;
/// The node of each rank of a group. Some nodes have two ranks; racks and ranks are not in order.
pub(crate) const RANKS: [u16; 9] = [4, 0, 3, 1, 1, 5, 2, 0, 3];
pub(crate) const SIZE: u32 = RANKS.len() as u32;

/// 1 Gbit/s in bytes per second.
pub(crate) const RATE: u64 = 125_000_000;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) cluster: SimulatedCluster,
    rng: ChaCha8Rng,
}

/// Returns the settings of the six nodes with lossless links.
pub(crate) fn settings(seed: u64) -> ClusterSettings {
    ClusterSettings { racks: vec![5, 2, 9], ..ClusterSettings::clean(seed, SHAPE.to_vec(), RATE) }
}

/// Returns the settings of nodes of any shape.
pub(crate) fn settings_of(seed: u64, shape: Shape) -> ClusterSettings {
    ClusterSettings::clean(seed, shape, RATE)
}

/// Returns the six nodes, on which groups 1 and 2 of all ranks have been created.
pub(crate) fn two_groups() -> World {
    let mut world = World::new(settings(9));
    [1, 2].into_iter().for_each(|group| world.make(group));
    world
}

impl World {
    pub(crate) fn new(settings: ClusterSettings) -> World {
        World { rng: ChaCha8Rng::seed_from_u64(settings.seed), cluster: SimulatedCluster::new(settings) }
    }

    /// Returns nodes with ports that lose this share of arriving packets and duplicate one in a
    /// hundred.
    pub(crate) fn lossy(settings: ClusterSettings, loss: f64) -> World {
        let mut world = World::new(settings);
        world.lose(loss);
        world
    }

    pub(crate) fn lose(&mut self, loss: f64) {
        let network = self.cluster.network();
        for node in 0..network.nodes() {
            let port = network.to_node(node);
            let link = network.link_mut(port);
            (link.loss, link.duplicate) = (loss, if loss > 0.0 { 0.01 } else { 0.0 });
        }
    }

    pub(crate) fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Returns the specification of a group of all ranks.
    pub(crate) fn spec(&mut self, id: u64) -> GroupSpec {
        self.cluster.group(id, &RANKS, 2)
    }

    /// Creates a group of all ranks on all nodes.
    pub(crate) fn make(&mut self, id: u64) {
        let spec = self.spec(id);
        self.cluster.make_group(&spec).unwrap();
    }

    pub(crate) fn make_on(&mut self, spec: &GroupSpec, nodes: impl IntoIterator<Item = u16>) {
        nodes.into_iter().for_each(|node| self.cluster.input(node, Input::MakeGroup(spec)).unwrap());
    }

    pub(crate) fn release_on(&mut self, group: u64, nodes: impl IntoIterator<Item = u16>) {
        for node in nodes {
            self.cluster.input(node, Input::ReleaseGroup { group }).unwrap();
        }
    }

    /// Makes a rank of a group of all ranks call after some time.
    pub(crate) fn call(&mut self, token: u64, request: CallRequest<Buffer>, after: Duration) {
        self.cluster.call(RANKS[request.rank as usize], token, request, after);
    }

    /// Makes a rank of a group of all ranks send or receive after some time.
    pub(crate) fn transfer(&mut self, token: u64, request: TransferRequest<Buffer>, after: Duration) {
        self.cluster.transfer(RANKS[request.rank as usize], token, request, after);
    }

    /// Makes each rank call as `calls` returns; ranks without a call do nothing. Returns the number
    /// of results that must then exist.
    pub(crate) fn call_each(
        &mut self,
        group: u64,
        token: u64,
        calls: impl Fn(u32) -> Option<(Operation, u32, u64)>,
    ) -> usize {
        let before = self.cluster.answers().len();
        let mut made = 0;
        for rank in 0..SIZE {
            if let Some((operation, root, count)) = calls(rank) {
                let request = request(group, operation, root, count, rank);
                self.call(token + u64::from(rank), request, Duration::ZERO);
                made += 1;
            }
        }
        before + made
    }

    /// Reports that a rank of a group of all ranks was lost.
    pub(crate) fn lose_rank(&mut self, group: u64, rank: u32) {
        let why = "its process ended".to_owned();
        self.cluster
            .input(
                RANKS[rank as usize],
                Input::Command { group, rank, command: RankCommand::Lost { why, completed_calls: None } },
            )
            .unwrap();
    }

    /// Makes a rank cancel its request with the given id.
    pub(crate) fn cancel(&mut self, group: u64, rank: u32, id: u64) {
        self.cluster
            .input(RANKS[rank as usize], Input::Command { group, rank, command: RankCommand::Cancel { id } })
            .unwrap();
    }

    /// Runs until this many calls have completed. They must do so within an hour of simulated
    /// time.
    pub(crate) fn run(&mut self, answered: usize) {
        let limit = self.now() + Duration::from_secs(3600);
        while self.cluster.answers().len() < answered {
            let done = self.cluster.answers().len();
            let step = self.cluster.step().unwrap();
            assert!(step != Step::Idle, "no more events, but only {done} of {answered} calls are done");
            assert!(self.now() < limit, "{done} of {answered} calls are done after an hour");
        }
    }

    /// Runs for some time.
    pub(crate) fn run_for(&mut self, time: Duration) {
        self.cluster.alarm(0, time);
        while self.cluster.step().unwrap() != Step::Alarm(0) {}
    }

    pub(crate) fn now(&self) -> Time {
        self.cluster.now()
    }

    pub(crate) fn answers(&self) -> &BTreeMap<u64, Answer> {
        self.cluster.answers()
    }

    pub(crate) fn failures(&self) -> Vec<&CallFailure> {
        self.answers().values().filter_map(|answer| answer.result.as_ref().err()).collect()
    }

    pub(crate) fn first_failure(&self) -> Option<&CallFailure> {
        self.failures().first().copied()
    }

    pub(crate) fn all_well(&self) -> bool {
        self.first_failure().is_none()
    }

    pub(crate) fn failure(&self, token: u64) -> &CallFailure {
        self.cluster.answers()[&token].result.as_ref().unwrap_err()
    }
}

/// Returns the request of one rank for a call on a group of all ranks.
pub(crate) fn request(
    group: u64,
    operation: Operation,
    root: u32,
    count: u64,
    rank: u32,
) -> CallRequest<Buffer> {
    ReferenceCollective::new(group, SIZE, operation, root, count, 1).requests[rank as usize].clone()
}

/// Returns the request by which rank `from` of group 1 sends bytes.
pub(crate) fn send(from: u32, to: u32, tag: u32, bytes: Vec<u8>) -> TransferRequest<Buffer> {
    TransferRequest {
        group: 1,
        rank: from,
        kind: TransferKind::Send,
        id: 0,
        peer: Some(to),
        tag: Some(tag),
        element: ElementType::U8,
        data: Some(Buffer::new(bytes)),
        timeout: PATIENCE,
    }
}
