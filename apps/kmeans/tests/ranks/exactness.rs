//! Results must be the same on any number of ranks and threads, and equal plain references.

use crate::runs::{Whole, alone, clustering, loading, noise, whole, write_bytes};
use cool_distance::SimdLevel;
use cool_kmeans::grid::{Points, Precision};
use cool_kmeans::options::{ClusteringOptions, Init};
use cool_kmeans::partition::Subsample;
use cool_kmeans::tuning::{AssignMethod, Tuning};
use cool_kmeans::{npy, seeding};
use std::path::{Path, PathBuf};

/// Lloyd's iterations as in a textbook, one point and one centroid at a time, in exact integers.
fn reference(
    points: &[Vec<i128>],
    first: Vec<Vec<i128>>,
    iterations: usize,
) -> (Vec<Vec<i128>>, Vec<usize>, Vec<i128>) {
    let mut centroids = first;
    let mut inertia = Vec::new();
    loop {
        let apart = |p: &[i128], c: &[i128]| p.iter().zip(c).map(|(x, c)| (x * 128 - c).pow(2)).sum::<i128>();
        let nearest = |p: &Vec<i128>| {
            let mut best = 0;
            for j in 1..centroids.len() {
                if apart(p, &centroids[j]) < apart(p, &centroids[best]) {
                    best = j;
                }
            }
            best
        };
        let labels: Vec<usize> = points.iter().map(nearest).collect();
        inertia.push(points.iter().zip(&labels).map(|(p, &j)| apart(p, &centroids[j])).sum());
        let mut next = centroids.clone();
        for (j, centroid) in next.iter_mut().enumerate() {
            let mine: Vec<_> = points.iter().zip(&labels).filter(|(_, l)| **l == j).map(|(p, _)| p).collect();
            let n = mine.len() as i128;
            for (d, c) in centroid.iter_mut().enumerate() {
                if n > 0 {
                    let sum: i128 = mine.iter().map(|p| p[d] * 128).sum();
                    *c = (2 * sum + n) / (2 * n);
                }
            }
        }
        if inertia.len() > iterations
            || next == centroids
                && inertia.len() > 1
                && inertia[inertia.len() - 2] == inertia[inertia.len() - 1]
        {
            return (centroids, labels, inertia);
        }
        centroids = next;
    }
}

#[test]
fn any_ranks_and_threads_equal_the_reference_to_the_bit() {
    let (n, dims, k) = (311, 37, 7);
    let bytes: Vec<u8> = noise(n * dims, 256).into_iter().map(|v| v as u8).collect();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("points.npy");
    write_bytes(&path, &bytes, dims);

    let sample = Subsample::new(n as u64, 3 * k as u64, 5);
    let row = |i: u64| bytes[i as usize * dims..][..dims].iter().map(|&b| i16::from(b)).collect::<Vec<_>>();
    let values = (0..sample.len()).flat_map(|i| row(sample.row(i))).collect();
    let first = seeding::choose(&Points::new(Precision::Byte, dims, values), k, 5);
    let wide = |row: &[i16]| row.iter().map(|&v| i128::from(v)).collect::<Vec<_>>();
    let points: Vec<Vec<i128>> = (0..n as u64).map(|i| wide(&row(i))).collect();
    let (centroids, labels, inertia) = reference(&points, first.rows().map(wide).collect(), 8);

    let check = |found: &Whole| {
        let expected: Vec<i128> = centroids.concat();
        assert_eq!(found.centroids.iter().map(|&c| i128::from(c)).collect::<Vec<_>>(), expected);
        assert_eq!(found.labels.iter().map(|&l| l as usize).collect::<Vec<_>>(), labels);
        let real: Vec<f64> = inertia.iter().map(|&i| i as f64 / 16_384.0).collect();
        assert_eq!(found.inertia, real);
    };
    let single = alone(&loading(std::slice::from_ref(&path), 0), &clustering(k, 1));
    check(&single);
    for (ranks, threads) in [(1, 3), (2, 1), (5, 2), (16, 1), (16, 4)] {
        let found = whole(ranks, &loading(std::slice::from_ref(&path), 0), &clustering(k, threads));
        check(&found);
        assert_eq!(found.result(), single.result(), "{ranks} ranks of {threads} threads");
    }
    for level in SimdLevel::available() {
        for method in [AssignMethod::Auto, AssignMethod::Full, AssignMethod::Bounds] {
            let tuning = Tuning { level, method, near: Some(3), memory: None, threads: 2 };
            let how = ClusteringOptions { tuning, ..clustering(k, 2) };
            let found = whole(3, &loading(std::slice::from_ref(&path), 0), &how);
            assert_eq!(found.result(), single.result(), "{level}, {method:?}");
        }
    }
}

