//! Use of a model: by the program, and on any number of ranks with the same result.

use crate::refusals::program;
use crate::runs::{Silent, clustering, loading, noise, ranks, write_bytes};
use cool::embedded::Embedded;
use cool_distance::SimdLevel;
use cool_kmeans::apply::{self, Assignment};
use cool_kmeans::inputs::PointSource;
use cool_kmeans::inputs::array::ArrayFile;
use cool_kmeans::model::Clusters;
use cool_kmeans::npy;
use cool_kmeans::peer_ranks::PeerRanks;
use std::path::{Path, PathBuf};

fn name(path: &Path) -> String {
    path.display().to_string()
}

/// Runs the program, and returns its output.
fn output(arguments: &[&str]) -> String {
    let done = program(arguments);
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

/// Runs the program, which must fail with an error of one line.
fn refusal(arguments: &[&str]) -> String {
    let done = program(arguments);
    let message = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!((done.status.code(), message.lines().count()), (Some(1), 1), "{arguments:?}: {message}");
    message
}

/// Returns the elements of an array of one dimension as bytes.
fn column<const N: usize>(path: &Path) -> Vec<[u8; N]> {
    let bytes = std::fs::read(path).expect("read");
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    bytes[start..].as_chunks().0.to_vec()
}

fn photo(path: &Path, shade: u32) {
    let pixel = |x: u32, y: u32| image::Luma([((x * x / (5 + shade) + y * shade) % 251) as u8]);
    image::GrayImage::from_fn(90, 70, pixel).save(path).expect("saved");
}

#[test]
fn clustered_points_keep_their_labels_on_any_ranks() {
    let directory = tempfile::tempdir().expect("a directory");
    let (bytes, reals) = (directory.path().join("bytes.npy"), directory.path().join("reals.npy"));
    write_bytes(&bytes, &noise(300 * 7, 256).into_iter().map(|v| v as u8).collect::<Vec<_>>(), 7);
    let values: Vec<f64> = noise(300 * 4, 1000).into_iter().map(|v| v as f64 / 7.0).collect();
    npy::write(&reals, &values, 4).expect("written");
    for path in [bytes, reals] {
        let (load, how) = (loading(std::slice::from_ref(&path), 0), clustering(6, 2));
        let (share, clustered, _) = ranks(1, &load, &how).remove(0).expect("clustered");
        let clusters = Clusters::from_clustering(&share, &clustered);
        let assign = |peers: &PeerRanks<'_>| {
            let source = PointSource::open(peers, &load.input, 2)?;
            let mut all: Vec<Assignment> = Vec::new();
            let take = |some: &[Assignment]| {
                all.extend_from_slice(some);
                Ok(())
            };
            apply::assign(peers, &clusters, &source, (SimdLevel::best(), 2), &Silent, take).map(|()| all)
        };
        let alone = assign(&PeerRanks::alone()).expect("assigned");
        assert_eq!(alone.iter().map(|a| a.label).collect::<Vec<_>>(), clustered.labels);
        let squared: f64 = alone.iter().map(|a| a.distance * a.distance).sum();
        assert!((squared - clustered.inertia).abs() < 1e-9 * squared, "{squared} {}", clustered.inertia);
        let layout = Embedded { ranks: 3, ranks_per_node: 1, racks: 2 };
        let by_ranks =
            cool::embedded::run(layout, |comm| assign(&PeerRanks::from_comm(&comm))).expect("agents start");
        assert_eq!(by_ranks.into_iter().next().expect("a rank").expect("assigned"), alone);
    }
}

