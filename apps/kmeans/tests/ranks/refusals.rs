//! Inputs that cannot be clustered must end all ranks, with one message that names the input.

use crate::runs::{clustering, loading, ranks, write_bytes};
use cool_kmeans::Error;
use cool_kmeans::options::ClusteringOptions;
use cool_kmeans::point_share::LoadOptions;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the rank that failed and its message, after checking that all others end with the same.
fn refusal(count: usize, loading: &LoadOptions, how: &ClusteringOptions) -> (usize, String) {
    let errors: Vec<Error> =
        ranks(count, loading, how).into_iter().map(|r| r.map(|_| ()).expect_err("refused")).collect();
    let speaker =
        errors.iter().position(|e| !matches!(e, Error::Elsewhere { .. })).expect("a rank failed itself");
    let message = errors[speaker].to_string();
    for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != speaker) {
        assert_eq!(error.to_string(), format!("rank {speaker}: {message}"), "rank {rank}");
    }
    (speaker, message)
}

fn write(directory: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, content).expect("written");
    path
}

#[test]
fn more_clusters_than_points() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("points.npy");
    write_bytes(&path, &[1, 2, 3, 4], 1);
    let (speaker, message) = refusal(3, &loading(&[path], 0), &clustering(5, 1));
    assert_eq!(
        (speaker, message.starts_with("5 clusters were requested but there are only 4 points")),
        (0, true),
        "{message}"
    );
}

#[test]
fn a_missing_value_on_one_rank() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut text: String = (0..20).map(|i| format!("p {i} 0 {i} {i} {i}\n")).collect();
    text.push_str("p 20 0 1 2\n");
    let path = write(directory.path(), "points.txt", text.as_bytes());
    let (speaker, message) = refusal(4, &loading(std::slice::from_ref(&path), 3), &clustering(2, 1));
    assert_eq!(speaker, 3, "the last rank holds the last line");
    assert!(message.starts_with(&format!("{}:21: f3 is missing", path.display())), "{message}");
}

#[test]
fn a_picture_that_does_not_decode() {
    let directory = tempfile::tempdir().expect("a directory");
    let good = directory.path().join("a.png");
    image::RgbImage::new(100, 100).save(&good).expect("saved");
    let bytes = std::fs::read(&good).expect("read");
    write(directory.path(), "b.png", &bytes[..bytes.len() - 40]);
    let (speaker, message) = refusal(2, &loading(&[directory.path().to_owned()], 0), &clustering(2, 1));
    assert_eq!(speaker, 1);
    assert!(message.contains("b.png") && message.contains("--skip-bad-images"), "{message}");
}

#[test]
fn missing_files_and_out_of_range_numbers_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_, message) = refusal(2, &loading(&[directory.path().join("none.npy")], 0), &clustering(2, 1));
    assert!(message.contains("none.npy"), "{message}");
    let path = write(directory.path(), "points.txt", b"p 0 0 1\np 0 0 1e200\n");
    let (_, message) = refusal(2, &loading(&[path], 1), &clustering(2, 1));
    assert!(message.contains("beyond 1e100"), "{message}");
}

pub(crate) fn program(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_cool-kmeans"))
        .args(arguments)
        .env_remove("COOL_SOCKET")
        .output()
        .expect("it starts")
}

#[test]
fn the_program_writes_the_requested_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let photo = directory.path().join("photo.png");
    let pixel = |x: u32, y: u32| image::Rgb([(x * x / 9) as u8, (x * y / 7) as u8, (y * 3) as u8]);
    image::RgbImage::from_fn(200, 160, pixel).save(&photo).expect("saved");
    let out = |name: &str| directory.path().join("out").join(name).display().to_string();
    let (summary, words, centroids) = (out("s.json"), out("w.json"), out("c.npy"));
    let photo = photo.display().to_string();
    let arguments = [
        "-k",
        "5",
        "-i",
        "3",
        "--stride",
        "10",
        "--word-points",
        "2",
        "--summary",
        &summary,
        "--words",
        &words,
    ];
    let done = program(&[&arguments[..], &["--centroids", &centroids, &photo]].concat());
    let message = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(message.contains("iteration   1  inertia ") && message.contains("communicating"), "{message}");

    let read = |path: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON")
    };
    let s = read(&summary);
    assert_eq!(
        (s["points"].as_u64(), s["dims"].as_u64(), s["k"].as_u64()),
        (Some(17 * 13), Some(512), Some(5))
    );
    let ran = s["iterations"].as_u64().expect("a number") as usize;
    for list in ["inertia", "seconds_computing", "seconds_communicating"] {
        assert_eq!(s[list].as_array().map(Vec::len), Some(ran), "{list}");
    }
    assert!(read(&words)[0]["nearest"][0]["image"].as_str().is_some_and(|name| name.ends_with("photo.png")));
    assert!(image::open(out("w.png")).expect("a mosaic").width() > 90);
    let array = cool_kmeans::inputs::array::ArrayFile::open(Path::new(&centroids)).expect("an array");
    assert_eq!((array.rows, array.dims), (5, 512));
}

#[test]
fn the_program_ends_with_status_1_and_one_line() {
    let done = program(&["-k", "2", "/nowhere/points.npy"]);
    assert_eq!(done.status.code(), Some(1));
    let message = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        message.starts_with("cool-kmeans: /nowhere/points.npy: ") && message.lines().count() == 1,
        "{message}"
    );
}
