//! Visual words: for some clusters, the points nearest to their centroids, and a mosaic of them.

use crate::algorithm::lloyd::GridClustering;
use crate::data::inputs::PointSource;
use crate::data::inputs::formats::PointOrigin;
use crate::data::point_share::PointShare;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use cool_map::replace_file;
use image::imageops::FilterType;
use image::{Rgb, RgbImage};
use std::path::Path;

/// A cluster, and some points that represent it.
#[derive(Debug, serde::Serialize)]
pub struct VisualWord {
    /// Number of the centroid.
    pub cluster: u32,
    /// Number of points in the cluster.
    pub size: i64,
    /// The nearest points in ascending order of distance.
    pub nearest: Vec<NearestPoint>,
}

/// A point near a centroid.
#[derive(Debug, serde::Serialize)]
pub struct NearestPoint {
    /// Origin of the point.
    #[serde(flatten)]
    pub place: PointOrigin,
    /// Distance from the centroid.
    pub distance: f64,
    /// The point's row among all rows of the source.
    #[serde(skip)]
    pub source_row: u64,
}

/// Number of candidates per point that is shown. There must be several, because overlapping patches
/// show the same detail, so only one of them is shown.
const CHOICE: usize = 4;

/// Stands for no cluster.
const NO_CLUSTER: u32 = u32::MAX;

/// Stands for no candidate.
const NONE: [i64; 2] = [i64::MAX, i64::MAX];

/// Returns `count` words with `each` points each, at rank 0. All ranks must call this.
pub fn find(
    peers: &PeerRanks<'_>,
    share: &PointShare,
    clustered: &GridClustering,
    count: usize,
    each: usize,
) -> Result<Vec<VisualWord>, Error> {
    let mut shown = spread(&clustered.sizes, count, each);
    shown.resize(count.min(clustered.centroids.len()), NO_CLUSTER);
    peers.bcast(&mut shown, 0)?;
    shown.retain(|&j| j != NO_CLUSTER);

    let room = each * CHOICE;
    let mine: Vec<[i64; 2]> = shown.iter().flat_map(|&j| candidates(share, clustered, j, room)).collect();
    let all = peers.gather(mine.into_flattened())?;
    let words =
        if peers.leads() { merge(share, clustered, &shown, all.as_chunks().0, each) } else { Ok(Vec::new()) };
    peers.agree(words)
}

/// Returns at most `count` clusters, evenly spread from the largest to the smallest of those with
/// at least `least` points.
fn spread(sizes: &[i64], count: usize, least: usize) -> Vec<u32> {
    let mut order: Vec<u32> =
        (0u32..).zip(sizes).filter(|(_, n)| **n >= least as i64).map(|(j, _)| j).collect();
    order.sort_by_key(|&j| std::cmp::Reverse(sizes[j as usize]));
    let count = count.min(order.len());
    (0..count).map(|i| order[i * order.len() / count]).collect()
}

/// Returns the `room` points of this rank that are nearest to the cluster's centroid, each as its
/// squared distance and its number. If there are fewer, the rest is [`NONE`].
fn candidates(share: &PointShare, clustered: &GridClustering, cluster: u32, room: usize) -> Vec<[i64; 2]> {
    let centroid = clustered.centroids.row(cluster as usize);
    let members = clustered.labels.iter().enumerate().filter(|(_, label)| **label == cluster);
    let measure = |(i, _): (usize, &u32)| {
        let apart = share.points.squared(i, centroid);
        [apart, (share.range.start + i as u64) as i64]
    };
    let mut near: Vec<_> = members.map(measure).collect();
    near.sort_unstable();
    near.resize(room, NONE);
    near
}

/// Returns the words, given `CHOICE * each` candidates of each rank for each cluster.
fn merge(
    share: &PointShare,
    clustered: &GridClustering,
    clusters: &[u32],
    candidates: &[[i64; 2]],
    each: usize,
) -> Result<Vec<VisualWord>, Error> {
    let room = each * CHOICE;
    let per_rank = clusters.len() * room;
    let mut words = Vec::new();
    for (c, &cluster) in clusters.iter().enumerate() {
        let of_rank = |rank: &[[i64; 2]]| rank[c * room..(c + 1) * room].to_vec();
        let mut near: Vec<_> =
            candidates.chunks_exact(per_rank).flat_map(of_rank).filter(|n| *n != NONE).collect();
        near.sort_unstable();
        near.truncate(room);
        let near = describe(share, &near)?;
        words.push(VisualWord {
            cluster,
            size: clustered.sizes[cluster as usize],
            nearest: apart(share, near, each),
        });
    }
    Ok(words)
}

