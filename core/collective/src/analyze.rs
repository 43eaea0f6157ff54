//! Counts the messages of a schedule (the figures of the COOL paper, tables 1 and 3). The
//! [`timing`](crate::timing) module estimates their time.

use crate::layout::Layout;
use crate::schedule::{ActionId, ActionKind, Program, Rank, Schedule, TransferId};
use crate::topological_order::topological_order;
use std::collections::{BTreeMap, BTreeSet};

/// One message of a schedule.
struct CountedMessage {
    from: Rank,
    /// The receiver, or all receivers of a multicast.
    to: Vec<Rank>,
    multicast: bool,
    bytes: u64,
    /// One more than the number of messages in the longest sequence that must arrive before it.
    /// Messages within a node are local copies and do not count as a step.
    step: usize,
}

/// Returns all messages of a schedule for `layout`, each after those for which it waits. Returns
/// `None` if the schedule was not compiled for all ranks, or deadlocks.
fn messages(schedule: &Schedule, layout: &Layout) -> Option<Vec<CountedMessage>> {
    let programs: Vec<&Program> = schedule.programs.iter().map(Option::as_ref).collect::<Option<_>>()?;
    if programs.len() != layout.size() {
        return None;
    }
    let mut messages: Vec<CountedMessage> = Vec::new();
    let mut index: BTreeMap<TransferId, usize> = BTreeMap::new();
    // For each action, the longest sequence of messages before it.
    let mut steps: Vec<BTreeMap<ActionId, usize>> = vec![BTreeMap::new(); programs.len()];
    for (rank, id) in topological_order(&programs, |_| 0).ok()? {
        let action = &programs[rank.0 as usize].actions[id.0 as usize];
        let before = action.after.iter().filter_map(|on| steps[rank.0 as usize].get(on)).max();
        let mut done = before.copied().unwrap_or(0);
        let mut send = |transfer, to: Vec<Rank>, multicast, bytes| {
            index.insert(transfer, messages.len());
            let away = to.iter().any(|to| layout.node_of(*to) != layout.node_of(rank));
            messages.push(CountedMessage {
                from: rank,
                to,
                multicast,
                bytes,
                step: done + usize::from(away),
            });
        };
        match action.kind {
            ActionKind::Send { to, transfer, src } => send(transfer, vec![to], false, src.len),
            ActionKind::Multicast { scope, transfer, src, .. } => {
                let home = layout.node_of(rank);
                let others = layout.nodes_of(scope).into_iter().filter(|node| *node != home);
                send(transfer, others.map(|node| layout.node_leader(node)).collect(), true, src.len);
            }
            ActionKind::Receive { transfer, .. } | ActionKind::ReceiveMulticast { transfer, .. } => {
                done = done.max(messages[*index.get(&transfer)?].step);
            }
            ActionKind::Reduce { .. } | ActionKind::Copy { .. } => {}
        }
        steps[rank.0 as usize].insert(id, done);
    }
    Some(messages)
}

/// The counts of one schedule. Messages within a node are local copies and do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Analysis {
    /// Messages to one node.
    pub unicasts: usize,
    /// Messages over a tree.
    pub multicasts: usize,
    /// Messages of both kinds that reach another rack than the sender's.
    pub across_racks: usize,
    /// Longest sequence of messages, each of which waits for the one before.
    pub steps: usize,
    /// Number of these steps in which messages cross racks.
    pub steps_across_racks: usize,
    /// For each rank, the most messages that it sends and receives in one step.
    pub busiest: Vec<usize>,
    /// For each node, the load of its link.
    pub hosts: Vec<LinkLoad>,
    /// For each rack, the load of the link between its ToR switch and the core switch.
    pub uplinks: Vec<LinkLoad>,
}

/// The load of one link of a tree network. A unicast loads every link of its path, and a multicast
/// loads each link once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkLoad {
    /// Towards the core.
    pub up: DirectionLoad,
    /// Towards the hosts.
    pub down: DirectionLoad,
}

