//! Training: a vocabulary of all classes' patches, then a machine for each class.

use super::Classes;
use super::bag::bags;
use crate::data::inputs::Source;
use crate::data::inputs::pictures::{Cut, Pictures, Sampling};
use crate::data::point_share::{Selection, Share};
use crate::error::Error;
use crate::options::Clustering;
use crate::output::model::{Classifier, Clusters, Features, MAX_WORDS, Model, Provenance};
use crate::peer_ranks::Peers;
use crate::progress::Watch;
use cool_classify::Row;
use cool_classify::histogram::MAX_LEVELS;
use cool_classify::svm::{Machine, Training};
use cool_map::Progress;
use cool_map::threads;

/// How to train.
#[derive(Clone, Debug)]
pub struct Teaching {
    /// How patches are cut out.
    pub cut: Cut,
    /// Patches drawn at random from each picture, of which the vocabulary is made in place of all.
    pub sampling: Option<Sampling>,
    /// How a picture's words become features.
    pub features: Features,
    /// How the vocabulary is clustered; its `k` is the number of words.
    pub vocabulary: Clustering,
    /// Patches that are clustered, at most; evenly thinned over all pictures.
    pub patches: u64,
    /// How the machines are trained.
    pub machines: Training,
}

/// Trains a classifier by the pictures of some classes, on all ranks, which all have it in the end.
///
/// # Errors
/// If options make no sense, a picture cannot be read, or ranks are lost.
pub fn train(
    peers: &Peers<'_>,
    classes: &Classes,
    how: &Teaching,
    watch: &dyn Watch,
) -> Result<Model, Error> {
    peers.agree(check(classes, how))?;
    let (clusters, provenance) = vocabulary(peers, classes, how, watch)?;
    let mine = (peers.rank()..classes.pictures.len()).step_by(peers.size()).len();
    watch.loading(mine as u64);
    let work = (how.vocabulary.effort.level, how.vocabulary.effort.threads);
    let entries = classes.entries();
    let rows = bags(peers, &entries, (&clusters, &how.features), work, &|| watch.loaded(1))?;
    let classifier = Classifier {
        classes: classes.names.clone(),
        trained_with: classes.sizes(),
        features: how.features,
        machines: machines(peers, classes, how, &rows)?,
    };
    Ok(Model { clusters, classifier: Some(classifier), provenance })
}

fn check(classes: &Classes, how: &Teaching) -> Result<(), Error> {
    let levels = how.features.pyramid.levels;
    if !(1..=MAX_LEVELS).contains(&levels) {
        return Err(Error::Option(format!("--pyramid {levels}: a pyramid has 1 to {MAX_LEVELS} levels")));
    }
    if how.vocabulary.k > MAX_WORDS {
        return Err(Error::Option(format!("--words {}: at most {MAX_WORDS}", how.vocabulary.k)));
    }
    if !(how.machines.cost > 0.0 && how.machines.cost.is_finite()) {
        return Err(Error::Option(format!("--cost {}: must be a number above 0", how.machines.cost)));
    }
    if classes.names.len() < 2 {
        let class = &classes.names[0];
        return Err(Error::Input(format!("only one class, {class}: there must be another to tell it from")));
    }
    Ok(())
}

/// The words, known to all ranks.
fn vocabulary(
    peers: &Peers<'_>,
    classes: &Classes,
    how: &Teaching,
    watch: &dyn Watch,
) -> Result<(Clusters, Provenance), Error> {
    let threads = how.vocabulary.effort.threads;
    let entries = classes.entries().into_iter().cloned().collect();
    let pictures = Pictures::open(peers, entries, how.cut, false, threads)?;
    let source = Source::Pictures(pictures.sampled(how.sampling));
    let select = Selection { max_points: how.patches, ..Selection::all(how.vocabulary.seed, threads) };
    let share = Share::of(peers, source, &select, watch)?;
    let clustered = share.cluster(peers, &how.vocabulary, watch, &mut Progress::default())?;
    Ok((Clusters::of(&share, &clustered), Provenance::of(&share, &clustered, &how.vocabulary)))
}

/// A machine for each class.
fn machines(
    peers: &Peers<'_>,
    classes: &Classes,
    how: &Teaching,
    rows: &[Row],
) -> Result<Vec<Machine>, Error> {
    let features = how.features.len(how.vocabulary.k);
    let member = |class: usize| move |picture: usize| classes.pictures[picture].1 == class;
    peers.dealt(classes.names.len(), |mine| {
        let train = |i: usize| Machine::train(rows, features, member(mine[i]), &how.machines).0;
        Ok(threads::map(how.vocabulary.effort.threads, mine.len(), train))
    })
}
