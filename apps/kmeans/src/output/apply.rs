//! Applies a model to points and pictures: labels, distances, and histograms of words. All ranks
//! share the work.

use crate::classification::bag::VocabularyReader;
use crate::data::grid::{Centroids, Metric, Points, Precision};
use crate::data::inputs::PointSource;
use crate::data::inputs::pictures::Pictures;
use crate::error::Error;
use crate::output::model::Clusters;
use crate::output::tables::in_blocks;
use crate::peer_ranks::PeerRanks;
use crate::progress::ProgressObserver;
use cool_distance::{Panels, RowSelection, SimdLevel};
use cool_map::threads;
use std::ops::Range;

/// Points that a rank reads and assigns at a time.
const BLOCK: u64 = 1 << 14;

/// Number of points per unit of work of a thread.
const PIECE: usize = 1 << 9;

/// Pictures that a rank describes at a time.
const PICTURES: u64 = 32;

/// A point's nearest centroid.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Assignment {
    /// Number of the centroid; of equally near centroids, the first.
    pub label: u32,
    /// Distance from the centroid.
    pub distance: f64,
}

/// Passes each point's nearest centroid to `write` at rank 0, in the order of the points. Points
/// that were clustered get the labels of the clustering.
///
/// # Errors
/// If points are of another kind than the clustered ones or cannot be read, or if ranks are lost.
pub fn assign(
    peers: &PeerRanks<'_>,
    clusters: &Clusters,
    source: &PointSource,
    (level, threads): (SimdLevel, usize),
    watch: &dyn ProgressObserver,
    mut write: impl FnMut(&[Assignment]) -> Result<(), Error>,
) -> Result<(), Error> {
    peers.agree(clusters.check_source(source))?;
    let Centroids { precision, dims, values } = &clusters.centroids;
    let panels = Panels::new(level, *precision, values, *dims);
    let real = clusters.grid.real(&clusters.centroids);
    watch.loading(source.rows() / peers.size() as u64);
    let compute = |rows: Range<u64>| {
        let (points, beyond) = load(clusters, source, rows, threads)?;
        let mut found = nearest(clusters, &panels, &points, threads);
        for (i, row) in beyond {
            found[i] = off_grid(&real, &row);
        }
        watch.loaded(points.len() as u64);
        // Label and distance are sent as two numbers of one type, because a gather has one type.
        Ok(found.iter().flat_map(|a| [u64::from(a.label), a.distance.to_bits()]).collect())
    };
    in_blocks(peers, source.rows(), BLOCK, compute, |_, pairs| {
        let (pairs, _) = pairs.as_chunks();
        let assigned =
            |[label, bits]: &[u64; 2]| Assignment { label: *label as u32, distance: f64::from_bits(*bits) };
        write(&pairs.iter().map(assigned).collect::<Vec<_>>())
    })
}

/// A point beyond the grid: its index among the points, and its coordinates.
type OffGrid = (usize, Vec<f64>);

/// Returns all points, rounded and clamped to the model's grid, and the coordinates of those that
/// lie beyond it, because their distances on the grid are wrong. Byte grids and the cosine metric
/// have none.
fn load(
    clusters: &Clusters,
    source: &PointSource,
    rows: Range<u64>,
    threads: usize,
) -> Result<(Points, Vec<OffGrid>), Error> {
    let (grid, rows): (_, Vec<u64>) = (&clusters.grid, rows.collect());
    if grid.precision == Precision::Byte || grid.metric == Metric::Cosine {
        return Ok((source.load(&rows, grid, threads, &|_| ())?, Vec::new()));
    }
    let (mut points, mut beyond) = (grid.empty_points(), Vec::new());
    points.reserve(rows.len());
    source.each(&rows, |row| {
        if !grid.contains(row) {
            beyond.push((points.len(), row.to_vec()));
        }
        grid.quantize(row, &mut points);
    })?;
    Ok((points, beyond))
}

