//! Centroids packed into panels, and the products of point tiles with them.

use crate::nearest::NearestCentroid;
use crate::packing::{PackingScheme, PlaneProduct};
use crate::point_rows::{PointRows, RowSelection};
use crate::simd::{Kernel, NearestTwo, Scores, TileOrder};
use std::ops::Range;

/// Bytes of packed points that are multiplied with one panel before the next panel follows: half of
/// a small second-level cache.
const BLOCK_BYTES: usize = 256 << 10;

/// Centroids in panels.
pub(crate) struct PackedPanels {
    kernel: &'static Kernel,
    scheme: PackingScheme,
    /// Number of words per row in one plane, padded to a multiple of the kernel's
    /// [`Kernel::steps`].
    steps: usize,
    /// For each layer of products, the exponent of its weight, which is a power of two. A term has
    /// several layers if its sums must be split.
    shifts: Vec<u32>,
    /// All packed words, ordered by panel, plane, step and lane.
    words: Vec<u32>,
    /// The part of each centroid's squared distances that does not depend on the products. Empty
    /// lanes of the last panel hold `i64::MAX`, so that they are never the nearest.
    offsets: Vec<i64>,
}

/// A block of packed points. Its memory is reused for the next block.
struct PointBlock {
    /// Words by tile and plane, in the kernel's tile order.
    words: Vec<u32>,
    /// The term that all squared distances of a point have in common.
    offsets: Vec<i64>,
}

