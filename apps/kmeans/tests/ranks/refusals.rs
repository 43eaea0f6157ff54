//! What cannot be clustered ends all ranks, with one message that names the thing.

use crate::runs::{clustering, loading, ranks, write_bytes};
use cool_kmeans::Error;
use cool_kmeans::options::Clustering;
use cool_kmeans::point_share::Loading;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The rank that failed and its message, after checking that all others stop with the same.
fn refusal(count: usize, loading: &Loading, how: &Clustering) -> (usize, String) {
    let errors: Vec<Error> =
        ranks(count, loading, how).into_iter().map(|r| r.map(|_| ()).expect_err("refused")).collect();
    let speaker =
        errors.iter().position(|e| !matches!(e, Error::Elsewhere { .. })).expect("a rank failed itself");
    let said = errors[speaker].to_string();
    for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != speaker) {
        assert_eq!(error.to_string(), format!("rank {speaker}: {said}"), "rank {rank}");
    }
    (speaker, said)
}

fn write(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).expect("written");
    path
}

#[test]
fn more_clusters_than_points() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("points.npy");
    write_bytes(&path, &[1, 2, 3, 4], 1);
    let (speaker, said) = refusal(3, &loading(&[path], 0), &clustering(5, 1));
    assert_eq!(
        (speaker, said.starts_with("5 clusters were asked for but there are only 4 points")),
        (0, true),
        "{said}"
    );
}

#[test]
fn a_missing_value_on_one_rank() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut text: String = (0..20).map(|i| format!("p {i} 0 {i} {i} {i}\n")).collect();
    text.push_str("p 20 0 1 2\n");
    let path = write(folder.path(), "points.txt", text.as_bytes());
    let (speaker, said) = refusal(4, &loading(std::slice::from_ref(&path), 3), &clustering(2, 1));
    assert_eq!(speaker, 3, "the last rank holds the last line");
    assert!(said.starts_with(&format!("{}:21: f3 is missing", path.display())), "{said}");
}

#[test]
fn a_picture_that_does_not_decode() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = folder.path().join("a.png");
    image::RgbImage::new(100, 100).save(&good).expect("saved");
    let bytes = std::fs::read(&good).expect("read");
    write(folder.path(), "b.png", &bytes[..bytes.len() - 40]);
    let (speaker, said) = refusal(2, &loading(&[folder.path().to_owned()], 0), &clustering(2, 1));
    assert_eq!(speaker, 1);
    assert!(said.contains("b.png") && said.contains("--skip-bad-images"), "{said}");
}

#[test]
fn a_file_that_is_not_there_and_numbers_out_of_all_bounds() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, said) = refusal(2, &loading(&[folder.path().join("none.npy")], 0), &clustering(2, 1));
    assert!(said.contains("none.npy"), "{said}");
    let path = write(folder.path(), "points.txt", b"p 0 0 1\np 0 0 1e200\n");
    let (_, said) = refusal(2, &loading(&[path], 1), &clustering(2, 1));
    assert!(said.contains("beyond 1e100"), "{said}");
}

pub(crate) fn program(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_cool-kmeans"))
        .args(arguments)
        .env_remove("COOL_SOCKET")
        .output()
        .expect("it starts")
}

#[test]
fn the_program_writes_what_it_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let photo = folder.path().join("photo.png");
    let pixel = |x: u32, y: u32| image::Rgb([(x * x / 9) as u8, (x * y / 7) as u8, (y * 3) as u8]);
    image::RgbImage::from_fn(200, 160, pixel).save(&photo).expect("saved");
    let out = |name: &str| folder.path().join("out").join(name).display().to_string();
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
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("iteration   1  inertia ") && said.contains("communicating"), "{said}");

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
    let array = cool_kmeans::inputs::array::Array::open(Path::new(&centroids)).expect("an array");
    assert_eq!((array.rows, array.dims), (5, 512));
}

#[test]
fn the_program_ends_with_status_1_and_one_line() {
    let done = program(&["-k", "2", "/nowhere/points.npy"]);
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(said.starts_with("cool-kmeans: /nowhere/points.npy: ") && said.lines().count() == 1, "{said}");
}
