//! Options of users: each must match a plain program, with the same bits on any ranks and by every
//! method of assignment.

use crate::runs::{Whole, alone, clustering, loading, noise, ranks, whole, write_bytes};
use cool_kmeans::grid::{Metric, Reals};
use cool_kmeans::npy;
use cool_kmeans::options::{ClusteringOptions, Empty, Init};
use cool_kmeans::point_share::{LoadOptions, PointSelection};
use cool_kmeans::tuning::{AssignMethod, Tuning};
use std::path::{Path, PathBuf};
use std::time::Duration;

const DIMS: usize = 6;

/// Bytes in groups, so that bounds avoid some distances.
fn points(n: usize) -> Vec<u8> {
    let jitter = noise(n * DIMS, 40);
    let corner = noise(12 * DIMS, 200);
    (0..n * DIMS).map(|at| (corner[at / DIMS * 7 % 12 * DIMS + at % DIMS] + jitter[at]) as u8).collect()
}

fn input(directory: &Path, bytes: &[u8]) -> LoadOptions {
    let path = directory.join("points.npy");
    write_bytes(&path, bytes, DIMS);
    loading(&[path], 0)
}

fn column(directory: &Path, numbers: &[f64]) -> PathBuf {
    let path = directory.join("weights.npy");
    npy::write(&path, numbers, 1).expect("written");
    path
}

fn weighing(load: LoadOptions, weights: PathBuf) -> LoadOptions {
    LoadOptions { select: PointSelection { weights: Some(weights), ..load.select }, ..load }
}

fn cosine(load: LoadOptions) -> LoadOptions {
    LoadOptions { select: PointSelection { metric: Metric::Cosine, ..load.select }, ..load }
}

/// Returns the result of one process, after checking that several ranks and all methods of
/// assignment give the same.
fn everywhere(load: &LoadOptions, how: &ClusteringOptions) -> Whole {
    let single = alone(load, how);
    for count in [1, 3, 5] {
        for method in [AssignMethod::Auto, AssignMethod::Full, AssignMethod::Bounds] {
            let tuning = Tuning { method, near: Some(3), ..Tuning::with_threads(2) };
            let found = whole(count, load, &ClusteringOptions { tuning, ..how.clone() });
            assert_eq!(found.result(), single.result(), "{count} ranks, {method:?}");
        }
    }
    single
}

#[test]
fn a_weight_is_as_many_equal_points() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = points(120);
    let first = directory.path().join("first.npy");
    let real: Vec<f64> = bytes[..9 * DIMS].iter().map(|b| f64::from(*b)).collect();
    npy::write(&first, &real, DIMS).expect("written");
    let how = ClusteringOptions { init: Some(Init::File(first)), ..clustering(9, 1) };
    let times = noise(120, 5);
    let weights = column(directory.path(), &times.iter().map(|n| *n as f64).collect::<Vec<_>>());
    let weighted = everywhere(&weighing(input(directory.path(), &bytes), weights), &how);
    let copies = |(point, times): (&[u8], &u64)| point.repeat(*times as usize);
    let repeated: Vec<u8> = bytes.chunks(DIMS).zip(&times).flat_map(copies).collect();
    let plain = alone(&input(directory.path(), &repeated), &how);
    assert_eq!((weighted.centroids, weighted.inertia), (plain.centroids, plain.inertia));
}

#[test]
fn weights_are_relative_and_seeding_uses_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = points(200);
    let thirds: Vec<f64> = noise(200, 7).iter().map(|n| *n as f64 / 3.0).collect();
    for init in [Init::PlusPlus, Init::Parallel] {
        let how = ClusteringOptions { init: Some(init), ..clustering(7, 1) };
        let weights = column(directory.path(), &thirds);
        let one = everywhere(&weighing(input(directory.path(), &bytes), weights), &how);
        let scaled: Vec<f64> = thirds.iter().map(|weight| weight * 4.0).collect();
        let weights = column(directory.path(), &scaled);
        let other = alone(&weighing(input(directory.path(), &bytes), weights), &how);
        assert_eq!(one.centroids, other.centroids);
        let ratio = other.inertia[0] / one.inertia[0];
        assert!((ratio - 4.0).abs() < 1e-9, "{ratio}");
    }
}

#[test]
fn points_without_weight_are_as_good_as_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = points(60);
    let mut weights = vec![0.0; 60];
    weights[..10].fill(1.0);
    for init in [Init::PlusPlus, Init::Parallel] {
        let how = ClusteringOptions { init: Some(init), sample: 6, ..clustering(10, 1) };
        let weights = column(directory.path(), &weights);
        let found = alone(&weighing(input(directory.path(), &bytes), weights), &how);
        assert_eq!(found.inertia.last(), Some(&0.0), "each of the 10 has a centroid");
    }
}

