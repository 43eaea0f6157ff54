//! What a clustering is asked for.

use crate::algorithm::tuning::Tuning;
use crate::error::Error;
use std::path::PathBuf;
use std::time::Duration;

/// What to do with the points.
#[derive(Clone, Debug)]
pub struct ClusteringOptions {
    /// Clusters.
    pub k: usize,
    /// Iterations at most.
    pub iterations: usize,
    /// Stop when inertia falls by less than this share of itself; 0 never stops early.
    pub tolerance: f64,
    /// Stop when the sum of the centroids' squared movements is at most this share of the points' variance (the mean over
    /// coordinates), as scikit-learn's `tol`; 0 never stops early.
    pub movement: f64,
    /// Stop after the first iteration that ends later than this. How far a run comes then depends on the machine.
    pub time_limit: Option<Duration>,
    /// Names the first centroids.
    pub seed: u64,
    /// Runs, each from first centroids of its own, of which the one of the least inertia counts; at least 1.
    pub restarts: usize,
    /// Points sampled for each first centroid.
    pub sample: usize,
    /// Where the first centroids come from; by default [`Init::for_clusters`] the clusters.
    pub init: Option<Init>,
    /// Before the first iteration, move the centroids once by all points, this number at a time (Sculley, WWW 2010).
    pub mini_batch: Option<u64>,
    /// What becomes of centroids without points.
    pub empty: Empty,
    /// What decides how fast it goes, and about nothing else.
    pub tuning: Tuning,
    /// Where rank 0 writes how far it has come, after every iteration.
    pub checkpoint: Option<PathBuf>,
    /// Go on from there, if anything is there.
    pub resume: bool,
}

/// Where the first centroids come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Init {
    /// k-means|| over a sample, by all ranks.
    Parallel,
    /// k-means++ over a sample, by rank 0.
    PlusPlus,
    /// Points drawn evenly, as they are.
    Random,
    /// An `.npy` file that rank 0 finds.
    File(PathBuf),
}

/// What becomes of centroids without points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Empty {
    /// They stay where they are.
    #[default]
    Keep,
    /// Each gets half of the largest cluster, as in FAISS: a little apart from its centroid, which goes the other way.
    Split,
}

impl Init {
    /// By its name on the command line, or the name of a file.
    pub fn from_name(name: &str) -> Self {
        match name {
            "k-means||" => Self::Parallel,
            "k-means++" => Self::PlusPlus,
            "random" => Self::Random,
            file => Self::File(file.into()),
        }
    }

    /// What suits this number of clusters: time and traffic of k-means++ at one rank grow with their square.
    pub fn for_clusters(clusters: usize) -> Self {
        if clusters > 1000 { Self::Parallel } else { Self::PlusPlus }
    }
}

impl ClusteringOptions {
    /// Into `k` clusters, with all that can be left open as the program has it by default.
    pub fn new(k: usize, seed: u64, tuning: Tuning) -> Self {
        Self {
            k,
            iterations: 20,
            tolerance: 0.0,
            movement: 0.0,
            time_limit: None,
            seed,
            restarts: 1,
            sample: 4,
            init: None,
            mini_batch: None,
            empty: Empty::Keep,
            tuning,
            checkpoint: None,
            resume: false,
        }
    }

    /// Where the first centroids come from.
    pub fn init(&self) -> Init {
        self.init.clone().unwrap_or(Init::for_clusters(self.k))
    }

    /// The seed of a run, of which there are [`ClusteringOptions::restarts`].
    pub fn seed_of(&self, run: usize) -> u64 {
        self.seed.wrapping_add(run as u64)
    }

    /// Whether this can be done with this number of points.
    pub(crate) fn check(&self, points: u64) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Option(what));
        if self.k == 0 {
            return wrong("-k 0: there must be one cluster at least".into());
        }
        if self.sample == 0 {
            return wrong("--sample 0: one point for each first centroid is the least".into());
        }
        if self.restarts == 0 {
            return wrong("--restarts 0: one run is the least".into());
        }
        if self.mini_batch == Some(0) {
            return wrong("--mini-batch 0: one point at a time is the least".into());
        }
        for (name, share) in [("tolerance", self.tolerance), ("movement", self.movement)] {
            if share.is_nan() || share < 0.0 {
                return wrong(format!("--{name} {share}: must not be negative"));
            }
        }
        if self.restarts > 1 && matches!(self.init(), Init::File(_)) {
            return wrong(
                "--restarts with --init FILE: all runs would be the same; leave one of them out".into(),
            );
        }
        if self.k as u64 > points {
            return Err(Error::TooManyClusters { k: self.k, points });
        }
        Ok(())
    }
}
