//! All operations, end to end: real agents on loopback, real sockets, real shared memory.

use cool::embedded::{Embedded, run};
use cool::{Comm, Element, Error, Op};

/// Ranks, ranks per node, racks: alone, flat, uneven racks, uneven nodes, everything on one node.
const LAYOUTS: [(usize, usize, usize); 8] =
    [(1, 1, 1), (2, 1, 1), (2, 1, 2), (3, 1, 2), (5, 1, 3), (7, 2, 2), (8, 2, 2), (4, 4, 1)];

/// Elements: none, one, few, more than a datagram takes, more than a segment.
const COUNTS: [usize; 5] = [0, 1, 13, 5_000, 150_001];

fn everywhere(body: impl Fn(&Comm) -> Result<(), Error> + Sync) {
    for (ranks, ranks_per_node, racks) in LAYOUTS {
        let how = Embedded { ranks, ranks_per_node, racks };
        for (rank, result) in run(how.clone(), |comm| body(&comm)).unwrap().into_iter().enumerate() {
            result.unwrap_or_else(|e| panic!("{how:?}, rank {rank}: {e}"));
        }
    }
}

/// The first, a middle and the last rank.
fn roots(comm: &Comm) -> Vec<usize> {
    let mut roots = vec![0, comm.size() / 2, comm.size() - 1];
    roots.dedup();
    roots
}

/// What a rank contributes: no two ranks, places or calls alike.
fn data(rank: usize, count: usize, salt: usize) -> Vec<u32> {
    (0..count).map(|i| (rank * 1_000_003 + i * 7 + salt) as u32).collect()
}

#[test]
fn bcast_gives_every_rank_the_roots_data() {
    everywhere(|comm| {
        for root in roots(comm) {
            for count in COUNTS {
                let mut message = data(comm.rank(), count, root);
                comm.bcast(&mut message, root)?;
                assert!(message == data(root, count, root), "{count} elements from rank {root}");
            }
        }
        Ok(())
    });
}

#[test]
fn reduce_combines_at_the_root_and_nowhere_else() {
    everywhere(|comm| {
        for root in roots(comm) {
            for count in COUNTS {
                let mut result = vec![0; count];
                comm.reduce(&data(comm.rank(), count, root), &mut result, Op::Sum, root)?;
                let sum =
                    |i: usize| (0..comm.size()).fold(0u32, |s, r| s.wrapping_add(data(r, i + 1, root)[i]));
                let checked = [0, count / 2, count.saturating_sub(1)];
                for i in checked.into_iter().filter(|i| *i < count) {
                    assert_eq!(result[i], if comm.rank() == root { sum(i) } else { 0 });
                }
            }
        }
        Ok(())
    });
}

#[test]
fn reduce_needs_no_space_but_at_the_root() {
    everywhere(|comm| {
        let mut space = [0; 3];
        let receive = if comm.rank() == 0 { &mut space[..] } else { &mut [] };
        comm.reduce(&[1, 2, 3], receive, Op::Max, 0)
    });
}

#[test]
fn allreduce_combines_at_every_rank() {
    everywhere(|comm| {
        for count in COUNTS {
            let mut result = vec![0; count];
            comm.allreduce(&data(comm.rank(), count, 0), &mut result, Op::Max)?;
            assert!(result == data(comm.size() - 1, count, 0), "{count} elements");
        }
        Ok(())
    });
}

#[test]
fn gather_puts_the_parts_in_rank_order() {
    everywhere(|comm| {
        for root in roots(comm) {
            for count in COUNTS {
                let all: Vec<u32> = (0..comm.size()).flat_map(|r| data(r, count, root)).collect();
                let mut result = if comm.rank() == root { vec![0; all.len()] } else { Vec::new() };
                comm.gather(&data(comm.rank(), count, root), &mut result, root)?;
                assert!(comm.rank() != root || result == all, "{count} elements at rank {root}");
            }
        }
        Ok(())
    });
}

#[test]
fn allgather_puts_the_parts_in_rank_order_everywhere() {
    everywhere(|comm| {
        for count in COUNTS {
            let all: Vec<u32> = (0..comm.size()).flat_map(|r| data(r, count, 5)).collect();
            let mut result = vec![0; all.len()];
            comm.allgather(&data(comm.rank(), count, 5), &mut result)?;
            assert!(result == all, "{count} elements");
        }
        Ok(())
    });
}

#[test]
fn scatter_deals_the_parts_out_in_rank_order() {
    everywhere(|comm| {
        for root in roots(comm) {
            for count in COUNTS {
                let all = data(root, count * comm.size(), 9);
                let send = if comm.rank() == root { &all[..] } else { &[] };
                let mut part = vec![0; count];
                comm.scatter(send, &mut part, root)?;
                assert!(part == all[count * comm.rank()..][..count], "{count} elements from rank {root}");
            }
        }
        Ok(())
    });
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for (ranks, ranks_per_node, racks) in LAYOUTS {
        let come = AtomicUsize::new(0);
        let counts = run(Embedded { ranks, ranks_per_node, racks }, |comm| {
            come.fetch_add(1, Ordering::SeqCst);
            comm.barrier().map(|()| come.load(Ordering::SeqCst))
        });
        for count in counts.unwrap() {
            assert_eq!(count.unwrap(), ranks);
        }
    }
}