fn nearest(clusters: &Clusters, panels: &Panels, points: &Points, threads: usize) -> Vec<Assignment> {
    let mut found = vec![Assignment::default(); points.len()];
    threads::map_mut(threads, found.chunks_mut(PIECE).collect(), |piece, found: &mut [Assignment]| {
        let picked = RowSelection::Run { first: piece * PIECE, count: found.len() };
        panels.nearest(points.rows(), picked, |i, nearest| {
            let squared = clusters.grid.real_squared(nearest.squared.unsigned_abs().into());
            found[i] = Assignment { label: nearest.index, distance: squared.sqrt() };
        });
    });
    found
}

/// Returns the nearest centroid of a point beyond the grid, by distances between real numbers.
fn off_grid(centroids: &[f64], row: &[f64]) -> Assignment {
    let mut best = Assignment { label: 0, distance: f64::INFINITY };
    for (label, centroid) in (0u32..).zip(centroids.chunks_exact(row.len())) {
        let squared: f64 = row.iter().zip(centroid).map(|(x, c)| (x - c) * (x - c)).sum();
        if squared < best.distance {
            best = Assignment { label, distance: squared };
        }
    }
    Assignment { distance: best.distance.sqrt(), ..best }
}

/// Passes the number of occurrences of each word in each picture to `write` at rank 0: one row of
/// counts per picture.
///
/// # Errors
/// If the model was not made from pictures, a picture cannot be read, or ranks are lost.
pub fn histograms(
    peers: &PeerRanks<'_>,
    clusters: &Clusters,
    pictures: &Pictures,
    (level, threads): (SimdLevel, usize),
    watch: &dyn ProgressObserver,
    write: impl FnMut(Range<u64>, Vec<i32>) -> Result<(), Error>,
) -> Result<(), Error> {
    let reader = peers.agree(VocabularyReader::new(clusters, level))?;
    let entries: Vec<_> = pictures.entries().collect();
    watch.loading((entries.len() / peers.size()) as u64);
    let count = |i: u64| -> Result<Vec<i32>, Error> {
        let mut counts = vec![0; reader.words()];
        reader.read(entries[i as usize])?.iter().for_each(|patch| counts[patch.word as usize] += 1);
        watch.loaded(1);
        Ok(counts)
    };
    let compute = |rows: Range<u64>| {
        let counts =
            threads::map(threads, (rows.end - rows.start) as usize, |i| count(rows.start + i as u64));
        counts.into_iter().collect::<Result<Vec<_>, _>>().map(|rows| rows.concat())
    };
    in_blocks(peers, entries.len() as u64, PICTURES, compute, write)
}

/// Passes the points of a source to `write` at rank 0: bytes, or 64-bit floating-point numbers as
/// little-endian bytes.
///
/// # Errors
/// If the points cannot be read, or ranks are lost.
pub fn features(
    peers: &PeerRanks<'_>,
    source: &PointSource,
    threads: usize,
    watch: &dyn ProgressObserver,
    write: impl FnMut(Range<u64>, Vec<u8>) -> Result<(), Error>,
) -> Result<(), Error> {
    watch.loading(source.rows() / peers.size() as u64);
    let compute = |rows: Range<u64>| {
        let rows: Vec<u64> = rows.collect();
        if source.byte_step().is_some() {
            return source.bytes(&rows, threads, &|points| watch.loaded(points));
        }
        let mut bytes = Vec::with_capacity(rows.len() * source.dims() * 8);
        source.each(&rows, |row| bytes.extend(row.iter().flat_map(|x| x.to_le_bytes())))?;
        watch.loaded(rows.len() as u64);
        Ok(bytes)
    };
    in_blocks(peers, source.rows(), BLOCK, compute, write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_off_the_grid_use_real_distances_and_the_first_tie() {
        let centroids = [0.0, 0.0, 10.0, 0.0, 10.0, 0.0];
        assert_eq!(off_grid(&centroids, &[13.0, 4.0]), Assignment { label: 1, distance: 5.0 });
        assert_eq!(off_grid(&centroids, &[-3.0, 4.0]), Assignment { label: 0, distance: 5.0 });
    }
}
