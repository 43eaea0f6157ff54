//! Accuracy of a classifier on pictures of known classes.

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
    /// Share of recognized pictures, averaged over the classes.
    pub accuracy: f64,
    /// Classes of the model, in order.
    pub classes: Vec<String>,
    /// Pictures by true class (row) and predicted class (column).
    pub confusion: Vec<Vec<u64>>,
    /// Total number of pictures.
    pub pictures: usize,
    /// True and predicted class of each picture.
    #[serde(skip)]
    pub predicted: Vec<(usize, usize)>,
}

/// Predicts the class of each picture on all ranks. Returns a comparison with the true classes.
///
/// # Errors
/// If a directory is not a class of the model, a picture cannot be read, or ranks are lost.
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
                "directory {name}: not a class of the model ({classes}); remove or rename it"
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
