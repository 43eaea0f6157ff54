//! All that is needed to assign points to clusters, or to name the class of a picture, in one file.
//!
//! A file is a line of text that names the format, and a [`Model`] in postcard's form.

use crate::algorithm::lloyd::GridClustering;
use crate::data::grid::{Centroids, Grid, Precision};
use crate::data::inputs::PointSource;
use crate::data::inputs::pictures::PatchLayout;
use crate::data::point_share::PointShare;
use crate::error::Error;
use crate::options::ClusteringOptions;
use crate::peer_ranks::PeerRanks;
use cool_classify::SparseRow;
use cool_classify::feature_map::FeatureMap;
use cool_classify::histogram::{MAX_LEVELS, SpatialPyramid};
use cool_classify::svm::{self, LinearSvm};
use cool_map::replace_file;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The first line of a file.
const FORMAT: &[u8] = b"cool-kmeans model 2\n";

/// Words of a classifier at most: what a histogram's places, 32-bit numbers, can tell apart in all cells of a pyramid.
pub(crate) const MAX_WORDS: usize = 1 << 24;

/// What a clustering, and perhaps a training on top of it, has led to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The clusters; to a classifier, its vocabulary of visual words.
    pub clusters: Clusters,
    /// What tells classes of pictures apart.
    pub classifier: Option<Classifier>,
    /// What it was made of.
    pub provenance: Provenance,
}

/// Clusters, and what points must be like to be assigned to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clusters {
    /// Their centroids.
    pub centroids: Centroids,
    /// The grid of their points.
    pub grid: Grid,
    /// How patches were cut out, if points were patches of pictures.
    pub cut: Option<PatchLayout>,
}

/// Where a model comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of the program.
    pub version: String,
    /// Its arguments, but for the one that says who does the work.
    pub command: Vec<String>,
    /// The run's seed.
    pub seed: u64,
    /// Points that were clustered.
    pub points: u64,
    /// Iterations of the clustering.
    pub iterations: usize,
    /// Sum of squared distances of the points from their centroids.
    pub inertia: f64,
    /// Whether the last iteration moved no centroid, or improved less than the tolerance.
    pub converged: bool,
}

/// Linear support vector machines over histograms of words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Classifier {
    /// The classes' names, in order.
    pub classes: Vec<String>,
    /// Pictures of each class that it was trained with.
    pub trained_with: Vec<usize>,
    /// How a picture's words become features.
    pub features: HistogramFeatures,
    /// One for each class.
    pub machines: Vec<LinearSvm>,
}

/// How a picture's words become features.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistogramFeatures {
    /// The cells in which words are counted.
    pub pyramid: SpatialPyramid,
    /// What becomes of the counts.
    pub map: FeatureMap,
}

impl HistogramFeatures {
    /// Features of a picture over a vocabulary of that many words.
    pub fn len(&self, words: usize) -> usize {
        self.map.len(self.pyramid.len(words))
    }
}

impl Classifier {
    /// The class of a picture of these features.
    pub fn predict(&self, row: &SparseRow) -> usize {
        svm::predict(&self.machines, row).unwrap_or(0)
    }
}

