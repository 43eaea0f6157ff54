//! All operations end to end, with real agents on loopback, real sockets and real shared memory.

use cool::embedded::{Embedded, run};
use cool::{Arrays, Collective, Comm, Element, Error, Op, Operation};

/// Ranks, ranks per node, and racks: alone, flat, uneven racks, uneven nodes, and all ranks on one
/// node.
const LAYOUTS: [(usize, usize, usize); 8] =
    [(1, 1, 1), (2, 1, 1), (2, 1, 2), (3, 1, 2), (5, 1, 3), (7, 2, 2), (8, 2, 2), (4, 4, 1)];

/// Numbers of elements: none, one, few, more than a datagram holds, and more than a pipeline
/// segment.
const COUNTS: [usize; 5] = [0, 1, 13, 5_000, 150_001];

fn everywhere(body: impl Fn(&Comm) -> Result<(), Error> + Sync) {
    for (ranks, ranks_per_node, racks) in LAYOUTS {
        let how = Embedded { ranks, ranks_per_node, racks };
        for (rank, result) in run(how.clone(), |comm| body(&comm)).unwrap().into_iter().enumerate() {
            result.unwrap_or_else(|e| panic!("{how:?}, rank {rank}: {e}"));
        }
    }
}

/// Returns the first, a middle and the last rank.
fn roots(comm: &Comm) -> Vec<usize> {
    let mut roots = vec![0, comm.size() / 2, comm.size() - 1];
    roots.dedup();
    roots
}

/// Returns a rank's input, which differs between ranks, positions and calls.
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

/// Returns the sum of the inputs of a range of ranks, if all inputs have `count` elements.
fn sum(ranks: std::ops::Range<usize>, count: usize, salt: usize) -> Vec<u32> {
    let mut sum = vec![0u32; count];
    for rank in ranks {
        sum.iter_mut().zip(data(rank, count, salt)).for_each(|(s, d)| *s = s.wrapping_add(d));
    }
    sum
}

#[test]
fn reduce_scatter_deals_the_combination_out_in_rank_order() {
    everywhere(|comm| {
        for count in COUNTS {
            let mut part = vec![0; count];
            let whole = count * comm.size();
            comm.reduce_scatter(&data(comm.rank(), whole, 3), &mut part, Op::Sum)?;
            assert!(
                part == sum(0..comm.size(), whole, 3)[count * comm.rank()..][..count],
                "{count} elements"
            );
        }
        Ok(())
    });
}

#[test]
fn scan_combines_up_to_each_rank_and_exscan_before_it() {
    everywhere(|comm| {
        let rank = comm.rank();
        for count in COUNTS {
            let mut result = vec![77; count];
            comm.exscan(&data(rank, count, 4), &mut result, Op::Sum)?;
            let before = if rank == 0 { vec![77; count] } else { sum(0..rank, count, 4) };
            assert!(result == before, "exscan of {count} elements at rank {rank}");
            comm.scan(&data(rank, count, 4), &mut result, Op::Sum)?;
            assert!(result == sum(0..rank + 1, count, 4), "scan of {count} elements at rank {rank}");
        }
        Ok(())
    });
}

#[test]
fn alltoall_transposes() {
    everywhere(|comm| {
        for count in [0, 1, 13, 30_000] {
            let mut result = vec![0; count * comm.size()];
            comm.alltoall(&data(comm.rank(), result.len(), 6), &mut result)?;
            for (from, part) in result.chunks(count.max(1)).enumerate() {
                let sent = data(from, count * comm.size(), 6);
                assert!(part == &sent[count * comm.rank()..][..count], "{count} elements from rank {from}");
            }
        }
        Ok(())
    });
}

/// Returns lengths of parts: none, some, and many; and all 0.
fn lengths(parts: usize) -> [Vec<usize>; 3] {
    [[3, 0, 5_001], [0, 70_000, 1], [0, 0, 0]].map(|of| (0..parts).map(|i| of[i * i % 3]).collect())
}