/// The load of a link in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionLoad {
    /// Messages.
    pub messages: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl DirectionLoad {
    fn add(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes += bytes;
    }
}

/// Returns the counts of a schedule for `layout`. Returns `None` if the schedule was not compiled
/// for all ranks, or deadlocks.
pub fn analyze(schedule: &Schedule, layout: &Layout) -> Option<Analysis> {
    let mut analysis = Analysis {
        busiest: vec![0; layout.size()],
        hosts: vec![LinkLoad::default(); layout.nodes()],
        uplinks: vec![LinkLoad::default(); layout.racks()],
        ..Analysis::default()
    };
    let mut crossing = BTreeSet::new();
    let mut busy: BTreeMap<(Rank, usize), usize> = BTreeMap::new();
    for message in messages(schedule, layout)? {
        let home = layout.node_of(message.from);
        let away: Vec<Rank> = message.to.iter().copied().filter(|to| layout.node_of(*to) != home).collect();
        if away.is_empty() {
            continue;
        }
        *(if message.multicast { &mut analysis.multicasts } else { &mut analysis.unicasts }) += 1;
        if away.iter().any(|to| layout.rack_of(*to) != layout.rack_of(message.from)) {
            analysis.across_racks += 1;
            crossing.insert(message.step);
        }
        for rank in away.iter().chain([&message.from]) {
            *busy.entry((*rank, message.step)).or_default() += 1;
        }
        analysis.steps = analysis.steps.max(message.step);
        analysis.load(layout, home, away.iter().map(|to| layout.node_of(*to)), message.bytes);
    }
    analysis.steps_across_racks = crossing.len();
    for ((rank, _), messages) in busy {
        let busiest = &mut analysis.busiest[rank.0 as usize];
        *busiest = messages.max(*busiest);
    }
    Some(analysis)
}

impl Analysis {
    /// Returns the load of all links together, in both directions.
    pub fn network(&self) -> DirectionLoad {
        sum(self.hosts.iter().chain(&self.uplinks))
    }

    /// Returns the load of all uplinks together, in both directions.
    pub fn core(&self) -> DirectionLoad {
        sum(self.uplinks.iter())
    }

    /// Returns the most bytes over the link of one host in one direction.
    pub fn busiest_host(&self) -> u64 {
        most(&self.hosts)
    }

    /// Returns the most bytes over the uplink of one rack in one direction.
    pub fn busiest_uplink(&self) -> u64 {
        most(&self.uplinks)
    }

    /// Adds a message to the links between a node and others.
    fn load(&mut self, layout: &Layout, from: usize, to: impl Iterator<Item = usize>, bytes: u64) {
        let home = layout.rack_of_node(from);
        let mut racks = BTreeSet::new();
        for node in to {
            self.hosts[node].down.add(bytes);
            racks.insert(layout.rack_of_node(node));
        }
        self.hosts[from].up.add(bytes);
        racks.remove(&home);
        if !racks.is_empty() {
            self.uplinks[home].up.add(bytes);
        }
        for rack in racks {
            self.uplinks[rack].down.add(bytes);
        }
    }
}

fn sum<'a>(links: impl Iterator<Item = &'a LinkLoad>) -> DirectionLoad {
    links.flat_map(|link| [link.up, link.down]).fold(DirectionLoad::default(), |sum, load| DirectionLoad {
        messages: sum.messages + load.messages,
        bytes: sum.bytes + load.bytes,
    })
}