impl Model {
    /// Writes the file whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        replace_file(path, &[&self.encode()]).map_err(Error::file(path))
    }

    /// Reads a file at rank 0, for all ranks.
    ///
    /// # Errors
    /// If it cannot be read, is no model, or ranks are lost.
    pub fn read(peers: &PeerRanks<'_>, path: &Path) -> Result<Self, Error> {
        let read =
            if peers.leads() { std::fs::read(path).map_err(Error::file(path)) } else { Ok(Vec::new()) };
        let bytes = peers.agree(read)?;
        let bytes = peers.broadcast(bytes)?;
        Self::decode(&bytes).map_err(|problem| Error::Model { path: path.to_owned(), problem })
    }

    /// The bytes of a file.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, FORMAT.to_vec()).expect("memory takes any number of bytes")
    }

    /// From a file's bytes; otherwise what is wrong with them.
    ///
    /// # Errors
    /// If they are no model that this program can use.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let body = bytes.strip_prefix(FORMAT).ok_or_else(|| {
            let old = bytes.starts_with(b"{\"format\":\"cool-kmeans classifier 1\"");
            if old { "was written by an earlier version: train it anew" } else { "is no model" }
        })?;
        let (model, rest) = postcard::take_from_bytes::<Self>(body).map_err(|error| match error {
            postcard::Error::DeserializeUnexpectedEnd => "is cut short",
            _ => "is damaged",
        })?;
        if !rest.is_empty() {
            return Err(format!("has {} bytes behind its end", rest.len()));
        }
        model.check().map_err(|problem| format!("is damaged: {problem}"))?;
        Ok(model)
    }

    /// The classifier, which a model of points alone does not have.
    ///
    /// # Errors
    /// If it has none.
    pub fn classifier(&self) -> Result<&Classifier, Error> {
        let none = "the model has clusters but no classes; cool-kmeans classify train makes one that has";
        self.classifier.as_ref().ok_or_else(|| Error::Input(none.into()))
    }

    fn check(&self) -> Result<(), String> {
        self.clusters.check()?;
        let Some(Classifier { classes, trained_with, features, machines }) = &self.classifier else {
            return Ok(());
        };
        let words = self.clusters.centroids.len();
        if self.clusters.cut.is_none() || words > MAX_WORDS {
            return Err(format!("a classifier of {words} words"));
        }
        if !(1..=MAX_LEVELS).contains(&features.pyramid.levels) {
            return Err(format!("a pyramid of {} levels", features.pyramid.levels));
        }
        if classes.is_empty() || [trained_with.len(), machines.len()] != [classes.len(); 2] {
            return Err(format!("{} machines for {} classes", machines.len(), classes.len()));
        }
        let length = features.len(words);
        match machines.iter().find(|machine| machine.weights.len() != length) {
            Some(other) => Err(format!("{} weights for {length} features", other.weights.len())),
            None => Ok(()),
        }
    }
}

impl Provenance {
    /// The same, made by the command that this process was started with, without `--alone`: who does the work is of no account, so
    /// one process leaves the same file as any ranks.
    #[must_use]
    pub fn made_by_this_command(self) -> Self {
        Self { command: std::env::args().skip(1).filter(|argument| argument != "--alone").collect(), ..self }
    }

    /// Of a clustering; which command led to it is the caller's to say.
    pub fn from_clustering(
        share: &PointShare,
        clustered: &GridClustering,
        options: &ClusteringOptions,
    ) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: Vec::new(),
            seed: options.seed,
            points: share.chosen.len(),
            iterations: clustered.iterations.len(),
            inertia: clustered.inertia,
            converged: clustered.converged,
        }
    }
}

impl Clusters {
    fn check(&self) -> Result<(), String> {
        let Self { centroids, grid, cut } = self;
        if let Some(PatchLayout { cells, patch, stride }) = *cut {
            PatchLayout::new(cells, patch, stride).map_err(|error| error.to_string())?;
        }
        let Centroids { precision, dims, values } = centroids;
        let dims_agree = grid.origin.len() == *dims && cut.is_none_or(|cut| cut.dims() == *dims);
        let width = dims.saturating_mul(precision.words());
        if *dims == 0 || !dims_agree || values.is_empty() || !values.len().is_multiple_of(width) {
            return Err(format!("{} numbers of centroids of {dims} coordinates", values.len()));
        }
        let in_range = |row: &[i16]| match precision {
            Precision::Byte => row.iter().all(|value| (0..=32_640).contains(value)),
            Precision::Wide => true,
            Precision::Fine => row[*dims..].iter().all(|lower| (-128..=127).contains(lower)),
        };
        if grid.precision != *precision || *dims > precision.max_dims() || !values.chunks(width).all(in_range)
        {
            return Err("centroids beyond their points".to_owned());
        }
        if !(grid.step > 0.0 && grid.step.is_finite() && grid.origin.iter().all(|x| x.is_finite())) {
            return Err("a grid without steps".to_owned());
        }
        Ok(())
    }

    /// What a clustering of points has led to, at all ranks.
    pub fn from_clustering(share: &PointShare, clustered: &GridClustering) -> Self {
        let cut = match &share.source {
            PointSource::Pictures(pictures) => Some(pictures.cut()),
            PointSource::Text(_) | PointSource::Arrays(_) | PointSource::InMemory { .. } => None,
        };
        Self { centroids: clustered.centroids.clone(), grid: share.grid.clone(), cut }
    }