/// Every operation on one type: contributions 1 and 2, so that all four results are exact.
fn all_ops<T: Element + From<u8> + PartialEq + std::fmt::Debug>(comm: &Comm) -> Result<(), Error> {
    let mine = [T::from(1 + comm.rank() as u8), T::from(3)];
    for (op, expected) in [(Op::Sum, [3, 6]), (Op::Prod, [2, 9]), (Op::Min, [1, 3]), (Op::Max, [2, 3])] {
        let mut result = [T::from(0); 2];
        comm.allreduce(&mine, &mut result, op)?;
        assert_eq!(result, expected.map(T::from), "{op:?} of {}", std::any::type_name::<T>());
    }
    Ok(())
}

/// `i8` has no `From<u8>`.
fn all_ops_i8(comm: &Comm) -> Result<(), Error> {
    for (op, expected) in [(Op::Sum, -3), (Op::Prod, 2), (Op::Min, -2), (Op::Max, -1)] {
        let mut result = [0i8];
        comm.allreduce(&[-1 - comm.rank() as i8], &mut result, op)?;
        assert_eq!(result, [expected], "{op:?}");
    }
    Ok(())
}

#[test]
fn every_type_has_every_reduction() {
    let results = run(Embedded { ranks: 2, ranks_per_node: 1, racks: 1 }, |comm| {
        all_ops_i8(&comm)?;
        all_ops::<i16>(&comm)?;
        all_ops::<i32>(&comm)?;
        all_ops::<i64>(&comm)?;
        all_ops::<u8>(&comm)?;
        all_ops::<u16>(&comm)?;
        all_ops::<u32>(&comm)?;
        all_ops::<u64>(&comm)?;
        all_ops::<f32>(&comm)?;
        all_ops::<f64>(&comm)
    });
    for result in results.unwrap() {
        result.unwrap();
    }
}

#[test]
fn a_floating_point_sum_is_the_same_bits_at_every_rank_and_on_every_run() {
    let sums = || {
        run(Embedded { ranks: 7, ranks_per_node: 2, racks: 2 }, |comm| {
            let mine: Vec<f32> = (0..2_000).map(|i| ((comm.rank() * 31 + i) as f32).sin() * 1e3).collect();
            let mut sum = vec![0.0; mine.len()];
            comm.allreduce(&mine, &mut sum, Op::Sum)
                .map(|()| sum.iter().map(|s| s.to_bits()).collect::<Vec<_>>())
        })
    };
    let first: Vec<Vec<u32>> = sums().unwrap().into_iter().map(Result::unwrap).collect();
    assert!(first.iter().all(|bits| *bits == first[0]));
    let second: Vec<Vec<u32>> = sums().unwrap().into_iter().map(Result::unwrap).collect();
    assert!(first == second);
}

#[test]
fn many_calls_in_a_row_do_not_mix() {
    everywhere(|comm| {
        for round in 0..30 {
            let root = round % comm.size();
            let mut message = vec![if comm.rank() == root { round } else { usize::MAX } as u64; 100 + round];
            comm.bcast(&mut message, root)?;
            assert!(message.iter().all(|m| *m == round as u64));
            let mut sum = [0u64];
            comm.allreduce(&[round as u64], &mut sum, Op::Sum)?;
            assert_eq!(sum[0], (round * comm.size()) as u64);
        }
        assert_eq!(comm.stats().calls, 60);
        Ok(())
    });
}

#[test]
fn threads_of_one_rank_take_turns() {
    let results = run(Embedded { ranks: 1, ..Embedded::default() }, |comm| {
        std::thread::scope(|scope| {
            let call = || {
                (0..20).try_for_each(|i| {
                    let mut copy = [0];
                    comm.allreduce(&[i], &mut copy, Op::Sum).map(|()| assert_eq!(copy, [i]))
                })
            };
            let threads = [scope.spawn(call), scope.spawn(call)];
            threads.into_iter().try_for_each(|t| t.join().unwrap())
        })
    });
    results.unwrap().into_iter().for_each(|r| r.unwrap());
}

#[test]
fn places_follow_the_layout() {
    let places = run(Embedded { ranks: 5, ranks_per_node: 2, racks: 2 }, |comm| {
        let places: Vec<_> =
            (0..comm.size()).filter_map(|r| comm.place(r).map(|p| (p.node, p.rack))).collect();
        assert_eq!(comm.place(comm.size()), None);
        (comm.rank(), places)
    });
    let expected = vec![(0, 0), (0, 0), (1, 0), (1, 0), (2, 1)];
    for (rank, seen) in places.unwrap().into_iter().enumerate() {
        assert_eq!(seen, (rank, expected.clone()));
    }
}
