//! From directories of pictures to a tested classifier, on embedded ranks and by the program.

use crate::refusals::program;
use crate::runs::{Silent, clustering};
use cool::embedded::Embedded;
use cool_classify::feature_map::FeatureMap;
use cool_classify::histogram::SpatialPyramid;
use cool_classify::svm::TrainingOptions;
use cool_distance::SimdLevel;
use cool_kmeans::Error;
use cool_kmeans::classification::{self, ClassDirectories, TestResult, TrainingPlan};
use cool_kmeans::inputs::pictures::PatchLayout;
use cool_kmeans::model::{HistogramFeatures, Model};
use cool_kmeans::peer_ranks::PeerRanks;
use std::path::Path;

const STRIPES: [&str; 3] = ["across", "down", "slanting"];

/// Draws directories of striped pictures. The class is the direction of the stripes.
fn draw(root: &Path, each: u32, first: u32) {
    for (class, name) in STRIPES.iter().enumerate() {
        std::fs::create_dir_all(root.join(name)).expect("made");
        for number in first..first + each {
            let wave = 5 + number % 4;
            let pixel = |x: u32, y: u32| {
                let along = [y, x, x + y][class] + number * 3;
                let noise = (x * 7919 + y * 104_729 + number * 31) % 40;
                image::Luma([if along % (2 * wave) < wave { 200 } else { 40 } + noise as u8])
            };
            let picture = image::GrayImage::from_fn(64, 56, pixel);
            picture.save(root.join(name).join(format!("{number}.png"))).expect("saved");
        }
    }
}

fn training_plan(threads: usize) -> TrainingPlan {
    TrainingPlan {
        cut: PatchLayout::new(5, 20, 8).expect("a cut"),
        sampling: None,
        features: HistogramFeatures { pyramid: SpatialPyramid { levels: 2 }, map: FeatureMap::ChiSquared },
        vocabulary: clustering(12, threads),
        patches: 400,
        machines: TrainingOptions::default(),
    }
}

/// Trains and tests on embedded ranks. Returns the result of each rank.
fn ranks(count: usize, threads: usize, train: &Path, test: &Path) -> Vec<Result<(Model, TestResult), Error>> {
    let layout = Embedded { ranks: count, ranks_per_node: 1, racks: 1 };
    let part = |comm: cool::Comm| {
        let (peers, how) = (PeerRanks::from_comm(&comm), training_plan(threads));
        let model = classification::train(&peers, &ClassDirectories::open(&peers, train)?, &how, &Silent)?;
        let work = (SimdLevel::best(), threads);
        let tested =
            classification::test(&peers, &model, &ClassDirectories::open(&peers, test)?, work, &Silent)?;
        Ok((model, tested))
    };
    cool::embedded::run(layout, part).expect("agents start")
}

#[test]
fn a_model_has_the_same_bits_on_any_number_of_ranks_and_threads() {
    let directory = tempfile::tempdir().expect("a directory");
    let (train, test) = (directory.path().join("train"), directory.path().join("test"));
    draw(&train, 5, 0);
    draw(&test, 3, 50);
    let alone = ranks(1, 1, &train, &test).remove(0).expect("trained");
    assert_eq!(alone.0.classifier().expect("a classifier").classes, STRIPES);
    assert_eq!((alone.1.accuracy, alone.1.pictures), (1.0, 9), "{:?}", alone.1);
    for (count, threads) in [(2, 2), (5, 1)] {
        for outcome in ranks(count, threads, &train, &test) {
            assert!(outcome.expect("trained") == alone, "{count} ranks of {threads} threads");
        }
    }
}

#[test]
fn bad_pictures_and_unknown_classes_are_named_at_all_ranks() {
    let directory = tempfile::tempdir().expect("a directory");
    let (train, test) = (directory.path().join("train"), directory.path().join("test"));
    draw(&train, 2, 0);
    draw(&test, 1, 50);
    std::fs::rename(test.join("down"), test.join("upward")).expect("renamed");
    for outcome in ranks(2, 1, &train, &test) {
        let message = outcome.expect_err("refused").to_string();
        assert!(
            message.contains("directory upward") && message.contains("across, down, slanting"),
            "{message}"
        );
    }
    std::fs::write(train.join("across/9.png"), b"no picture").expect("written");
    for outcome in ranks(2, 1, &train, &test) {
        let message = outcome.expect_err("refused").to_string();
        assert!(message.contains("9.png") && message.contains("not a readable picture"), "{message}");
    }
}

#[test]
fn two_commands_train_and_test_a_classifier() {
    let directory = tempfile::tempdir().expect("a directory");
    let (train, test) = (directory.path().join("train"), directory.path().join("test"));
    draw(&train, 5, 0);
    draw(&test, 3, 50);
    let name = |path: &Path| path.display().to_string();
    let (model, train, test) = (name(&directory.path().join("new/m.cool")), name(&train), name(&test));

    let json = |arguments: &[&str]| -> serde_json::Value {
        let done = program(arguments);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        serde_json::from_slice(&done.stdout).expect("JSON and nothing else")
    };
    let trained =
        json(&["classify", "train", "--words", "12", "--pyramid", "2", "--model", &model, "--json", &train]);
    assert_eq!(trained["pictures"], 15);
    let tested = json(&["classify", "test", "--model", &model, "--json", &test]);
    assert_eq!(tested["accuracy"], 1.0, "{tested}");
    assert_eq!(tested["classes"], serde_json::json!(STRIPES));
    assert_eq!(tested["confusion"], serde_json::json!([[3, 0, 0], [0, 3, 0], [0, 0, 3]]));

    let shown = program(&["classify", "test", "--model", &model, &test]);
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("accuracy 100.0 % of 9 pictures"), "{shown}");

    let whole = std::fs::read(&model).expect("read");
    std::fs::write(&model, &whole[..whole.len() - 5]).expect("written");
    let refused = program(&["classify", "test", "--model", &model, &test]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), message.lines().count()), (Some(1), 1), "{message}");
    assert!(message.contains("m.cool") && message.contains("is truncated"), "{message}");
}