#[test]
fn points_beyond_the_grid_are_assigned_by_true_distances() {
    let directory = tempfile::tempdir().expect("a directory");
    let (near, far, model) = ("near.csv", "far.csv", "m.cool");
    let [near, far, model] = [near, far, model].map(|n| name(&directory.path().join(n)));
    std::fs::write(&near, "x,y\n0,0\n0,1\n10,0\n10,1\n").expect("written");
    // Two of the points are beyond the grid. Clamped to it, they would be too near to the clusters.
    std::fs::write(&far, "-400,0.5\n1000,0.5\n10,0.5\n").expect("written");
    output(&["-k", "2", "--model", &model, &near]);
    let (labels, distances) = (name(&directory.path().join("l.npy")), name(&directory.path().join("d.npy")));
    output(&["assign", "--model", &model, "--labels", &labels, "--distances", &distances, &far]);
    let labels = column(Path::new(&labels)).into_iter().map(i32::from_le_bytes).collect::<Vec<_>>();
    let distances = column(Path::new(&distances)).into_iter().map(f64::from_le_bytes).collect::<Vec<_>>();
    assert_ne!(labels[0], labels[1]);
    assert_eq!(labels[1], labels[2]);
    for (found, expected) in distances.iter().zip([400.0, 990.0, 0.0]) {
        assert!((found - expected).abs() < 1e-3, "{distances:?}");
    }
}

#[test]
fn a_model_reproduces_the_labels_of_its_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |file: &str| directory.path().join(file);
    photo(&at("a b.png"), 1);
    photo(&at("b.jpg"), 2);
    let pictures = name(directory.path());
    let (model, labels, again) = (at("out/m.cool"), at("out/l.npy"), at("out/again.npy"));
    let (model, labels, again) = (name(&model), name(&labels), name(&again));
    let options = ["--patch", "20", "--stride", "10"];
    let fit =
        [&["fit", "-k", "5", "--model", &model, "--labels", &labels][..], &options, &[&pictures]].concat();
    output(&fit);
    output(&["assign", "--model", &model, "--labels", &again, &pictures]);
    let read = |path: &str| std::fs::read(path).expect("read");
    assert!(read(&labels) == read(&again));
    let text = output(&["assign", "--model", &model, &pictures]);
    let printed: Vec<i32> = text.lines().map(|line| line.parse().expect("a label")).collect();
    assert_eq!(printed, column(Path::new(&labels)).into_iter().map(i32::from_le_bytes).collect::<Vec<_>>());

    // Patches as bytes and as text in the papers' format, which is read again.
    let (array, text) = (name(&at("out/f.npy")), name(&at("out/f.txt")));
    for out in [&array, &text] {
        output(&[&["features", "--out", out][..], &options, &[&pictures]].concat());
    }
    assert_eq!(
        output(&["assign", "--model", &model, &array]),
        output(&["assign", "--model", &model, &pictures])
    );
    let line = std::fs::read_to_string(&text).expect("read");
    assert!(line.lines().nth(1).is_some_and(|line| line.contains("a_b.png 0 10 ")), "{line:.100}");
    output(&["-k", "3", &text]);

    let words = output(&["histogram", "--model", &model, "--out", "-", &pictures]);
    let counts: Vec<Vec<usize>> = words
        .lines()
        .map(|line| line.split(' ').skip(1).map(|n| n.parse().expect("a count")).collect())
        .collect();
    let patches = 8 * 6;
    assert_eq!(counts.iter().map(|row| (row.len(), row.iter().sum())).collect::<Vec<_>>(), [(5, patches); 2]);
    assert_eq!(counts[1][0], printed[patches..].iter().filter(|label| **label == 0).count());

    let shown: serde_json::Value =
        serde_json::from_str(&output(&["inspect", "--json", &model])).expect("JSON");
    assert_eq!((&shown["clusters"], &shown["patch"], &shown["points"]), (&5.into(), &20.into(), &96.into()));
    assert!(
        shown["command"].as_str().is_some_and(|command| command.starts_with("fit -k 5 --model")),
        "{shown}"
    );
    assert!(output(&["inspect", &model]).contains("clusters     5\n"));
}