impl PackedPanels {
    pub(crate) fn new<'a>(
        kernel: &'static Kernel,
        scheme: PackingScheme,
        centroids: impl ExactSizeIterator<Item = &'a [i16]>,
        dims: usize,
    ) -> Self {
        let steps = scheme.words(dims).next_multiple_of(kernel.steps);
        let panels = centroids.len().div_ceil(kernel.lanes);
        let mut words = vec![0; panels * scheme.centroid_planes * steps * kernel.lanes];
        let mut offsets = vec![i64::MAX; panels * kernel.lanes];
        let mut row = vec![0; steps];
        for (j, (centroid, offset)) in centroids.zip(&mut offsets).enumerate() {
            *offset = scheme.centroid_offset(centroid);
            let (panel, lane) = (j / kernel.lanes, j % kernel.lanes);
            for plane in 0..scheme.centroid_planes {
                scheme.pack_centroid(centroid, plane, &mut row);
                let at = (panel * scheme.centroid_planes + plane) * steps * kernel.lanes + lane;
                words[at..].iter_mut().step_by(kernel.lanes).zip(&row).for_each(|(word, &c)| *word = c);
            }
        }
        let spans = steps.div_ceil(scheme.span);
        let shift = |term: &PlaneProduct| term.shift + scheme.precision().fraction() + 1;
        let shifts = scheme.terms.iter().flat_map(|term| vec![shift(term); spans]).collect();
        Self { kernel, scheme, steps, shifts, words, offsets }
    }

    pub(crate) fn nearest(
        &self,
        rows: PointRows<'_>,
        picked: RowSelection<'_>,
        mut take: impl FnMut(usize, NearestCentroid),
    ) {
        let none = NearestCentroid { index: 0, squared: i64::MAX };
        let mut best = Vec::new();
        self.for_each_block(rows, picked, |first, block| {
            best.clear();
            best.resize(block.offsets.len(), none);
            self.for_each_tile(block, self.panels(), |points, centroids, scores| {
                (self.kernel.choose)(&scores, centroids as u32, &mut best[points..]);
            });
            for (i, (best, offset)) in best.iter().zip(&block.offsets).enumerate() {
                take(first + i, NearestCentroid { squared: best.squared + offset, ..*best });
            }
        });
    }

    /// Passes the nearest two centroids of the selected rows to `take`, one block at a time, with
    /// the index of the block's first row within the selection.
    pub(crate) fn nearest_two(
        &self,
        rows: PointRows<'_>,
        picked: RowSelection<'_>,
        mut take: impl FnMut(usize, &[NearestTwo]),
    ) {
        let none = NearestTwo { nearest: NearestCentroid { index: 0, squared: i64::MAX }, next: i64::MAX };
        let mut best = Vec::new();
        self.for_each_block(rows, picked, |first, block| {
            best.clear();
            best.resize(block.offsets.len(), none);
            self.for_each_tile(block, self.panels(), |points, centroids, scores| {
                (self.kernel.choose_two)(&scores, centroids as u32, &mut best[points..]);
            });
            for (two, offset) in best.iter_mut().zip(&block.offsets) {
                two.nearest.squared += offset;
                two.next = two.next.saturating_add(*offset);
            }
            take(first, &best);
        });
    }

    pub(crate) fn all(
        &self,
        rows: PointRows<'_>,
        picked: RowSelection<'_>,
        run: &Range<usize>,
        table: &mut [i64],
    ) {
        let lanes = self.kernel.lanes;
        let mut tile = vec![0; self.kernel.rows * lanes];
        let panels = run.start / lanes..run.end.div_ceil(lanes);
        self.for_each_block(rows, picked, |first, block| {
            self.for_each_tile(block, panels.clone(), |points, centroids, scores| {
                (self.kernel.write)(&scores, &mut tile);
                // Of the first and the last panel, only some lanes may belong to the run.
                let requested = run.start.max(centroids)..run.end.min(centroids + lanes);
                let offsets = block.offsets[points..].iter();
                for (i, (scores, offset)) in tile.chunks_exact(lanes).zip(offsets).enumerate() {
                    let at = (first + points + i) * run.len() + requested.start - run.start;
                    let row = table[at..at + requested.len()]
                        .iter_mut()
                        .zip(&scores[requested.start - centroids..]);
                    row.for_each(|(distance, score)| *distance = offset + score);
                }
            });
        });
    }

    /// Returns the range of all panels.
    fn panels(&self) -> Range<usize> {
        0..self.offsets.len() / self.kernel.lanes
    }

    /// Packs the selected rows, one block at a time. `visit` receives the index of the block's
    /// first row within the selection.
    fn for_each_block(
        &self,
        rows: PointRows<'_>,
        picked: RowSelection<'_>,
        mut visit: impl FnMut(usize, &PointBlock),
    ) {
        let kernel = self.kernel;
        let tile_words = self.scheme.point_planes * self.steps * kernel.rows;
        let tiles = (BLOCK_BYTES / (4 * tile_words)).max(1).min(picked.len().div_ceil(kernel.rows));
        let mut block = PointBlock { words: vec![0; tiles * tile_words], offsets: Vec::new() };
        let mut row = vec![0; self.steps];
        for first in (0..picked.len()).step_by((tiles * kernel.rows).max(1)) {
            let count = (tiles * kernel.rows).min(picked.len() - first);
            block.offsets.clear();
            for i in 0..count {
                let point = picked.row(first + i);
                block.offsets.push(self.scheme.point_offset(rows, point));
                for plane in 0..self.scheme.point_planes {
                    self.scheme.pack_point(rows, point, plane, &mut row);
                    let at = (i / kernel.rows * self.scheme.point_planes + plane) * self.steps * kernel.rows;
                    let tile = &mut block.words[at..at + self.steps * kernel.rows];
                    kernel.order.place(&row, i % kernel.rows, kernel.rows, tile);
                }
            }
            visit(first, &block);
        }
    }

    /// Passes to `visit`, for each tile and each panel of a run, the index of the tile's first
    /// point within the block, the number of the panel's first centroid, and their scores.
    fn for_each_tile(
        &self,
        block: &PointBlock,
        run: Range<usize>,
        mut visit: impl FnMut(usize, usize, Scores<'_>),
    ) {
        let (kernel, scheme, shifts) = (self.kernel, &self.scheme, &self.shifts);
        let tile_words = scheme.point_planes * self.steps * kernel.rows;
        let panel_words = scheme.centroid_planes * self.steps * kernel.lanes;
        let mut layers = vec![0; shifts.len() * kernel.rows * kernel.lanes];
        let tiles = block.offsets.len().div_ceil(kernel.rows);
        let panels = self.words.chunks_exact(panel_words).zip(self.offsets.chunks_exact(kernel.lanes));
        for (panel, (centroids, offsets)) in panels.enumerate().take(run.end).skip(run.start) {
            for (tile, points) in block.words.chunks_exact(tile_words).take(tiles).enumerate() {
                self.multiply(points, centroids, &mut layers);
                let scores = Scores { offsets, layers: &layers, shifts };
                visit(tile * kernel.rows, panel * kernel.lanes, scores);
            }
        }
    }

    /// Multiplies a tile with a panel, term by term, in spans that are short enough for 32-bit
    /// sums.
    fn multiply(&self, points: &[u32], centroids: &[u32], layers: &mut [i32]) {
        let (kernel, span) = (self.kernel, self.scheme.span);
        let mut layers = layers.chunks_exact_mut(kernel.rows * kernel.lanes);
        for term in self.scheme.terms {
            let points = &points[term.point * self.steps * kernel.rows..][..self.steps * kernel.rows];
            let centroids =
                &centroids[term.centroid * self.steps * kernel.lanes..][..self.steps * kernel.lanes];
            let spans = points.chunks(span * kernel.rows).zip(centroids.chunks(span * kernel.lanes));
            spans.zip(&mut layers).for_each(|((x, c), sums)| (kernel.product)(x, c, sums));
        }
    }
}

impl TileOrder {
    /// Writes a row's words into a tile of `rows` rows.
    fn place(self, words: &[u32], row: usize, rows: usize, tile: &mut [u32]) {
        match self {
            Self::ByRow => tile[row * words.len()..][..words.len()].copy_from_slice(words),
            Self::ByStep => {
                tile[row..].iter_mut().step_by(rows).zip(words).for_each(|(place, &word)| *place = word);
            }
        }
    }
}