#[test]
fn bad_weights_are_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = points(20);
    for (numbers, expected) in [
        (vec![1.0; 19], "has 19 weights for 20 points; provide one per point"),
        ([vec![1.0; 19], vec![-1.0]].concat(), "row 19 is -1"),
        ([vec![f64::NAN], vec![1.0; 19]].concat(), "row 0 is NaN"),
        (vec![0.0; 20], "has no weight above 0; at least one must be"),
    ] {
        let weights = column(directory.path(), &numbers);
        let outcomes = ranks(3, &weighing(input(directory.path(), &bytes), weights), &clustering(2, 1));
        for outcome in outcomes {
            let message = outcome.map(|_| ()).expect_err("refused").to_string();
            assert!(message.contains("weights.npy: ") && message.contains(expected), "{message}");
        }
    }
}

/// Spherical K-means in floating-point numbers.
fn spherical(points: &[Vec<f64>], mut centroids: Vec<Vec<f64>>, iterations: usize) -> Vec<usize> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let unit = |row: &[f64]| row.iter().map(|x| x / dot(row, row).sqrt()).collect::<Vec<_>>();
    let points: Vec<_> = points.iter().map(|row| unit(row)).collect();
    centroids.iter_mut().for_each(|row| *row = unit(row));
    let mut labels = Vec::new();
    for _ in 0..=iterations {
        let nearest = |p: &Vec<f64>| {
            (0..centroids.len())
                .max_by(|a, b| dot(p, &centroids[*a]).total_cmp(&dot(p, &centroids[*b])))
                .unwrap_or(0)
        };
        labels = points.iter().map(nearest).collect();
        for (j, centroid) in centroids.iter_mut().enumerate() {
            let mine: Vec<_> = points.iter().zip(&labels).filter(|(_, l)| **l == j).map(|(p, _)| p).collect();
            if !mine.is_empty() {
                let sums: Vec<f64> = (0..DIMS).map(|d| mine.iter().map(|p| p[d]).sum()).collect();
                *centroid = unit(&sums);
            }
        }
    }
    labels
}

#[test]
fn cosine_groups_by_direction_regardless_of_length() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = points(300);
    let first = directory.path().join("first.npy");
    let real = |bytes: &[u8]| bytes.iter().map(|b| f64::from(*b)).collect::<Vec<_>>();
    npy::write(&first, &real(&bytes[..8 * DIMS]), DIMS).expect("written");
    let how = ClusteringOptions { init: Some(Init::File(first)), ..clustering(8, 1) };
    let load = cosine(input(directory.path(), &bytes));
    let found = everywhere(&load, &how);
    let rows: Vec<Vec<f64>> = bytes.chunks(DIMS).map(real).collect();
    let expected = spherical(&rows, rows[..8].to_vec(), 8);
    assert_eq!(found.labels.iter().map(|l| *l as usize).collect::<Vec<_>>(), expected);
    for centroid in found.real.chunks(DIMS) {
        let length = centroid.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
    }
    // Longer points have the same directions.
    let longer = directory.path().join("longer.npy");
    let scaled: Vec<f64> =
        rows.iter().enumerate().flat_map(|(i, row)| row.iter().map(move |x| x * (i + 1) as f64)).collect();
    npy::write(&longer, &scaled, DIMS).expect("written");
    let load = cosine(loading(&[longer], 0));
    assert_eq!(alone(&load, &how).labels, found.labels);
}

#[test]
fn floats_distinguish_values_that_16_bits_do_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let (n, groups) = (300, 7);
    // A single distant point makes the range wide; the others differ by less than a 65,535th of it.
    let mut values: Vec<f64> = noise(n * DIMS, 100).iter().map(|x| *x as f64 * 1e-9).collect();
    values.iter_mut().enumerate().for_each(|(at, value)| *value += (at / DIMS % groups) as f64 * 1e-6);
    values[(n - 1) * DIMS..].fill(1.0);
    let (path, first) = (directory.path().join("points.npy"), directory.path().join("first.npy"));
    npy::write(&path, &values, DIMS).expect("written");
    let firsts = [&values[..groups * DIMS], &values[(n - 1) * DIMS..]].concat();
    npy::write(&first, &firsts, DIMS).expect("written");
    let how = ClusteringOptions { init: Some(Init::File(first)), ..clustering(groups + 1, 1) };
    let expected: Vec<u32> = (0..n - 1).map(|i| (i % groups) as u32).chain([groups as u32]).collect();
    let load = loading(&[path], 0);
    assert_ne!(everywhere(&load, &how).labels, expected);
    let load = LoadOptions { select: PointSelection { reals: Reals::Float, ..load.select }, ..load };
    let found = everywhere(&load, &how);
    assert_eq!(found.labels, expected);
    for (j, centroid) in found.real.chunks(DIMS).take(groups).enumerate() {
        for (d, c) in centroid.iter().enumerate() {
            let mine: Vec<f64> = (j..n - 1).step_by(groups).map(|i| values[i * DIMS + d]).collect();
            let mean = mine.iter().sum::<f64>() / mine.len() as f64;
            // Half a step of the points, and half a step of the centroid.
            assert!((c - mean).abs() < 6.0e-8, "{c}, but the mean is {mean}");
        }
    }
    let cosine = LoadOptions { select: PointSelection { metric: Metric::Cosine, ..load.select }, ..load };
    everywhere(&cosine, &how);
}