#[test]
fn parallel_seeding_is_rank_independent_and_finds_far_groups() {
    let (n, dims, k) = (900, 5, 6);
    let (values, group) = groups(n, dims, k);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("points.npy");
    npy::write(&path, &values, dims).expect("written");
    let load = loading(std::slice::from_ref(&path), 0);
    for k in [1, k, 40, 700] {
        let how = |threads| ClusteringOptions { init: Some(Init::Parallel), ..clustering(k, threads) };
        let single = alone(&load, &how(1));
        for (ranks, threads) in [(2, 1), (5, 3), (16, 1)] {
            assert_eq!(whole(ranks, &load, &how(threads)).result(), single.result(), "{k} of {ranks} ranks");
        }
        if k == 6 {
            let first = |g: usize| single.labels[group.iter().position(|&h| h == g).expect("a point")];
            assert!((0..n).all(|i| single.labels[i] == first(group[i])), "groups are mixed");
        }
    }
}

/// Returns groups of points around distant corners, and the group of each point.
fn groups(n: usize, dims: usize, k: usize) -> (Vec<f64>, Vec<usize>) {
    let jitter = noise(n * dims, 1000);
    let group = |i: usize| i * 7 % k;
    let value = |i: usize| {
        let corner = group(i / dims) * (1 + i % dims) % k;
        corner as f64 * 10.0 - 12.5 + jitter[i] as f64 / 1000.0
    };
    ((0..n * dims).map(value).collect(), (0..n).map(group).collect())
}

#[test]
fn real_numbers_give_group_means_from_npy_and_text_alike() {
    let (n, dims, k) = (400, 5, 6);
    let (values, group) = groups(n, dims, k);
    let directory = tempfile::tempdir().expect("a directory");
    let array = directory.path().join("points.npy");
    npy::write(&array, &values, dims).expect("written");
    let line = |i: usize| {
        let numbers: Vec<String> = values[i * dims..(i + 1) * dims].iter().map(f64::to_string).collect();
        format!("picture{i} {i} 0 {}\n", numbers.join(" "))
    };
    let halves = [("a.txt", 0..150), ("b.txt", 150..n)];
    let texts = halves.map(|(name, lines)| {
        let path = directory.path().join(name);
        std::fs::write(&path, lines.map(line).collect::<String>()).expect("written");
        path
    });

    let single = alone(&loading(std::slice::from_ref(&array), 0), &clustering(k, 1));
    let from_array = whole(5, &loading(std::slice::from_ref(&array), 0), &clustering(k, 2));
    let from_text = whole(3, &loading(&texts, dims), &clustering(k, 2));
    assert_eq!(from_array.result(), single.result());
    assert_eq!(from_text.real, single.real);
    assert_eq!(from_text.labels, single.labels);
    assert!(single.converged, "far groups are found within 8 iterations");

    for (j, centroid) in single.real.chunks_exact(dims).enumerate() {
        let members: Vec<usize> = (0..n).filter(|&i| single.labels[i] as usize == j).collect();
        assert!(members.iter().all(|&i| group[i] == group[members[0]]), "cluster {j} mixes groups");
        for (d, c) in centroid.iter().enumerate() {
            let mean = members.iter().map(|&i| values[i * dims + d]).sum::<f64>() / members.len() as f64;
            assert!((c - mean).abs() < 0.002, "centroid {j}, coordinate {d}: {c}, but the mean is {mean}");
        }
    }
    let squares = |i: usize| {
        let c = &single.real[single.labels[i] as usize * dims..][..dims];
        c.iter().zip(&values[i * dims..]).map(|(c, v)| (c - v).powi(2)).sum::<f64>()
    };
    let inertia: f64 = (0..n).map(squares).sum();
    let reported = single.inertia.last().expect("an inertia");
    assert!((reported / inertia - 1.0).abs() < 1e-3, "{reported}, but {inertia} from the points themselves");
}

