//! Agents make and release groups, hang up and connect in any order: groups do not notice.

use super::failures::{SIZE, call};
use super::messages::send;
use super::network::Network;
use super::{RACKS, RANKS};
use crate::TransferRequest;
use cool_machine::Duration;
use cool_types::Operation;
use cool_types::limits::BOUNCE_BYTES;

#[test]
fn a_node_that_was_stopped_for_a_while_is_in_later_groups_as_if_nothing_had_been() {
    for stopped in 0..RACKS.len() {
        let mut network = Network::new(RACKS.len(), 9, 0, BOUNCE_BYTES);
        network.make_group(&Network::spec(1, &RANKS, &RACKS, true));
        let waits = |r: u32| RANKS[r as usize] != stopped;
        let done = call(&mut network, 1, 0, |r| waits(r).then_some((Operation::Alltoall, 0, 1_000)));
        network.run_for(Duration::from_millis(20));
        network.silence(stopped);
        network.run(done);
        assert!(network.done.values().all(Result::is_err));
        // It hears of its own group's end, but not yet that the others have closed their connections.
        network.restore(stopped);
        (0..RACKS.len()).for_each(|node| network.release_group(node, 1));
        network.make_group(&Network::spec(2, &RANKS, &RACKS, true));
        let done = call(&mut network, 2, 1_000, |_| Some((Operation::Alltoall, 0, 1_000)));
        network.run(done);
        assert!(network.done.range(1_000..).all(|(_, result)| result.is_ok()), "{:?}", network.done);
    }
}

/// All have used group 1 and made group 2, and all but the node `late` have heard of the first one's end.
fn second_group_while_the_first_has_not_ended_at(late: usize) -> Network {
    let mut network = Network::new(RACKS.len(), 9, 0, BOUNCE_BYTES);
    network.make_group(&Network::spec(1, &RANKS, &RACKS, true));
    let done = call(&mut network, 1, 0, |_| Some((Operation::Alltoall, 0, 1_000)));
    network.run(done);
    (0..RACKS.len()).filter(|node| *node != late).for_each(|node| network.release_group(node, 1));
    network.make_group(&Network::spec(2, &RANKS, &RACKS, true));
    network
}

#[test]
fn a_group_on_a_connection_that_ends_with_an_earlier_group_gets_another() {
    for late in 0..RACKS.len() {
        let mut network = second_group_while_the_first_has_not_ended_at(late);
        network.run_for(Duration::from_millis(5));
        network.release_group(late, 1);
        let done = call(&mut network, 2, 1_000, |_| Some((Operation::Alltoall, 0, 1_000)));
        network.run(done);
        assert!(network.done.values().all(Result::is_ok), "{late}: {:?}", network.done);
    }
}

/// Every pair of ranks on different nodes exchanges a message.
fn exchange(network: &mut Network, group: u64, token: u64) -> usize {
    let before = network.done.len();
    let pairs = (0..SIZE).flat_map(|from| (0..SIZE).map(move |to| (from, to)));
    let pairs: Vec<(u32, u32)> =
        pairs.filter(|(from, to)| RANKS[*from as usize] != RANKS[*to as usize]).collect();
    for (token, (from, to)) in (token..).step_by(2).zip(&pairs) {
        let sends = TransferRequest { group, ..send(*from, *to, 0, vec![7; 100]) };
        let receives = TransferRequest { group, sending: false, ..send(*to, *from, 0, vec![0; 100]) };
        network.transfer(RANKS[*from as usize], token, sends, Duration::ZERO);
        network.transfer(RANKS[*to as usize], token + 1, receives, Duration::ZERO);
    }
    before + 2 * pairs.len()
}

#[test]
fn what_is_sent_on_a_connection_that_the_other_side_has_given_up_for_an_earlier_group_arrives() {
    for late in 0..RACKS.len() {
        // The others hang up for the second group, and the late node uses it before it hears so.
        let mut network = second_group_while_the_first_has_not_ended_at(late);
        let done = exchange(&mut network, 2, 1_000);
        network.run(done);
        network.release_group(late, 1);
        let done = call(&mut network, 2, 10_000, |_| Some((Operation::Alltoall, 0, 1_000)));
        network.run(done);
        let failed = network.done.values().find(|result| result.is_err());
        assert!(failed.is_none(), "{late}: {failed:?}");
        assert!(network.now.as_nanos() < 1_000_000_000, "{late}: {:?}", network.now);
    }
}

#[test]
fn groups_one_after_another_work_in_whatever_order_agents_make_release_and_hear_of_connections() {
    for seed in 0..20 {
        let mut network = Network::new(RACKS.len(), seed, 0, BOUNCE_BYTES);
        network.hangup = Duration::from_millis(3);
        let order = |network: &mut Network| {
            let mut nodes: Vec<usize> = (0..RACKS.len()).collect();
            nodes.sort_by_key(|_| network.random());
            nodes
        };
        network.make_group(&Network::spec(1, &RANKS, &RACKS, true));
        for group in 2..8 {
            // Every node makes the next group before or after it releases the last one, some moments apart.
            let spec = Network::spec(group, &RANKS, &RACKS, true);
            let mut late = Vec::new();
            for node in order(&mut network) {
                let first = network.random().is_multiple_of(2);
                if first {
                    network.release_group(node, group - 1);
                } else {
                    late.push(node);
                }
                network.make_group_on(&spec, [node]);
                let moment = network.random() % 400;
                network.run_for(Duration::from_micros(moment));
            }
            let token = group * 1_000;
            let done = exchange(&mut network, group, token);
            let moment = network.random() % 2_000;
            network.run_for(Duration::from_micros(moment));
            late.into_iter().for_each(|node| network.release_group(node, group - 1));
            network.run(done);
            let done = call(&mut network, group, token + 500, |_| Some((Operation::Alltoall, 0, 1_000)));
            network.run(done);
            let failed = network.done.values().find(|result| result.is_err());
            assert!(failed.is_none(), "seed {seed}, group {group}: {failed:?}");
        }
        assert!(network.now.as_nanos() < 1_000_000_000, "{seed}: {:?}", network.now);
    }
}

#[test]
fn a_group_on_a_connection_that_came_before_it_and_is_made_anew_goes_on() {
    for new in 0..RACKS.len() {
        let mut network = Network::new(RACKS.len(), 9, 0, BOUNCE_BYTES);
        let others = || (0..RACKS.len()).filter(move |node| *node != new);
        // One node has started again: it knows nothing of the first group, for which the others connect to it.
        network.make_group_on(&Network::spec(1, &RANKS, &RACKS, true), others());
        network.run_for(Duration::from_millis(5));
        others().for_each(|node| network.release_group(node, 1));
        let spec = Network::spec(2, &RANKS, &RACKS, true);
        network.make_group_on(&spec, [new]);
        network.make_group_on(&spec, others());
        let done = call(&mut network, 2, 1_000, |_| Some((Operation::Alltoall, 0, 1_000)));
        network.run(done);
        assert!(network.done.values().all(Result::is_ok), "{new}: {:?}", network.done);
    }
}
