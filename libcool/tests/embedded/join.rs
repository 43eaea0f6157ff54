//! Processes that form groups by keys; here they are threads, each with its own session.

use cool::embedded::EmbeddedAgents;
use cool::{Comm, Error, Op};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the result of each process that joins with a key, rank and size. Processes are assigned
/// to the nodes in turn.
fn join(
    agents: &EmbeddedAgents,
    who: &[(&str, usize, usize)],
    patience: Duration,
) -> Vec<Result<Comm, Error>> {
    let sockets: Vec<&Path> = agents.sockets().collect();
    std::thread::scope(|scope| {
        let start = |(at, (key, rank, size)): (usize, &(&str, usize, usize))| {
            let (socket, rank, size, key) = (sockets[at % sockets.len()], *rank, *size, (*key).to_owned());
            scope.spawn(move || Comm::join_at(socket, &key, rank, size, patience))
        };
        let joining: Vec<_> = who.iter().enumerate().map(start).collect();
        joining.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn processes_with_the_same_key_form_concurrent_groups() {
    let agents = EmbeddedAgents::start(2, 2).unwrap();
    let who = [("a", 0, 3), ("b", 1, 2), ("a", 2, 3), ("a", 1, 3), ("b", 0, 2)];
    // A key can be used again.
    for _ in 0..2 {
        let comms: Vec<Comm> = join(&agents, &who, PATIENCE).into_iter().map(Result::unwrap).collect();
        std::thread::scope(|scope| {
            for (comm, (_, rank, size)) in comms.iter().zip(who) {
                scope.spawn(move || {
                    assert_eq!((comm.rank(), comm.size()), (rank, size));
                    let mut sum = [0];
                    comm.allreduce(&[1u64], &mut sum, Op::Sum).unwrap();
                    assert_eq!(sum, [size as u64]);
                });
            }
        });
        assert_ne!(comms[0].group(), comms[1].group());
    }
}

#[test]
fn agents_wait_until_the_ranks_of_all_groups_have_left() {
    let agents = EmbeddedAgents::start(2, 1).unwrap();
    assert!(agents.wait_until_unused(Duration::ZERO));
    let mut comms = join(&agents, &[("a", 0, 2), ("a", 1, 2)], PATIENCE);
    for comm in comms.drain(..) {
        assert!(!agents.wait_until_unused(Duration::from_millis(1)));
        drop(comm.unwrap());
    }
    assert!(agents.wait_until_unused(PATIENCE));
}

#[test]
fn an_invalid_join_fails_and_the_others_keep_waiting() {
    let agents = EmbeddedAgents::start(1, 1).unwrap();
    let socket = agents.sockets().next().unwrap();
    let short = Duration::from_millis(300);
    let error = |rank, size| Comm::join_at(socket, "k", rank, size, short).unwrap_err().to_string();
    assert_eq!(error(2, 2), "rank 2: join: there is no rank 2 in a group of 2");
    assert!(error(0, 0).contains("there is no rank 0 in a group of 0"));
    let late = error(0, 2);
    assert!(
        late.starts_with("rank 0: join: ") && late.contains("rank 1 of key k did not join in time"),
        "{late}"
    );
    for key in [String::new(), "k".repeat(201)] {
        let e = Comm::join_at(socket, &key, 0, 1, short).unwrap_err().to_string();
        assert_eq!(e, format!("rank 0: join: a key of {} bytes; keys must have 1 to 200 bytes", key.len()));
    }
    Comm::join_at(socket, &"k".repeat(200), 0, 1, PATIENCE).unwrap();

    std::thread::scope(|scope| {
        // Of two processes that claim the same rank, the second is rejected, so this one retries if
        // it was the second.
        let first = scope.spawn(|| {
            loop {
                match Comm::join_at(socket, "two", 0, 2, PATIENCE) {
                    Err(Error::Refused { .. }) => {}
                    done => break done,
                }
            }
        });
        let refused = |rank, size, reason: &str| loop {
            let e =
                Comm::join_at(socket, "two", rank, size, Duration::from_millis(1)).unwrap_err().to_string();
            if e.contains(reason) {
                break;
            }
            assert!(e.contains("did not join in time") || e.contains("gives"), "{e}");
        };
        refused(1, 3, "rank 1 gives 3 ranks for key two, but rank 0 gives 2");
        refused(0, 2, "two processes claim to be rank 0 of key two");
        Comm::join_at(socket, "two", 1, 2, PATIENCE).unwrap();
        first.join().unwrap().unwrap();
    });
}
