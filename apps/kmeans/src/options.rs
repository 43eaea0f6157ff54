//! Options of a clustering.

use crate::algorithm::tuning::Tuning;
use crate::error::Error;
use std::path::PathBuf;
use std::time::Duration;

/// Options of a clustering.
#[derive(Clone, Debug)]
pub struct ClusteringOptions {
    /// Number of clusters.
    pub k: usize,
    /// Maximum number of iterations.
    pub iterations: usize,
    /// Stop when inertia falls by less than this share of itself; 0 never stops early.
    pub tolerance: f64,
    /// Stop when the sum of the centroids' squared movements is at most this share of the points'
    /// variance (the mean over coordinates), as scikit-learn's `tol`; 0 never stops early.
    pub movement: f64,
    /// Stop after the first iteration that ends later than this. The number of iterations then
    /// depends on the machine.
    pub time_limit: Option<Duration>,
    /// Seed of the first centroids.
    pub seed: u64,
    /// Number of runs, each with its own first centroids; at least 1. The run with the least
    /// inertia is returned.
    pub restarts: usize,
    /// Points sampled per first centroid.
    pub sample: usize,
    /// Origin of the first centroids; by default [`Init::for_clusters`] of the number of clusters.
    pub init: Option<Init>,
    /// Before the first iteration, move the centroids by one pass over all points, this number at a
    /// time (Sculley, WWW 2010).
    pub mini_batch: Option<u64>,
    /// Treatment of centroids without points.
    pub empty: Empty,
    /// Options that affect the run time only.
    pub tuning: Tuning,
    /// File to which rank 0 writes the state after every iteration.
    pub checkpoint: Option<PathBuf>,
    /// Continue from the checkpoint, if it exists.
    pub resume: bool,
}

/// Origin of the first centroids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Init {
    /// k-means|| over a sample, on all ranks.
    Parallel,
    /// k-means++ over a sample, at rank 0.
    PlusPlus,
    /// Random points, evenly spread over the input.
    Random,
    /// An `.npy` file that rank 0 can read.
    File(PathBuf),
}

/// Treatment of centroids without points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Empty {
    /// They keep their positions.
    #[default]
    Keep,
    /// Each gets half of the largest cluster, as in FAISS: it is placed next to that cluster's
    /// centroid, which moves in the opposite direction.
    Split,
}

impl Init {
    /// Returns the method of a name on the command line. Other names are those of files.
    pub fn from_name(name: &str) -> Self {
        match name {
            "k-means||" => Self::Parallel,
            "k-means++" => Self::PlusPlus,
            "random" => Self::Random,
            file => Self::File(file.into()),
        }
    }

    /// Returns the method that suits the number of clusters. Time and traffic of k-means++ at one
    /// rank grow with the square of the number, so k-means|| is used for many clusters.
    pub fn for_clusters(clusters: usize) -> Self {
        if clusters > 1000 { Self::Parallel } else { Self::PlusPlus }
    }
}

impl ClusteringOptions {
    /// Returns options for `k` clusters, with the program's default values.
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

    /// Returns the origin of the first centroids.
    pub fn init(&self) -> Init {
        self.init.clone().unwrap_or(Init::for_clusters(self.k))
    }

    /// Returns the seed of a run. Runs are numbered from 0; there are
    /// [`ClusteringOptions::restarts`].
    pub fn seed_of(&self, run: usize) -> u64 {
        self.seed.wrapping_add(run as u64)
    }

    /// Checks that the options are valid for this number of points.
    pub(crate) fn check(&self, points: u64) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Option(what));
        if self.k == 0 {
            return wrong("-k 0: must be at least 1".into());
        }
        if self.sample == 0 {
            return wrong("--sample 0: must be at least 1 point per first centroid".into());
        }
        if self.restarts == 0 {
            return wrong("--restarts 0: must be at least 1".into());
        }
        if self.mini_batch == Some(0) {
            return wrong("--mini-batch 0: must be at least 1 point".into());
        }
        for (name, share) in [("tolerance", self.tolerance), ("movement", self.movement)] {
            if share.is_nan() || share < 0.0 {
                return wrong(format!("--{name} {share}: must not be negative"));
            }
        }
        if self.restarts > 1 && matches!(self.init(), Init::File(_)) {
            return wrong("--restarts with --init FILE: all runs would be the same; omit one of them".into());
        }
        if self.k as u64 > points {
            return Err(Error::TooManyClusters { k: self.k, points });
        }
        Ok(())
    }
}