fn most(links: &[LinkLoad]) -> u64 {
    links.iter().map(|link| link.up.bytes.max(link.down.bytes)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, Operation, Plan, RankPlace, compile};

    const RACKS: u32 = 4;
    const NODES: u32 = 5;

    fn analysis(operation: Operation, plan: &str, root: u32, bytes: u64) -> Analysis {
        let places: Vec<RankPlace> =
            (0..RACKS * NODES).map(|node| RankPlace { rack: node / NODES, node }).collect();
        let layout = Layout::new(&places).unwrap();
        let call = Call::new(operation, Rank(root), bytes, 8);
        let plan: Plan = plan.parse().unwrap();
        analyze(&compile(&call, &layout, &plan, |_| true).unwrap(), &layout).unwrap()
    }

    /// Returns unicasts, multicasts, messages across racks, steps, and steps across racks.
    fn counts(a: &Analysis) -> [usize; 5] {
        [a.unicasts, a.multicasts, a.across_racks, a.steps, a.steps_across_racks]
    }

    /// Returns the most bytes over a host's link, up and down, and over a rack's uplink, up and
    /// down.
    fn most(a: &Analysis) -> [u64; 4] {
        let max = |links: &[LinkLoad], of: fn(&LinkLoad) -> u64| links.iter().map(of).max().unwrap_or(0);
        [
            max(&a.hosts, |link| link.up.bytes),
            max(&a.hosts, |link| link.down.bytes),
            max(&a.uplinks, |link| link.up.bytes),
            max(&a.uplinks, |link| link.down.bytes),
        ]
    }

    /// Table 1 assumes a root that is not a leader. There, the root of a gather or scatter sends
    /// its own part to its leader and back, or the leader returns it. Here the part stays in place,
    /// which saves one message.
    #[test]
    fn cool_p_p_sends_the_messages_of_table_1() {
        let (r, n) = (RACKS as usize, (RACKS * NODES) as usize);
        let follower = NODES + 2;
        for (operation, unicasts, multicasts, across_racks) in [
            (Operation::Reduce, n, 0, r - 1),
            (Operation::Gather, n - 1, 0, r - 1),
            (Operation::Scatter, n - 1, 0, r - 1),
            (Operation::Bcast, 1, r + 1, 1),
            (Operation::Allreduce, n - r, 2 * r, r),
            (Operation::Allgather, n - r, 2 * r, r),
            (Operation::Barrier, n - r, 2 * r, r),
        ] {
            let found = counts(&analysis(operation, "cool-p-p", follower, 64));
            assert_eq!(found, [unicasts, multicasts, across_racks, 3, 1], "{operation}");
        }
    }

    #[test]
    fn one_multicast_reaches_the_whole_group() {
        let bcast = analysis(Operation::Bcast, "multicast", NODES + 2, 64);
        assert_eq!(counts(&bcast), [0, 1, 1, 1, 1]);
        assert_eq!(most(&bcast), [64; 4]);
        for operation in [Operation::Allreduce, Operation::Allgather, Operation::Barrier] {
            assert_eq!(analysis(operation, "multicast", 0, 64).multicasts, 1, "{operation}");
        }
        let each = analysis(Operation::Allgather, "multicast-each", 0, 64);
        assert_eq!((each.unicasts, each.multicasts, each.steps), (0, (RACKS * NODES) as usize, 1));
    }

    /// The limits of a tree: a reduce puts its vector on each link once, and an allreduce twice,
    /// except that a node need not receive its own share again, nor a rack its own region. The four
    /// owners without the root cannot share 15 shards evenly, hence 7 %.
    #[test]
    fn sharded_leaders_load_no_link_beyond_the_limit() {
        let bytes = 15 * 240 * 1024;
        let (r, n) = (u64::from(RACKS), u64::from(RACKS * NODES));
        for root in [0, NODES + 2, RACKS * NODES - 1] {
            let reduce = most(&analysis(Operation::Reduce, "sharded/400000", root, bytes));
            assert!(reduce.iter().all(|load| *load <= bytes + bytes * 7 / 100), "{reduce:?} of {bytes}");
        }
        let [up, down, rack_up, rack_down] = most(&analysis(Operation::Allreduce, "sharded", 0, bytes));
        assert!(up <= bytes && rack_up <= bytes, "{up} {rack_up}");
        assert_eq!((down, rack_down), (2 * (n - 1) * bytes / n, 2 * (r - 1) * bytes / r));
    }
}