    /// How patches were cut out of pictures.
    ///
    /// # Errors
    /// If points were none.
    pub fn patches(&self) -> Result<PatchLayout, Error> {
        let numbers = "the model was made of numbers, not of pictures; cool-kmeans fit makes one of pictures";
        self.cut.ok_or_else(|| Error::Input(numbers.into()))
    }

    /// Whether points of this source can be assigned.
    ///
    /// # Errors
    /// If they are of another kind than those that were clustered.
    pub fn check_source(&self, source: &PointSource) -> Result<(), Error> {
        let (theirs, own) = (source.dims(), self.grid.origin.len());
        let name = source.name();
        let problem = match (source, self.cut) {
            (PointSource::Pictures(_), None) => {
                "pictures, but the model was made of numbers: cool-kmeans features makes numbers of pictures"
                    .into()
            }
            _ if theirs != own => {
                format!(
                    "points of {theirs} coordinates, but the model's have {own}: give it what it was made for"
                )
            }
            _ if self.grid.precision == Precision::Byte && source.byte_step().is_none() => {
                "numbers that are no bytes, but the model was made of bytes: numpy's astype('u1') helps"
                    .into()
            }
            _ => return Ok(()),
        };
        Err(Error::Input(format!("{name}: {problem}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model() -> Model {
        let cut = PatchLayout::new(5, 20, 8).expect("a cut");
        let values = (0..2 * 512).collect();
        let centroids = Centroids { precision: Precision::Byte, dims: 512, values };
        let features =
            HistogramFeatures { pyramid: SpatialPyramid { levels: 2 }, map: FeatureMap::ChiSquared };
        let machine =
            |bias: f64| LinearSvm { bias, weights: (0..features.len(2)).map(|i| i as f64 - bias).collect() };
        let classifier = Classifier {
            classes: vec!["sea".into(), "wood".into()],
            trained_with: vec![3, 4],
            features,
            machines: vec![machine(0.5), machine(-2.0)],
        };
        let provenance = Provenance { seed: 9, inertia: 0.1, ..Provenance::default() };
        let clusters = Clusters { centroids, grid: Grid::bytes(512, 1.0 / 255.0), cut: Some(cut) };
        Model { clusters, classifier: Some(classifier), provenance }
    }

    #[test]
    fn a_model_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().join("m.cool");
        model().write(&path).expect("written");
        assert_eq!(Model::read(&PeerRanks::alone(), &path).expect("read"), model());
    }

    #[test]
    fn truncated_and_foreign_files_are_refused_by_name() {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().join("m.cool");
        let whole = model().encode();
        for end in [0, 7, FORMAT.len(), FORMAT.len() + 1, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..end]).expect("written");
            let message = Model::read(&PeerRanks::alone(), &path).expect_err("refused").to_string();
            assert!(message.contains("m.cool") && message.contains("cool-kmeans fit"), "{message}");
        }
        assert!(Model::decode(&[whole, vec![0]].concat()).expect_err("refused").contains("1 bytes behind"));
        let old = Model::decode(b"{\"format\":\"cool-kmeans classifier 1\",").expect_err("refused");
        assert!(old.contains("earlier version"), "{old}");
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        let spoiled: [fn(&mut Model); 7] = [
            |m| m.clusters.grid.origin.truncate(7),
            |m| m.clusters.centroids.values[3] = -1,
            |m| m.clusters.centroids.values.truncate(500),
            |m| m.clusters.grid.step = f64::NAN,
            |m| m.clusters.cut = None,
            |m| m.classifier.as_mut().expect("there").machines[1].weights.truncate(3),
            |m| m.classifier.as_mut().expect("there").classes.clear(),
        ];
        for (number, spoil) in spoiled.into_iter().enumerate() {
            let mut model = model();
            spoil(&mut model);
            assert!(Model::decode(&model.encode()).expect_err("refused").contains("damaged"), "{number}");
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _refused_or_read = Model::decode(&[FORMAT, &bytes].concat());
        }
    }
}