#[test]
fn sums_too_large_for_32_bits_are_exact() {
    let n = 140_000;
    // A single distant point makes the grid wide; all others are at its opposite end.
    let values: Vec<f64> = (0..n).map(|i| if i == 77 { 1e6 } else { 0.0 }).collect();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("points.npy");
    npy::write(&path, &values, 1).expect("written");
    let mut how = clustering(2, 2);
    how.sample = n;
    let found = whole(3, &loading(std::slice::from_ref(&path), 0), &how);
    let mut sizes = found.sizes.clone();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, n as i64 - 1]);
    assert_eq!(found.inertia.last(), Some(&0.0));
}

fn picture(directory: &Path, name: &str, width: u32, height: u32) -> PathBuf {
    let values = noise(64, 256);
    let pixel = |x: u32, y: u32| {
        let grain = values[(x / 3 * 7 + y / 5 * 11) as usize % 64];
        image::Rgb([grain as u8, (grain / 2 + u64::from(x) % 97) as u8, (y % 256) as u8])
    };
    let path = directory.join(name);
    image::RgbImage::from_fn(width, height, pixel).save(&path).expect("saved");
    path
}

#[test]
fn patches_cluster_alike_on_any_ranks_subsampled_or_not() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, width, height) in
        [("a.png", 90, 80), ("b.jpg", 121, 64), ("c.png", 19, 40), ("d.png", 70, 150)]
    {
        picture(directory.path(), name, width, height);
    }
    for max_points in [u64::MAX, 100] {
        let mut load = loading(&[directory.path().to_owned()], 0);
        load.select.max_points = max_points;
        let single = alone(&load, &clustering(9, 1));
        assert_eq!(single.words.len(), 3);
        for ranks in [2, 16] {
            let found = whole(ranks, &load, &clustering(9, 2));
            assert_eq!(found.result(), single.result(), "{ranks} ranks");
        }
    }
}

#[test]
fn bad_pictures_are_left_out_alike_on_all_ranks() {
    let directory = tempfile::tempdir().expect("a directory");
    let good = ["a.png", "c.png"].map(|name| picture(directory.path(), name, 60, 90));
    let short = directory.path().join("b.png");
    let bytes = std::fs::read(&good[0]).expect("read");
    std::fs::write(&short, &bytes[..bytes.len() * 2 / 3]).expect("written");
    let junk = directory.path().join("d.jpg");
    std::fs::write(&junk, b"junk").expect("written");

    let mut load = loading(&[directory.path().to_owned()], 0);
    load.input.skip_bad = true;
    let found = whole(5, &load, &clustering(4, 1));
    assert_eq!(found.skipped, [short, junk]);
    let clean = alone(&loading(&good, 0), &clustering(4, 1));
    assert_eq!(found.centroids, clean.centroids);
}

#[test]
fn ranks_without_points_take_part() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("points.npy");
    write_bytes(&path, &[9, 9, 200, 201, 7, 8], 2);
    let single = alone(&loading(std::slice::from_ref(&path), 0), &clustering(2, 1));
    assert_eq!(whole(5, &loading(&[path], 0), &clustering(2, 2)).result(), single.result());
}

#[test]
fn a_tolerance_ends_the_iterations_early() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("points.npy");
    let values: Vec<f64> = noise(3000, 1000).into_iter().map(|v| v as f64).collect();
    npy::write(&path, &values, 2).expect("written");
    let mut how = clustering(20, 1);
    how.tolerance = 0.5;
    let found = whole(2, &loading(std::slice::from_ref(&path), 0), &how);
    assert!(found.moved.len() < 8, "{} iterations", found.moved.len());
}

#[test]
fn centroids_in_parts_give_the_same_bits_by_every_method() {
    let (n, dims, k) = (900, 64, 200);
    let bytes: Vec<u8> = noise(n * dims, 256).into_iter().map(|v| v as u8).collect();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("points.npy");
    write_bytes(&path, &bytes, dims);
    let load = loading(&[path], 0);
    let expected = alone(&load, &clustering(k, 1));
    for (method, ranks, threads) in
        [(AssignMethod::Full, 3, 2), (AssignMethod::Auto, 4, 1), (AssignMethod::Bounds, 2, 2)]
    {
        let how = clustering(k, threads);
        let how = ClusteringOptions { tuning: Tuning { method, ..how.tuning }, ..how };
        let found = whole(ranks, &load, &how);
        assert_eq!(found.result(), expected.result(), "{method:?}");
    }
}
