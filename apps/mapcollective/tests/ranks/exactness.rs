//! Results must equal those of a plain program, and have the same bits with any number of ranks and
//! threads.

use crate::running::{SPREADS, Spread, all_ranks, each_rank};
use cool_map::{Error, Job, Keyed, List, Partitions, Rows, StageKind, Sum};
use std::collections::BTreeMap;

/// Number of partitions in the tests.
const PARTITIONS: usize = 23;

/// Returns the numbers of a partition. Later partitions have more.
fn numbers(partition: usize) -> impl Iterator<Item = u64> {
    (0..partition as u64 * 7)
        .map(move |i| (i * i + partition as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40)
}

fn dealt(job: &Job<'_>) -> Result<Partitions<usize>, Error> {
    let mut parts = Partitions::new(PARTITIONS);
    job.deal(&mut parts, Ok::<_, Error>)?;
    Ok(parts)
}

#[test]
fn values_of_a_key_meet_at_its_owner() {
    let mut plain = BTreeMap::<String, u64>::new();
    (0..PARTITIONS).flat_map(numbers).for_each(|n| *plain.entry(format!("k{}", n % 97)).or_default() += n);
    for spread in SPREADS {
        let found = all_ranks(spread, |job| {
            let mapped = job.map(&mut dealt(job)?, &Keyed::new(), |part, out| {
                numbers(*part).for_each(|n| out.add(format!("k{}", n % 97), Sum(n)));
                Ok::<_, Error>(())
            })?;
            let mine = job.regroup(mapped)?;
            let all = job.combine(mine.clone())?;
            assert_eq!(job.combine_at(0, mine)?.is_some(), job.rank() == 0);
            Ok(all.into_iter().map(|(key, sum)| (key, sum.0)).collect::<BTreeMap<_, _>>())
        });
        assert_eq!(found, plain, "{spread:?}");
    }
}

/// Returns sums of real numbers that depend on the order of additions.
fn real_sums(job: &Job<'_>) -> Result<Vec<(usize, u64)>, Error> {
    let mapped = job.map(&mut dealt(job)?, &Rows::<f64>::new(11, 2), |part, out| {
        numbers(*part).for_each(|n| out.add(n as usize % 11, &[(n as f64).sqrt(), 1.0 / (n as f64 + 0.1)]));
        Ok::<_, Error>(())
    })?;
    let all = job.combine(job.regroup(mapped)?)?;
    Ok(all.iter().flat_map(|(row, sums)| sums.iter().map(move |sum| (row, sum.to_bits()))).collect())
}

#[test]
fn real_sums_are_bitwise_equal_on_any_ranks_and_threads() {
    let one = all_ranks(SPREADS[0], real_sums);
    let mut plain = [[0.0; 2]; 11];
    for n in (0..PARTITIONS).flat_map(numbers) {
        plain[n as usize % 11][0] += (n as f64).sqrt();
        plain[n as usize % 11][1] += 1.0 / (n as f64 + 0.1);
    }
    for ((_, bits), plain) in one.iter().zip(plain.as_flattened()) {
        let sum = f64::from_bits(*bits);
        assert!((sum - plain).abs() <= 1e-9 * plain.abs(), "{sum} is not {plain}");
    }
    for spread in SPREADS {
        assert_eq!(all_ranks(spread, real_sums), one, "{spread:?}");
    }
}

#[test]
fn lists_are_merged_in_the_order_of_partitions() {
    let plain: Vec<usize> = (0..PARTITIONS).collect();
    for spread in SPREADS {
        let found = all_ranks(spread, |job| {
            let mapped = job.map(&mut dealt(job)?, &Keyed::new(), |part, out| {
                out.add((), List(vec![*part]));
                Ok::<_, Error>(())
            })?;
            Ok(job.combine(job.regroup(mapped)?)?.get(&()).cloned())
        });
        assert_eq!(found, Some(List(plain.clone())), "{spread:?}");
    }
}

/// Regroups and combines rows of integers. Each partition adds `each` rows of numbers. Returns the
/// sums, and the kinds of the stages that were executed, at rank 0.
fn integer_rows(
    spread: Spread,
    keys: usize,
    each: usize,
    factor: i64,
) -> (Vec<(usize, Vec<i64>)>, Vec<StageKind>) {
    let mut results = each_rank(spread, |job| {
        let mut progress = cool_map::Progress::new();
        let mut parts = dealt(job)?;
        job.iterate(
            &mut progress,
            || Ok(Vec::new()),
            |_, done| done == 1,
            |_, _| {
                let mapped = job.map(&mut parts, &Rows::<i64>::new(keys, 3), |part, out| {
                    for n in (0..each).map(|i| 61 * (i + 97 * *part)) {
                        out.add(n % keys, &[factor * (n % 7) as i64, -1, 300]);
                    }
                    Ok::<_, Error>(())
                })?;
                let all = job.combine(job.regroup(mapped)?)?;
                let rows = all.iter().map(|(row, sums)| (row, sums.to_vec())).collect();
                Ok::<_, Error>(rows)
            },
        )?;
        let kinds = progress.reports()[0].stages.iter().map(|stage| stage.kind).collect::<Vec<_>>();
        Ok((progress.state().cloned().unwrap_or_default(), kinds))
    });
    results.swap_remove(0)
}

#[test]
fn rows_are_regrouped_the_cheaper_way_with_the_same_result() {
    let kinds = |kinds: &[StageKind], kind| kinds.iter().filter(|k| **k == kind).count();
    for (keys, each, factor, expected) in [
        (40, 60, 1, StageKind::RegroupDense),
        (40, 60, 1 << 50, StageKind::RegroupDense),
        (4000, 3, 1, StageKind::RegroupSparse),
    ] {
        let one = integer_rows(SPREADS[0], keys, each, factor).0;
        for spread in SPREADS.into_iter().filter(|spread| spread.ranks > spread.ranks_per_node) {
            let (rows, stages) = integer_rows(spread, keys, each, factor);
            assert_eq!(rows, one, "{spread:?}");
            assert_eq!(kinds(&stages, expected), 1, "{spread:?}: {stages:?}");
            assert_eq!(kinds(&stages, StageKind::MergeOnNode) == 1, spread.ranks_per_node > 1);
        }
    }
}

#[test]
fn ranks_merge_in_their_rack_where_that_relieves_rack_links() {
    let (keys, each, factor) = (40_000, 600, 1);
    let one = integer_rows(SPREADS[0], keys, each, factor).0;
    for ranks in [6, 8, 11, 16] {
        let spread = Spread { ranks, ranks_per_node: 1, threads: 1 };
        let (rows, stages) = integer_rows(spread, keys, each, factor);
        assert_eq!(rows, one, "{spread:?}");
        assert!(stages.contains(&StageKind::MergeInRack), "{spread:?}: {stages:?}");
    }
}

#[test]
fn every_rank_receives_the_broadcast_value() {
    for spread in SPREADS {
        let last = spread.ranks - 1;
        let got = all_ranks(spread, |job| {
            let own = (job.rank() == last).then(|| ("state".to_owned(), 7));
            let mut rows = Rows::<i32>::new(9, 1);
            rows.add(job.rank(), &[5]);
            let rows = job.broadcast_table(last, rows)?;
            let list: Vec<_> = rows.iter().map(|(row, n)| (row, n[0])).collect();
            Ok((job.broadcast(last, own)?, list))
        });
        assert_eq!(got, (("state".to_owned(), 7), vec![(last, 5)]));
    }
}

#[test]
fn a_job_of_one_process_needs_no_ranks() {
    let options = cool_map::Options { threads: 2, ..Default::default() };
    let alone = Job::alone(options);
    assert_eq!(real_sums(&alone).expect("sums"), all_ranks(SPREADS[3], real_sums));
}

#[test]
fn rows_in_parts_equal_the_rows_at_once() {
    let keys = 300;
    for (spread, width, most) in SPREADS.into_iter().flat_map(|spread| [(spread, 100, 8), (spread, 1, 1)]) {
        all_ranks(spread, |job| {
            let mut mine = Rows::<i32>::new(keys, width);
            let start = |rank: usize| keys * rank / job.size();
            for row in (start(job.rank())..start(job.rank() + 1)).filter(|row| row % 5 > 0) {
                mine.add(row, &vec![row as i32 * 1000; width]);
            }
            let (mut parts, mut rows, mut ends) = (Vec::new(), Vec::new(), Vec::new());
            let sum = job.combine_in_parts(mine.clone(), 3, |part, runs| {
                parts.push(runs.to_vec());
                rows.extend(part.iter().map(|(row, numbers)| (row, numbers.to_vec())));
                // The rows of a part must be in its runs.
                assert!(part.iter().all(|(row, _)| runs.iter().any(|run| run.contains(&row))));
                ends.extend(runs.iter().flat_map(Clone::clone));
            })?;
            assert_eq!(sum, 3 * job.size() as u64);
            assert_eq!(parts.len(), if job.size() > 1 { most } else { 1 }, "{spread:?}");
            ends.sort_unstable();
            assert!(ends.into_iter().eq(0..keys), "each row is in one run");
            rows.sort_unstable();
            let whole = job.combine(mine)?;
            assert!(rows.iter().map(|(row, n)| (*row, &n[..])).eq(whole.iter()));
            Ok(())
        });
    }
}