#[test]
fn the_best_of_several_runs_is_the_run_of_its_seed() {
    let directory = tempfile::tempdir().expect("a directory");
    let load = input(directory.path(), &points(400));
    let how = ClusteringOptions { init: Some(Init::Random), iterations: 3, ..clustering(12, 1) };
    let best = everywhere(&load, &ClusteringOptions { restarts: 4, ..how.clone() });
    let runs: Vec<Whole> = (0..4)
        .map(|run| alone(&load, &ClusteringOptions { seed: how.seed_of(run), ..how.clone() }))
        .collect();
    let least = |w: &Whole| *w.inertia.last().expect("an inertia");
    let expected = runs.iter().min_by(|a, b| least(a).total_cmp(&least(b))).expect("a run");
    assert!(runs.iter().any(|run| least(run) > least(expected)), "they differ");
    assert_eq!(best.result(), expected.result());
}

#[test]
fn iterations_end_when_movement_is_below_a_share_of_variance() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = points(400);
    let load = input(directory.path(), &bytes);
    let how = ClusteringOptions { iterations: 40, ..clustering(12, 1) };
    let all = alone(&load, &how);
    let n = 400.0;
    let column = |d: usize| bytes.iter().skip(d).step_by(DIMS).map(|b| f64::from(*b));
    let variance =
        |d: usize| column(d).map(|x| x * x).sum::<f64>() / n - (column(d).sum::<f64>() / n).powi(2);
    let variance = (0..DIMS).map(variance).sum::<f64>() / DIMS as f64;
    let movement = 0.02;
    let expected =
        all.movements.iter().position(|m| *m <= movement * variance).expect("they come to rest") + 1;
    assert!((2..all.movements.len()).contains(&expected), "{:?}", all.movements);
    let found = everywhere(&load, &ClusteringOptions { movement, ..how });
    assert_eq!((found.movements.len(), found.converged), (expected, true));
}

#[test]
fn the_largest_clusters_are_split_to_fill_empty_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = points(300);
    let first = directory.path().join("first.npy");
    // Of equal centroids, all points belong to the first.
    npy::write(&first, &[100.0; 10 * DIMS], DIMS).expect("written");
    let how = ClusteringOptions { init: Some(Init::File(first)), iterations: 30, ..clustering(10, 1) };
    let load = input(directory.path(), &bytes);
    let kept = everywhere(&load, &how);
    assert!(kept.sizes.contains(&0), "{:?}", kept.sizes);
    let split = everywhere(&load, &ClusteringOptions { empty: Empty::Split, ..how });
    assert!(!split.sizes.contains(&0), "{:?}", split.sizes);
    assert!(split.inertia.last() < kept.inertia.last());
}

#[test]
fn a_mini_batch_pass_matches_plain_code_and_a_few_iterations() {
    let directory = tempfile::tempdir().expect("a directory");
    let load = input(directory.path(), &points(500));
    let how = ClusteringOptions { init: Some(Init::Random), iterations: 1, ..clustering(12, 1) };
    let plain = alone(&load, &how);
    let passed = everywhere(&load, &ClusteringOptions { mini_batch: Some(50), ..how.clone() });
    assert!(passed.inertia[0] < plain.inertia[0], "{:?} {:?}", passed.inertia, plain.inertia);
    // A single batch of all points is one iteration.
    let whole = alone(&load, &ClusteringOptions { mini_batch: Some(500), iterations: 0, ..how });
    assert_eq!(whole.centroids, plain.centroids);
}

#[test]
fn a_time_limit_ends_the_run_after_an_iteration_at_all_ranks() {
    let directory = tempfile::tempdir().expect("a directory");
    let load = input(directory.path(), &points(100));
    let how =
        ClusteringOptions { time_limit: Some(Duration::from_nanos(1)), restarts: 3, ..clustering(5, 1) };
    let found = everywhere(&load, &how);
    assert_eq!(found.movements.len(), 1);
}

#[test]
fn options_that_make_no_sense_are_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let load = input(directory.path(), &points(20));
    let base = || clustering(3, 1);
    let file = || Some(Init::File(directory.path().join("points.npy")));
    for (how, expected) in [
        (ClusteringOptions { restarts: 0, ..base() }, "--restarts 0"),
        (ClusteringOptions { restarts: 2, init: file(), ..base() }, "--restarts with --init FILE"),
        (ClusteringOptions { mini_batch: Some(0), ..base() }, "--mini-batch 0"),
        (ClusteringOptions { movement: -1.0, ..base() }, "--movement -1"),
        (ClusteringOptions { tolerance: f64::NAN, ..base() }, "--tolerance NaN"),
    ] {
        let message = ranks(1, &load, &how).remove(0).map(|_| ()).expect_err("refused").to_string();
        assert!(message.contains(expected), "{message}");
    }
}
