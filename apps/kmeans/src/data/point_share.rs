//! A rank's share of the points: the points that it loads, and those that it takes over when other
//! ranks are lost.

use crate::data::grid::{Grid, Metric, Points, Reals};
use crate::data::inputs::{InputOptions, PointSource};
use crate::data::partition::{Subsample, rank_range};
use crate::data::weights::Weights;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use crate::progress::ProgressObserver;
use cool::Op;
use std::ops::Range;
use std::path::PathBuf;

/// Coordinates must be below this magnitude, because squares of larger numbers and their sums could
/// overflow `f64`.
const MAX_REAL: f64 = 1e100;

/// Which files to read, and which of their points.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The files.
    pub input: InputOptions,
    /// The selection of their points.
    pub select: PointSelection,
}

/// Which points of a source to use, and in which form.
#[derive(Clone, Debug)]
pub struct PointSelection {
    /// Maximum number of points. If there are more, an even subsample is used.
    pub max_points: u64,
    /// Seed of the subsample.
    pub seed: u64,
    /// Threads of this rank.
    pub threads: usize,
    /// How distance is defined.
    pub metric: Metric,
    /// How numbers other than bytes are stored.
    pub reals: Reals,
    /// An `.npy` file with the weight of each row of the input, at least 0: how often the point
    /// counts. By default each point counts once.
    pub weights: Option<PathBuf>,
}

impl PointSelection {
    /// Selects all points, unchanged.
    pub fn all(seed: u64, threads: usize) -> Self {
        Self {
            max_points: u64::MAX,
            seed,
            threads,
            metric: Metric::Euclidean,
            reals: Reals::Short,
            weights: None,
        }
    }
}

/// A rank's share of the points.
pub struct PointShare {
    /// Origin of the points.
    pub source: PointSource,
    /// The rows of the source that are used.
    pub chosen: Subsample,
    /// Numbers of the points that this rank holds, among all points that are used.
    pub range: Range<u64>,
    /// The grid of all points.
    pub grid: Grid,
    /// This rank's points.
    pub points: Points,
    /// Origin of the points' weights, if they have weights.
    pub weights: Option<Weights>,
}

