//! How often a classifier is right about pictures whose classes are known.

use super::ClassDirectories;
use super::bag::describe_pictures;
use crate::error::Error;
use crate::output::model::Model;
use crate::peer_ranks::PeerRanks;
use crate::progress::ProgressObserver;
use cool_classify::ConfusionMatrix;
use cool_distance::SimdLevel;

/// The result of a test.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TestResult {
    /// The mean over classes of the share of their pictures that were recognised.
    pub accuracy: f64,
    /// The model's classes, in order.
    pub classes: Vec<String>,
    /// Pictures by true class (row) and predicted class (column).
    pub confusion: Vec<Vec<u64>>,
    /// Pictures in all.
    pub pictures: usize,
    /// True and predicted class of each picture.
    #[serde(skip)]
    pub predicted: Vec<(usize, usize)>,
}

/// Names the class of each picture, on all ranks, and compares.
///
/// # Errors
/// If a folder is none of the model's classes, a picture cannot be read, or ranks are lost.
pub fn test(
    peers: &PeerRanks<'_>,
    model: &Model,
    pictures: &ClassDirectories,
    work: (SimdLevel, usize),
    watch: &dyn ProgressObserver,
) -> Result<TestResult, Error> {
    let classifier = peers.agree(model.classifier())?;
    let known = |name: &String| {
        let place = classifier.classes.iter().position(|class| class == name);
        place.ok_or_else(|| {
            let classes = classifier.classes.join(", ");
            Error::Input(format!(
                "folder {name}: the model knows no such class, but {classes}; remove or rename it"
            ))
        })
    };
    let truth: Vec<usize> = peers.agree(pictures.names.iter().map(known).collect())?;
    watch.loading((peers.rank()..pictures.pictures.len()).step_by(peers.size()).len() as u64);
    let vocabulary = (&model.clusters, &classifier.features);
    let rows = describe_pictures(peers, &pictures.entries(), vocabulary, work, &|| watch.loaded(1))?;
    let classes = pictures.pictures.iter().map(|(_, class)| truth[*class]);
    let predicted: Vec<_> = classes.zip(&rows).map(|(class, row)| (class, classifier.predict(row))).collect();
    let mut confusion = ConfusionMatrix::new(classifier.classes.len());
    predicted.iter().for_each(|&(truth, found)| confusion.add(truth, found));
    Ok(TestResult {
        accuracy: confusion.accuracy().unwrap_or(0.0),
        classes: classifier.classes.clone(),
        confusion: confusion.counts,
        pictures: rows.len(),
        predicted,
    })
}