#[test]
fn sampled_patches_and_longer_vectors_give_a_model() {
    let directory = tempfile::tempdir().expect("a directory");
    photo(&directory.path().join("a.png"), 3);
    let (pictures, model) = (name(directory.path()), name(&directory.path().join("m.cool")));
    output(&["-k", "4", "--hog", "2048", "--patch", "18", "--patches", "30", "--model", &model, &pictures]);
    let shown = output(&["inspect", &model]);
    assert!(shown.contains("coordinates  2048") && shown.contains("points       30\n"), "{shown}");
}

#[test]
fn a_model_file_records_its_command_but_not_its_ranks() {
    let directory = tempfile::tempdir().expect("a directory");
    let points = directory.path().join("p.npy");
    write_bytes(&points, &noise(60 * 3, 256).into_iter().map(|v| v as u8).collect::<Vec<_>>(), 3);
    let (points, model) = (name(&points), name(&directory.path().join("m.cool")));
    let write = |alone: &[&str]| {
        output(&[&["fit", "-k", "4", "--model", &model, &points], alone].concat());
        std::fs::read(&model).expect("written")
    };
    assert_eq!(write(&["--alone"]), write(&[]));
    assert!(
        output(&["inspect", &model]).contains(&format!("command      fit -k 4 --model {model} {points}\n"))
    );
}

#[test]
fn inputs_that_do_not_fit_the_model_are_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |file: &str| name(&directory.path().join(file));
    let (two, three, bytes, picture) = (at("two.csv"), at("three.csv"), at("bytes.npy"), at("p.png"));
    std::fs::write(&two, "0,0\n1,1\n2,2\n").expect("written");
    std::fs::write(&three, "0,0,0\n1,1,1\n2,2,2\n").expect("written");
    write_bytes(Path::new(&bytes), &[1, 2, 3, 4, 5, 6], 2);
    photo(Path::new(&picture), 4);
    let (numbers, whole) = (at("numbers.cool"), at("bytes.cool"));
    output(&["-k", "2", "--model", &numbers, &two]);
    output(&["-k", "2", "--model", &whole, &bytes]);

    let message = refusal(&["assign", "--model", &numbers, &three]);
    assert!(message.contains("three.csv: points of 3 coordinates, but the model's have 2"), "{message}");
    let message = refusal(&["assign", "--model", &numbers, &picture]);
    assert!(message.contains("p.png: pictures, but the model was made from numbers"), "{message}");
    let message = refusal(&["assign", "--model", &whole, &two]);
    assert!(message.contains("two.csv: numbers other than bytes"), "{message}");
    output(&["assign", "--model", &numbers, &bytes]);
    let message = refusal(&["histogram", "--model", &numbers, "--out", "-", &picture]);
    assert!(message.contains("the model was made from numbers"), "{message}");
    std::fs::create_dir_all(at("classes/one")).expect("made");
    photo(Path::new(&at("classes/one/p.png")), 4);
    let message = refusal(&["classify", "test", "--model", &numbers, &at("classes")]);
    assert!(message.contains("classify train"), "{message}");
    let message = refusal(&["assign", "--model", &two, &two]);
    assert!(message.contains("two.csv: is not a model"), "{message}");
}

#[test]
fn a_full_disk_is_one_error_line_and_leaves_no_partial_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let points = directory.path().join("p.npy");
    write_bytes(&points, &[1, 2, 3, 4], 1);
    for option in ["--model", "--labels", "--centroids", "--summary"] {
        let message = refusal(&["-k", "2", option, "/dev/full", &name(&points)]);
        assert!(message.starts_with("cool-kmeans: /dev/full: No space left on device"), "{message}");
        assert!(message.contains("free some space"), "{message}");
    }
    let occupied = directory.path().join("taken");
    std::fs::create_dir(&occupied).expect("made");
    let message = refusal(&["-k", "2", "--model", &name(&occupied), &name(&points)]);
    assert!(message.contains("taken"), "{message}");
    let left: Vec<PathBuf> = std::fs::read_dir(directory.path())
        .expect("listed")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
    let array = ArrayFile::open(&points).expect("as it was");
    assert_eq!(array.rows, 4);
}