impl PointShare {
    /// Returns this rank's points, which are kept in `kept`. If all ranks hold points already, each
    /// keeps those that still belong to it and reads only the others, because loading is slow.
    pub fn reload<'a>(
        kept: &'a mut Option<PointShare>,
        peers: &PeerRanks<'_>,
        loading: &LoadOptions,
        watch: &dyn ProgressObserver,
    ) -> Result<&'a PointShare, Error> {
        let all = peers.combine(vec![u8::from(kept.is_some())], Op::Min)?[0] != 0;
        match kept.take().filter(|_| all) {
            None => Ok(kept.insert(PointShare::load(peers, loading, watch)?)),
            Some(share) => {
                let share = kept.insert(share);
                share.redistribute(peers, loading, watch)?;
                Ok(share)
            }
        }
    }

    /// Adapts this rank's part to the present number of ranks: keeps the points that still belong
    /// to it, and reads the others.
    fn redistribute(
        &mut self,
        peers: &PeerRanks<'_>,
        loading: &LoadOptions,
        watch: &dyn ProgressObserver,
    ) -> Result<(), Error> {
        let range = rank_range(self.chosen.len(), peers.size(), peers.rank());
        let start = self.range.start.clamp(range.start, range.end);
        let kept = start..self.range.end.clamp(start, range.end);
        let missing = [range.start..kept.start, kept.end..range.end];
        watch.loading(missing.iter().map(|part| part.end - part.start).sum());
        let read = |part: Range<u64>| {
            let rows: Vec<u64> = part.map(|i| self.chosen.row(i)).collect();
            read(&self.source, &self.grid, self.weights.as_ref(), &rows, loading.select.threads, watch)
        };
        let [before, after] = missing;
        let [mut points, after] = peers.agree(read(before).and_then(|before| Ok([before, read(after)?])))?;
        let at = |point: u64| point.saturating_sub(self.range.start) as usize;
        if !kept.is_empty() {
            points.append(&self.points, at(kept.start)..at(kept.end));
        }
        points.append(&after, 0..after.len());
        self.points = points;
        self.range = range;
        Ok(())
    }

    /// Reads this rank's points. If one rank fails, all fail.
    ///
    /// # Errors
    /// If inputs cannot be read at some rank or contain no points, or if ranks are lost.
    pub fn load(
        peers: &PeerRanks<'_>,
        loading: &LoadOptions,
        watch: &dyn ProgressObserver,
    ) -> Result<Self, Error> {
        let source = PointSource::open(peers, &loading.input, loading.select.threads)?;
        Self::from_source(peers, source, &loading.select, watch)
    }

    /// Reads this rank's points of a source.
    ///
    /// # Errors
    /// If a rank cannot read its points, or ranks are lost.
    pub fn from_source(
        peers: &PeerRanks<'_>,
        source: PointSource,
        select: &PointSelection,
        watch: &dyn ProgressObserver,
    ) -> Result<Self, Error> {
        let (dims, most) = (source.dims(), select.reals.max_dims());
        if dims > most && source.byte_step().is_none() {
            return Err(Error::Option(format!(
                "--precision float supports points of at most {most} coordinates, not {dims}; omit it"
            )));
        }
        let chosen = Subsample::new(source.rows(), select.max_points, select.seed);
        let range = rank_range(chosen.len(), peers.size(), peers.rank());
        let rows: Vec<u64> = range.clone().map(|i| chosen.row(i)).collect();
        watch.loading(rows.len() as u64);
        let grid = match (select.metric, source.byte_step()) {
            (Metric::Cosine, _) => Grid::directions(select.reals, source.dims()),
            (Metric::Euclidean, Some(step)) => Grid::bytes(source.dims(), step),
            (Metric::Euclidean, None) => spanning(peers, select.reals, &source, &rows)?,
        };
        let weights = match &select.weights {
            Some(path) => Some(Weights::open(peers, path, source.rows(), &rows)?),
            None => None,
        };
        let points = peers.agree(read(&source, &grid, weights.as_ref(), &rows, select.threads, watch))?;
        Ok(Self { source, chosen, range, grid, points, weights })
    }
}

/// Reads some rows of a source as points. The rows must ascend.
fn read(
    source: &PointSource,
    grid: &Grid,
    weights: Option<&Weights>,
    rows: &[u64],
    threads: usize,
    watch: &dyn ProgressObserver,
) -> Result<Points, Error> {
    let points = source.load(rows, grid, threads, &|points| watch.loaded(points))?;
    let weights = weights.map(|weights| weights.load(rows)).transpose()?;
    Ok(Points { weights, ..points })
}

/// Returns the grid that spans the points of all ranks. This rank reads the given rows twice, once
/// for the grid and once for the points, because it would otherwise have to hold them in their
/// original form.
fn spanning(peers: &PeerRanks<'_>, reals: Reals, source: &PointSource, rows: &[u64]) -> Result<Grid, Error> {
    let mut low = vec![MAX_REAL; source.dims()];
    let mut high = vec![-MAX_REAL; source.dims()];
    peers.agree(source.each(rows, |row| {
        low.iter_mut().zip(row).for_each(|(bound, &v)| *bound = bound.min(v));
        high.iter_mut().zip(row).for_each(|(bound, &v)| *bound = bound.max(v));
    }))?;
    grid_between(peers, reals, low, high)
}

/// Returns the grid that spans all ranks' coordinates, given the minimum and maximum of each
/// coordinate at this rank.
pub(crate) fn grid_between(
    peers: &PeerRanks<'_>,
    reals: Reals,
    low: Vec<f64>,
    high: Vec<f64>,
) -> Result<Grid, Error> {
    let low = peers.combine(low, Op::Min)?;
    let high = peers.combine(high, Op::Max)?;
    let beyond = low.iter().any(|&l| l <= -MAX_REAL) || high.iter().any(|&h| h >= MAX_REAL);
    peers.agree(if beyond {
        Err(Error::Input(format!("a coordinate is beyond {MAX_REAL:e}; scale the points down")))
    } else {
        Ok(Grid::spanning(reals, &low, &high))
    })
}