#[test]
fn parts_of_unequal_lengths_are_gathered_and_scattered() {
    everywhere(|comm| {
        let rank = comm.rank();
        for root in roots(comm) {
            for counts in lengths(comm.size()) {
                let all: Vec<u32> =
                    counts.iter().enumerate().flat_map(|(r, count)| data(r, *count, root)).collect();
                let mine = data(rank, counts[rank], root);
                let mut result = if rank == root { vec![0; all.len()] } else { Vec::new() };
                comm.gatherv(&mine, &mut result, &counts, root)?;
                assert!(rank != root || result == all, "gatherv of {counts:?} at rank {root}");
                let mut result = vec![0; all.len()];
                comm.allgatherv(&mine, &mut result, &counts)?;
                assert!(result == all, "allgatherv of {counts:?}");
                let mut part = vec![0; counts[rank]];
                comm.scatterv(if rank == root { &all } else { &[] }, &mut part, &counts, root)?;
                assert!(part == mine, "scatterv of {counts:?} from rank {root}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_combination_is_dealt_out_in_parts_of_unequal_lengths() {
    everywhere(|comm| {
        let rank = comm.rank();
        for counts in lengths(comm.size()) {
            let whole = counts.iter().sum();
            let start: usize = counts[..rank].iter().sum();
            let mut part = vec![0; counts[rank]];
            comm.reduce_scatter_counts(&data(rank, whole, 8), &mut part, &counts, Op::Sum)?;
            assert!(part == sum(0..comm.size(), whole, 8)[start..][..part.len()], "{counts:?}");
        }
        Ok(())
    });
}

#[test]
fn alltoallv_sends_each_its_part() {
    everywhere(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        for counts in lengths(size * size) {
            let row = |from: usize| &counts[from * size..][..size];
            let sent = |from: usize| data(from, row(from).iter().sum(), 2);
            let to_me =
                |from: usize| sent(from)[row(from)[..rank].iter().sum()..][..row(from)[rank]].to_vec();
            let expected: Vec<u32> = (0..size).flat_map(to_me).collect();
            let mut result = vec![0; expected.len()];
            comm.alltoallv(&sent(rank), &mut result, &counts)?;
            assert!(result == expected, "{counts:?}");
        }
        Ok(())
    });
}

#[test]
fn every_operation_with_parts_can_be_done_in_place() {
    everywhere(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        for root in [size / 2] {
            for counts in lengths(size) {
                let own: Vec<u32> = data(rank, counts[rank], root);
                let all: Vec<u32> = (0..size).flat_map(|r| data(r, counts[r], root)).collect();
                let start: usize = counts[..rank].iter().sum();
                let mut mine = vec![0; all.len()];
                mine[start..start + own.len()].copy_from_slice(&own);
                let gathered = &mut mine.clone();
                comm.allgatherv_in_place(gathered, &counts)?;
                assert!(*gathered == all, "allgatherv of {counts:?}");
                let mut data = if rank == root { mine } else { own.clone() };
                comm.gatherv_in_place(&mut data, &counts, root)?;
                assert!(data == if rank == root { &all[..] } else { &own }, "gatherv of {counts:?}");
                data.truncate(if rank == root { usize::MAX } else { 0 });
                data.resize(data.len().max(own.len()), 0);
                comm.scatterv_in_place(&mut data, &counts, root)?;
                assert!(data == if rank == root { &all[..] } else { &own }, "scatterv of {counts:?}");
                let mut whole = all.clone();
                comm.start().reduce_scatter_counts_in_place(&mut whole, &counts, Op::Max)?.wait()?;
                assert!(whole[..own.len()] == own, "reduce_scatter of {counts:?}");
                assert!(whole[own.len()..] == all[own.len()..], "the rest of {counts:?}");
            }
        }
        for count in [0, 3, 5_001] {
            // The counts from i to j and from j to i are equal.
            let block = |from: usize, to: usize| data(from * size + to, count * (from * to % 3), 1);
            let counts: Vec<usize> =
                (0..size * size).map(|pair| block(pair / size, pair % size).len()).collect();
            let mut data: Vec<u32> = (0..size).flat_map(|to| block(rank, to)).collect();
            comm.alltoallv_in_place(&mut data, &counts)?;
            assert!(data == (0..size).flat_map(|from| block(from, rank)).collect::<Vec<u32>>());
        }
        Ok(())
    });
}

#[test]
fn ranks_with_only_their_own_counts_exchange_them() {
    everywhere(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        for root in [size / 2] {
            for counts in lengths(size) {
                let all: Vec<u32> = (0..size).flat_map(|r| data(r, counts[r], root)).collect();
                let mine = data(rank, counts[rank], root);
                let known = if rank == root { &counts[..] } else { &[] };
                let mut result = if rank == root { vec![0; all.len()] } else { Vec::new() };
                comm.gatherv_of_own(&mine, &mut result, known, root)?;
                assert!(rank != root || result == all, "gatherv of {counts:?} at rank {root}");
                let mut part = vec![0; counts[rank]];
                comm.scatterv_of_own(if rank == root { &all } else { &[] }, &mut part, known, root)?;
                assert!(part == mine, "scatterv of {counts:?} from rank {root}");
            }
        }
        for counts in lengths(size * size) {
            let block = |from: usize, to: usize| data(from * size + to, counts[from * size + to], 3);
            let sent: Vec<usize> = (0..size).map(|to| block(rank, to).len()).collect();
            let mut received: Vec<usize> = (0..size).map(|from| block(from, rank).len()).collect();
            let send: Vec<u32> = (0..size).flat_map(|to| block(rank, to)).collect();
            let expected: Vec<u32> = (0..size).flat_map(|from| block(from, rank)).collect();
            let mut recv = vec![0; expected.len()];
            comm.alltoallv_of_own(&send, &mut recv, &sent, &received)?;
            assert!(recv == expected, "{counts:?}");
            // All ranks get the error if two of them disagree.
            received[0] += usize::from(rank == size - 1);
            let e = comm.alltoallv_of_own(&send, &mut recv, &sent, &received).unwrap_err().to_string();
            assert!(e.contains(&format!("alltoallv: rank 0 sends {}", counts[size - 1])), "{e}");
        }
        Ok(())
    });
}

#[test]
fn send_and_receive_ranges_may_overlap() {
    everywhere(|comm| {
        let (rank, size) = (comm.rank(), comm.size());
        for (count, at) in [(7, rank), (40_000, rank), (7, size - 1 - rank)] {
            // At its own place the part is in place; at another place it must be copied.
            let mut data: Vec<u32> = vec![0; count * size + 3];
            let send = 3 + at * count..3 + (at + 1) * count;
            data[send.clone()].fill(rank as u32 + 1);
            let arrays = Arrays::Within(data.as_mut_slice().into(), send, 3..3 + count * size);
            comm.collective(Collective::new(Operation::Allgather, arrays))?;
            let all = (0..size).flat_map(|rank| vec![rank as u32 + 1; count]);
            assert!(data[3..].iter().copied().eq(all) && data[..3] == [0; 3]);
        }
        Ok(())
    });
}

#[test]
fn a_forced_plan_is_the_one_that_runs_until_it_is_taken_back() {
    everywhere(|comm| {
        let mut sum = vec![0; 10_000];
        let mut all = |plan| {
            comm.allreduce(&data(comm.rank(), sum.len(), 1), &mut sum, Op::Max)?;
            assert!(sum == data(comm.size() - 1, sum.len(), 1), "by {plan}");
            Ok::<String, Error>(comm.last_plan())
        };
        let picked = all("the default")?;
        assert!(!picked.is_empty());
        for plan in ["cool-b-r", "flat:ring", "rack:binomial,center:recursive-doubling/4096"] {
            comm.set_plan(Operation::Allreduce, plan)?;
            let went = all(plan)?;
            assert!(plan.starts_with(&went) || went.contains("/4096"), "{went} instead of {plan}");
        }
        comm.set_plan(Operation::Allreduce, "")?;
        assert_eq!(all("the default")?, picked);
        // Plans of other operations are not affected.
        comm.set_plan(Operation::Gather, "flat:binomial")?;
        assert_eq!(all("the default")?, picked);
        let part = [comm.rank() as u8; 3];
        let mut parts = vec![0; 3 * comm.size()];
        comm.gather(&part, &mut parts, 0)?;
        assert_eq!(comm.last_plan(), "flat:binomial");
        comm.gatherv(&part, &mut parts, &vec![3; comm.size()], 0)?;
        assert_eq!(comm.last_plan(), "flat:binomial");
        Ok(())
    });
}

#[test]
fn no_rank_leaves_a_barrier_before_all_have_joined() {
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

/// Executes every operation on one type, with inputs 1 and 2, so that all results are exact.
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
fn floating_point_sums_are_bitwise_equal_for_every_plan() {
    for plan in ["", "cool-b-r", "flat:recursive-doubling", "flat:ring", "sharded"] {
        let sums = || -> Vec<Vec<u32>> {
            let sums = run(Embedded { ranks: 7, ranks_per_node: 2, racks: 2 }, |comm| {
                comm.set_plan(Operation::Allreduce, plan)?;
                let mine: Vec<f32> =
                    (0..2_000).map(|i| ((comm.rank() * 31 + i) as f32).sin() * 1e3).collect();
                let mut sum = vec![0.0; mine.len()];
                comm.allreduce(&mine, &mut sum, Op::Sum)
                    .map(|()| sum.iter().map(|s| s.to_bits()).collect::<Vec<_>>())
            });
            sums.unwrap().into_iter().map(Result::unwrap).collect()
        };
        let first = sums();
        assert!(first.iter().all(|bits| *bits == first[0]), "{plan}: ranks differ");
        assert!(first == sums(), "{plan}: runs differ");
    }
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
