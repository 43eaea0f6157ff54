//! A model: the data needed to assign points to clusters, or to name the class of a picture, in one
//! file.
//!
//! A file consists of a line of text that names the format, and a [`Model`] in postcard's encoding.

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

/// Maximum number of words of a classifier, because the entries of a histogram over all cells of a
/// pyramid are numbered with 32 bits.
pub(crate) const MAX_WORDS: usize = 1 << 24;

/// The result of a clustering, and of a training if there was one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The clusters. For a classifier, they are its vocabulary of visual words.
    pub clusters: Clusters,
    /// The classifier of pictures.
    pub classifier: Option<Classifier>,
    /// Origin of the model.
    pub provenance: Provenance,
}

/// Clusters, and the form that points must have to be assigned to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clusters {
    /// Centroids of the clusters.
    pub centroids: Centroids,
    /// The grid of the clustered points.
    pub grid: Grid,
    /// How patches were cut out, if the points were patches of pictures.
    pub cut: Option<PatchLayout>,
}

/// Origin of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Version of the program.
    pub version: String,
    /// Arguments of the program, except for `--alone`.
    pub command: Vec<String>,
    /// Seed of the run.
    pub seed: u64,
    /// Number of clustered points.
    pub points: u64,
    /// Iterations of the clustering.
    pub iterations: usize,
    /// Sum of squared distances between the points and their centroids.
    pub inertia: f64,
    /// Whether the last iteration moved no centroid, moved the centroids by at most the limit of
    /// movement, or lowered the inertia by less than the tolerance.
    pub converged: bool,
}

/// Linear support vector machines over histograms of words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Classifier {
    /// Names of the classes, in order.
    pub classes: Vec<String>,
    /// Number of pictures of each class in the training.
    pub trained_with: Vec<usize>,
    /// How a picture's words become features.
    pub features: HistogramFeatures,
    /// The machine of each class.
    pub machines: Vec<LinearSvm>,
}

/// How a picture's words become features.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistogramFeatures {
    /// The cells in which words are counted.
    pub pyramid: SpatialPyramid,
    /// The map from counts to features.
    pub map: FeatureMap,
}

impl HistogramFeatures {
    /// Returns the number of features of a picture over a vocabulary of `words` words.
    pub fn len(&self, words: usize) -> usize {
        self.map.len(self.pyramid.len(words))
    }
}

impl Classifier {
    /// Returns the number of the class of a picture with these features.
    pub fn predict(&self, row: &SparseRow) -> usize {
        svm::predict(&self.machines, row).unwrap_or(0)
    }
}

impl Model {
    /// Writes the file completely or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        replace_file(path, &[&self.encode()]).map_err(Error::file(path))
    }

    /// Reads a file at rank 0 and sends it to all ranks.
    ///
    /// # Errors
    /// If the file cannot be read or is not a model, or if ranks are lost.
    pub fn read(peers: &PeerRanks<'_>, path: &Path) -> Result<Self, Error> {
        let read =
            if peers.leads() { std::fs::read(path).map_err(Error::file(path)) } else { Ok(Vec::new()) };
        let bytes = peers.agree(read)?;
        let bytes = peers.broadcast(bytes)?;
        Self::decode(&bytes).map_err(|problem| Error::Model { path: path.to_owned(), problem })
    }

    /// Returns the contents of a model file.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, FORMAT.to_vec()).expect("memory takes any number of bytes")
    }

    /// Returns the model of a file's contents.
    ///
    /// # Errors
    /// If the contents are not a model that this program can use. The text describes the problem.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let body = bytes.strip_prefix(FORMAT).ok_or_else(|| {
            let old = bytes.starts_with(b"{\"format\":\"cool-kmeans classifier 1\"");
            if old { "was written by an earlier version; train a new one" } else { "is not a model" }
        })?;
        let (model, rest) = postcard::take_from_bytes::<Self>(body).map_err(|error| match error {
            postcard::Error::DeserializeUnexpectedEnd => "is truncated",
            _ => "is damaged",
        })?;
        if !rest.is_empty() {
            return Err(format!("has {} bytes after its end", rest.len()));
        }
        model.check().map_err(|problem| format!("is damaged: {problem}"))?;
        Ok(model)
    }

    /// Returns the classifier.
    ///
    /// # Errors
    /// If the model has none, because it was made from points.
    pub fn classifier(&self) -> Result<&Classifier, Error> {
        let none = "the model has clusters but no classes; use a model of cool-kmeans classify train";
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
    /// Adds the command of this process, without `--alone`, because one process must write the same
    /// file as several ranks.
    #[must_use]
    pub fn made_by_this_command(self) -> Self {
        Self { command: std::env::args().skip(1).filter(|argument| argument != "--alone").collect(), ..self }
    }

    /// Returns the origin of a clustering without the command, which the caller must add.
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

    /// Returns the clusters of a clustering, at all ranks.
    pub fn from_clustering(share: &PointShare, clustered: &GridClustering) -> Self {
        let cut = match &share.source {
            PointSource::Pictures(pictures) => Some(pictures.cut()),
            PointSource::Text(_) | PointSource::Arrays(_) | PointSource::InMemory { .. } => None,
        };
        Self { centroids: clustered.centroids.clone(), grid: share.grid.clone(), cut }
    }

    /// Returns how patches were cut out of pictures.
    ///
    /// # Errors
    /// If the points were not patches.
    pub fn patches(&self) -> Result<PatchLayout, Error> {
        let numbers =
            "the model was made from numbers, not from pictures; use a model of cool-kmeans fit on pictures";
        self.cut.ok_or_else(|| Error::Input(numbers.into()))
    }

    /// Checks whether points of this source can be assigned.
    ///
    /// # Errors
    /// If the points are of another kind than the clustered ones.
    pub fn check_source(&self, source: &PointSource) -> Result<(), Error> {
        let (theirs, own) = (source.dims(), self.grid.origin.len());
        let name = source.name();
        let problem = match (source, self.cut) {
            (PointSource::Pictures(_), None) => {
                "pictures, but the model was made from numbers; convert them with cool-kmeans features"
                    .into()
            }
            _ if theirs != own => {
                format!(
                    "points of {theirs} coordinates, but the model's have {own}; use the model's kind of input"
                )
            }
            _ if self.grid.precision == Precision::Byte && source.byte_step().is_none() => {
                "numbers other than bytes, but the model was made from bytes; convert them with numpy's astype('u1')"
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
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("m.cool");
        model().write(&path).expect("written");
        assert_eq!(Model::read(&PeerRanks::alone(), &path).expect("read"), model());
    }

    #[test]
    fn truncated_and_foreign_files_are_refused_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("m.cool");
        let whole = model().encode();
        for end in [0, 7, FORMAT.len(), FORMAT.len() + 1, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..end]).expect("written");
            let message = Model::read(&PeerRanks::alone(), &path).expect_err("refused").to_string();
            assert!(message.contains("m.cool") && message.contains("cool-kmeans fit"), "{message}");
        }
        assert!(Model::decode(&[whole, vec![0]].concat()).expect_err("refused").contains("1 bytes after"));
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
