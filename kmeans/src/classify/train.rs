//! Training: a vocabulary of all classes' patches, then a machine for each class.

use super::bag::bags;
use super::model::MAX_WORDS;
use super::{Classes, Classifier, Features, Model, dealt};
use crate::error::Error;
use crate::grid::Centroids;
use crate::inputs::Input;
use crate::lloyd::Watch;
use crate::options::Clustering;
use crate::peers::Peers;
use crate::share::{Loading, Share};
use cool_classify::Row;
use cool_classify::histogram::MAX_LEVELS;
use cool_classify::svm::{Machine, Training};
use cool_map::Progress;

/// How to train.
#[derive(Clone, Debug)]
pub struct Teaching {
    /// How a picture becomes features.
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
    let words = vocabulary(peers, classes, how, watch)?;
    let mine = (peers.rank()..classes.pictures.len()).step_by(peers.size()).len();
    watch.loading(mine as u64);
    let work = (how.vocabulary.effort.level, how.vocabulary.effort.threads);
    let rows = bags(peers, &classes.files(), (&words, &how.features), work, &|| watch.loaded(1))?;
    let machines = machines(peers, classes, how, &rows)?;
    Ok(Model {
        classes: classes.names.clone(),
        classifier: Classifier { words, features: how.features, machines },
        trained_with: classes.sizes(),
        seed: how.vocabulary.seed,
    })
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
) -> Result<Centroids, Error> {
    let input = Input { paths: classes.files(), cut: how.features.cut, dims: 0 };
    let loading = Loading {
        max_points: how.patches,
        ..Loading::new(input, how.vocabulary.seed, how.vocabulary.effort.threads)
    };
    let share = Share::load(peers, &loading, watch)?;
    Ok(share.cluster(peers, &how.vocabulary, watch, &mut Progress::default())?.centroids)
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
    let compute = |mine: &[usize]| {
        let trained = crate::threads::map(how.vocabulary.effort.threads, mine.len(), |i| {
            Machine::train(rows, features, member(mine[i]), &how.machines).0
        });
        Ok(trained)
    };
    dealt(peers, classes.names.len(), compute, encode, |bytes| decode(bytes, features))
}

fn encode(machine: &Machine, bytes: &mut Vec<u8>) {
    let numbers = std::iter::once(&machine.bias).chain(&machine.weights);
    bytes.extend(numbers.flat_map(|number| number.to_le_bytes()));
}

fn decode(bytes: &mut &[u8], features: usize) -> Option<Machine> {
    let numbers = bytes.split_off(..8 * (features + 1))?.as_chunks().0;
    let mut numbers = numbers.iter().map(|bytes| f64::from_le_bytes(*bytes));
    Some(Machine { bias: numbers.next()?, weights: numbers.collect() })
}
