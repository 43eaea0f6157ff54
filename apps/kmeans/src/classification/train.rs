//! Training: a vocabulary of all classes' patches, then a machine per class.

use super::ClassDirectories;
use super::bag::describe_pictures;
use crate::data::inputs::PointSource;
use crate::data::inputs::pictures::{PatchLayout, PatchSampling, Pictures};
use crate::data::point_share::{PointSelection, PointShare};
use crate::error::Error;
use crate::options::ClusteringOptions;
use crate::output::model::{Classifier, Clusters, HistogramFeatures, MAX_WORDS, Model, Provenance};
use crate::peer_ranks::PeerRanks;
use crate::progress::{ClusteringProgress, ProgressObserver};
use cool_classify::SparseRow;
use cool_classify::histogram::MAX_LEVELS;
use cool_classify::svm::{LinearSvm, TrainingOptions};
use cool_map::threads;

/// Options of a training.
#[derive(Clone, Debug)]
pub struct TrainingPlan {
    /// How patches are cut out.
    pub cut: PatchLayout,
    /// Use random patches of each picture for the vocabulary instead of all patches.
    pub sampling: Option<PatchSampling>,
    /// How a picture's words become features.
    pub features: HistogramFeatures,
    /// Options of the vocabulary's clustering. Its `k` is the number of words.
    pub vocabulary: ClusteringOptions,
    /// Maximum number of patches that are clustered. If there are more, an even subsample over all
    /// pictures is used.
    pub patches: u64,
    /// Options of the machines' training.
    pub machines: TrainingOptions,
}

/// Trains a classifier with the pictures of some classes, on all ranks. Returns it at each rank.
///
/// # Errors
/// If options are invalid, a picture cannot be read, or ranks are lost.
pub fn train(
    peers: &PeerRanks<'_>,
    classes: &ClassDirectories,
    plan: &TrainingPlan,
    watch: &dyn ProgressObserver,
) -> Result<Model, Error> {
    peers.agree(check(classes, plan))?;
    let (clusters, provenance) = vocabulary(peers, classes, plan, watch)?;
    let mine = (peers.rank()..classes.pictures.len()).step_by(peers.size()).len();
    watch.loading(mine as u64);
    let work = (plan.vocabulary.tuning.level, plan.vocabulary.tuning.threads);
    let entries = classes.entries();
    let rows = describe_pictures(peers, &entries, (&clusters, &plan.features), work, &|| watch.loaded(1))?;
    let classifier = Classifier {
        classes: classes.names.clone(),
        trained_with: classes.sizes(),
        features: plan.features,
        machines: machines(peers, classes, plan, &rows)?,
    };
    Ok(Model { clusters, classifier: Some(classifier), provenance })
}

fn check(classes: &ClassDirectories, plan: &TrainingPlan) -> Result<(), Error> {
    let levels = plan.features.pyramid.levels;
    if !(1..=MAX_LEVELS).contains(&levels) {
        return Err(Error::Option(format!("--pyramid {levels}: a pyramid has 1 to {MAX_LEVELS} levels")));
    }
    if plan.vocabulary.k > MAX_WORDS {
        return Err(Error::Option(format!("--words {}: at most {MAX_WORDS}", plan.vocabulary.k)));
    }
    if !(plan.machines.cost > 0.0 && plan.machines.cost.is_finite()) {
        return Err(Error::Option(format!("--cost {}: must be a number above 0", plan.machines.cost)));
    }
    if classes.names.len() < 2 {
        let class = &classes.names[0];
        return Err(Error::Input(format!("only one class, {class}; there must be at least two")));
    }
    Ok(())
}

/// Returns the vocabulary, at all ranks.
fn vocabulary(
    peers: &PeerRanks<'_>,
    classes: &ClassDirectories,
    plan: &TrainingPlan,
    watch: &dyn ProgressObserver,
) -> Result<(Clusters, Provenance), Error> {
    let threads = plan.vocabulary.tuning.threads;
    let entries = classes.entries().into_iter().cloned().collect();
    let pictures = Pictures::open(peers, entries, plan.cut, false, threads)?;
    let source = PointSource::Pictures(pictures.sampled(plan.sampling));
    let select =
        PointSelection { max_points: plan.patches, ..PointSelection::all(plan.vocabulary.seed, threads) };
    let share = PointShare::from_source(peers, source, &select, watch)?;
    let clustered = share.cluster(peers, &plan.vocabulary, watch, &mut ClusteringProgress::default())?;
    Ok((
        Clusters::from_clustering(&share, &clustered),
        Provenance::from_clustering(&share, &clustered, &plan.vocabulary),
    ))
}

/// Returns a machine per class.
fn machines(
    peers: &PeerRanks<'_>,
    classes: &ClassDirectories,
    plan: &TrainingPlan,
    rows: &[SparseRow],
) -> Result<Vec<LinearSvm>, Error> {
    let features = plan.features.len(plan.vocabulary.k);
    let member = |class: usize| move |picture: usize| classes.pictures[picture].1 == class;
    peers.deal(classes.names.len(), |mine| {
        let train = |i: usize| LinearSvm::train(rows, features, member(mine[i]), &plan.machines).0;
        Ok(threads::map(plan.vocabulary.tuning.threads, mine.len(), train))
    })
}