/// Converts squared distances and numbers of points to points with their origins.
fn describe(share: &PointShare, near: &[[i64; 2]]) -> Result<Vec<NearestPoint>, Error> {
    let mut rows: Vec<u64> = near.iter().map(|n| share.chosen.row(n[1] as u64)).collect();
    rows.sort_unstable();
    let origins = share.source.origins(&rows)?;
    let name = |&[squared, number]: &[i64; 2]| {
        let source_row = share.chosen.row(number as u64);
        let place = origins[rows.partition_point(|&r| r < source_row)].clone();
        NearestPoint { place, distance: share.grid.real_squared(squared as u128).sqrt(), source_row }
    };
    Ok(near.iter().map(name).collect())
}

/// Returns the first `each` points. Patches that overlap a nearer one are skipped.
fn apart(share: &PointShare, near: Vec<NearestPoint>, each: usize) -> Vec<NearestPoint> {
    let patch = match &share.source {
        PointSource::Pictures(pictures) => u64::from(pictures.cut().patch),
        PointSource::Text(_) | PointSource::Arrays(_) | PointSource::InMemory { .. } => 0,
    };
    let overlap = |a: &PointOrigin, b: &PointOrigin| {
        a.file == b.file && a.row.abs_diff(b.row) < patch && a.column.abs_diff(b.column) < patch
    };
    let mut kept: Vec<NearestPoint> = Vec::new();
    for candidate in near {
        if kept.len() < each && !kept.iter().any(|k| overlap(&k.place, &candidate.place)) {
            kept.push(candidate);
        }
    }
    kept
}

/// Side of a patch in the mosaic, in pixels.
const TILE: u32 = 48;
/// Pixels between neighboring patches.
const GAP: u32 = 3;
/// Pixels between the two columns of words.
const MARGIN: u32 = 24;

/// Draws the words' patches, one word per row, in two columns if there are many words. Returns
/// `None` if the points are not patches.
pub fn mosaic(source: &PointSource, words: &[VisualWord]) -> Result<Option<RgbImage>, Error> {
    let PointSource::Pictures(pictures) = source else { return Ok(None) };
    let columns = if words.len() > 8 { 2 } else { 1 };
    let lines = words.len().div_ceil(columns).max(1);
    let each = words.iter().map(|w| w.nearest.len()).max().unwrap_or(0);
    let wide = each as u32 * (TILE + GAP) + MARGIN;
    let size = (wide * columns as u32 - MARGIN, lines as u32 * (TILE + GAP) + GAP);
    let mut mosaic = RgbImage::from_pixel(size.0 + GAP, size.1, Rgb([255; 3]));

    let shown: Vec<(usize, usize, u64)> = words
        .iter()
        .enumerate()
        .flat_map(|(w, word)| word.nearest.iter().enumerate().map(move |(i, near)| (w, i, near.source_row)))
        .collect();
    let rows: Vec<u64> = shown.iter().map(|s| s.2).collect();
    for ((word, i, _), patch) in shown.into_iter().zip(pictures.patches(&rows)?) {
        let tile = image::imageops::resize(&patch, TILE, TILE, FilterType::Triangle);
        let x = (word / lines) as u32 * wide + GAP + i as u32 * (TILE + GAP);
        let y = GAP + (word % lines) as u32 * (TILE + GAP);
        image::imageops::replace(&mut mosaic, &tile, x.into(), y.into());
    }
    Ok(Some(mosaic))
}

/// Writes the words as JSON. If they are patches, also writes their mosaic next to it, with the
/// extension `.png`.
pub fn write(path: &Path, source: &PointSource, words: &[VisualWord]) -> Result<(), Error> {
    crate::output::report::write_json(path, words)?;
    if let Some(mosaic) = mosaic(source, words)? {
        let picture = path.with_extension("png");
        let mut bytes = Vec::new();
        let encoder = image::codecs::png::PngEncoder::new(&mut bytes);
        mosaic.write_with_encoder(encoder).map_err(std::io::Error::other).map_err(Error::file(&picture))?;
        replace_file(&picture, &[&bytes]).map_err(Error::file(&picture))?;
    }
    Ok(())
}
