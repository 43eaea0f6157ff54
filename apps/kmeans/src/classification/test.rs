//! How often a classifier is right about pictures whose classes are known.

use super::Classes;
use super::bag::bags;
use crate::error::Error;
use crate::output::model::Model;
use crate::peer_ranks::Peers;
use crate::progress::Watch;
use cool_classify::Confusion;
use cool_distance::Level;

/// The result of a test.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Tested {
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
    peers: &Peers<'_>,
    model: &Model,
    pictures: &Classes,
    work: (Level, usize),
    watch: &dyn Watch,
) -> Result<Tested, Error> {
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
    let rows = bags(peers, &pictures.entries(), vocabulary, work, &|| watch.loaded(1))?;
    let classes = pictures.pictures.iter().map(|(_, class)| truth[*class]);
    let predicted: Vec<_> = classes.zip(&rows).map(|(class, row)| (class, classifier.predict(row))).collect();
    let mut confusion = Confusion::new(classifier.classes.len());
    predicted.iter().for_each(|&(truth, found)| confusion.add(truth, found));
    Ok(Tested {
        accuracy: confusion.accuracy().unwrap_or(0.0),
        classes: classifier.classes.clone(),
        confusion: confusion.counts,
        pictures: rows.len(),
        predicted,
    })
}
