//! Points times centroids, block by block: panels of centroids stay in the first-level cache while tiles of points,
//! which stay in the second-level cache, go past them.

use crate::filter::Filter;
use crate::level::Level;
use crate::pack::{Scheme, Term};
use crate::rows::{Picked, Precision, Rows};
use crate::scalar;
use crate::simd::{self, Kernel, NearestTwo, Order, Scores};
use std::ops::Range;

/// Bytes of packed points that go past a panel before the next one's turn: half of a small second-level cache.
const BLOCK_BYTES: usize = 256 << 10;

/// A point's nearest centroid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// Its number; of equally near centroids, the first's.
    pub index: u32,
    /// Its squared distance, in units of the centroids' grid, squared.
    pub squared: i64,
}

/// Centroids made ready for comparing many points with them.
pub struct Panels<'a> {
    precision: Precision,
    dims: usize,
    count: usize,
    work: Work<'a>,
}

enum Work<'a> {
    Plain(&'a [i16]),
    Packed(Packed),
    Filtered(Packed, Box<Filter<'a>>),
}

/// Centroids in panels.
pub(crate) struct Packed {
    kernel: &'static Kernel,
    scheme: Scheme,
    /// Words of a row of one plane, with those that fill up the kernel's step.
    steps: usize,
    /// The weights of the layers of products, as powers of two: each term's, as often as its sums must be cut.
    shifts: Vec<u32>,
    /// By panel, plane, step and lane.
    words: Vec<u32>,
    /// What is left of each centroid's squared distances but for the products; no distance at all where a panel's last
    /// lanes are empty.
    offsets: Vec<i64>,
}

impl<'a> Panels<'a> {
    /// Packs centroids (rows of `dims` coordinates on the grid of `precision`), of which there must be one at least.
    ///
    /// # Panics
    /// If there is none, a row is not whole, one of [`Precision::Byte`] is not within 0 to 32,640, or this processor does not
    /// have the level.
    pub fn new(level: Level, precision: Precision, centroids: &'a [i16], dims: usize) -> Self {
        let width = dims * precision.words();
        let count = centroids.len() / width;
        assert!(count > 0 && centroids.len() == count * width, "{} words, {width} a row", centroids.len());
        let in_range = |c: &i16| precision != Precision::Byte || (0..=32_640).contains(c);
        assert!(centroids.iter().all(in_range), "a centroid of bytes is beyond 255");
        let work = match simd::kernel(level) {
            None => Work::Plain(centroids),
            Some(kernel) => {
                let scheme = Scheme::new(kernel.form, precision);
                let packed = Packed::new(kernel, scheme, centroids.chunks_exact(width), dims);
                match precision {
                    Precision::Byte | Precision::Wide => Work::Packed(packed),
                    Precision::Fine => {
                        let filter = Filter::new(level, kernel, centroids, dims);
                        Work::Filtered(packed, Box::new(filter))
                    }
                }
            }
        };
        Self { precision, dims, count, work }
    }

    /// How many centroids there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Hands each picked row's place among them and its nearest centroid to `take`, in order.
    pub fn nearest(&self, rows: Rows<'_>, picked: Picked<'_>, mut take: impl FnMut(usize, Nearest)) {
        self.check(rows);
        match &self.work {
            Work::Plain(centroids) => {
                (0..picked.len()).for_each(|i| take(i, scalar::nearest(rows, picked.row(i), centroids)));
            }
            Work::Packed(packed) => packed.nearest(rows, picked, take),
            Work::Filtered(packed, filter) => filter.nearest(packed, rows, picked, take),
        }
    }

    /// Writes the squared distances of the picked rows from a run of the centroids, row by row, to `table`.
    ///
    /// # Panics
    /// If there are no such centroids, or the table has not a place for every distance.
    pub fn all(&self, rows: Rows<'_>, picked: Picked<'_>, run: Range<usize>, table: &mut [i64]) {
        self.check(rows);
        assert!(run.start < run.end && run.end <= self.count, "{run:?} of {} centroids", self.count);
        assert_eq!(table.len(), picked.len() * run.len(), "a place for every distance");
        match &self.work {
            Work::Plain(centroids) => {
                let centroids = &centroids[run.start * rows.width()..run.end * rows.width()];
                for (i, distances) in table.chunks_exact_mut(run.len()).enumerate() {
                    let row = picked.row(i);
                    for (distance, c) in distances.iter_mut().zip(centroids.chunks_exact(rows.width())) {
                        *distance = scalar::squared(rows, row, c);
                    }
                }
            }
            Work::Packed(packed) | Work::Filtered(packed, _) => packed.all(rows, picked, &run, table),
        }
    }

    fn check(&self, rows: Rows<'_>) {
        assert!(
            rows.precision() == self.precision && rows.dims() == self.dims,
            "points are on the centroids' grid"
        );
    }
}

/// Points packed for a while.
struct Block {
    /// By tile, plane, and as the kernel wants a tile's words ordered.
    words: Vec<u32>,
    /// What all squared distances of each point have in common.
    offsets: Vec<i64>,
}

impl Packed {
    pub(crate) fn new<'a>(
        kernel: &'static Kernel,
        scheme: Scheme,
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
        let shift = |term: &Term| term.shift + scheme.precision().fraction() + 1;
        let shifts = scheme.terms.iter().flat_map(|term| vec![shift(term); spans]).collect();
        Self { kernel, scheme, steps, shifts, words, offsets }
    }

    pub(crate) fn nearest(&self, rows: Rows<'_>, picked: Picked<'_>, mut take: impl FnMut(usize, Nearest)) {
        let none = Nearest { index: 0, squared: i64::MAX };
        let mut best = Vec::new();
        self.each_block(rows, picked, |first, block| {
            best.clear();
            best.resize(block.offsets.len(), none);
            self.each_tile(block, self.panels(), |points, centroids, scores| {
                (self.kernel.choose)(&scores, centroids as u32, &mut best[points..]);
            });
            for (i, (best, offset)) in best.iter().zip(&block.offsets).enumerate() {
                take(first + i, Nearest { squared: best.squared + offset, ..*best });
            }
        });
    }

    /// Hands the nearest centroids of the picked rows to `take`, a block at a time, with the place of the first among them.
    pub(crate) fn nearest_two(
        &self,
        rows: Rows<'_>,
        picked: Picked<'_>,
        mut take: impl FnMut(usize, &[NearestTwo]),
    ) {
        let none = NearestTwo { nearest: Nearest { index: 0, squared: i64::MAX }, next: i64::MAX };
        let mut best = Vec::new();
        self.each_block(rows, picked, |first, block| {
            best.clear();
            best.resize(block.offsets.len(), none);
            self.each_tile(block, self.panels(), |points, centroids, scores| {
                (self.kernel.choose_two)(&scores, centroids as u32, &mut best[points..]);
            });
            for (two, offset) in best.iter_mut().zip(&block.offsets) {
                two.nearest.squared += offset;
                two.next = two.next.saturating_add(*offset);
            }
            take(first, &best);
        });
    }

    fn all(&self, rows: Rows<'_>, picked: Picked<'_>, run: &Range<usize>, table: &mut [i64]) {
        let lanes = self.kernel.lanes;
        let mut tile = vec![0; self.kernel.rows * lanes];
        let panels = run.start / lanes..run.end.div_ceil(lanes);
        self.each_block(rows, picked, |first, block| {
            self.each_tile(block, panels.clone(), |points, centroids, scores| {
                (self.kernel.write)(&scores, &mut tile);
                // Of the first and the last panel, only some lanes may be asked for.
                let asked = run.start.max(centroids)..run.end.min(centroids + lanes);
                let offsets = block.offsets[points..].iter();
                for (i, (scores, offset)) in tile.chunks_exact(lanes).zip(offsets).enumerate() {
                    let at = (first + points + i) * run.len() + asked.start - run.start;
                    let row = table[at..at + asked.len()].iter_mut().zip(&scores[asked.start - centroids..]);
                    row.for_each(|(distance, score)| *distance = offset + score);
                }
            });
        });
    }

    /// All of them.
    fn panels(&self) -> Range<usize> {
        0..self.offsets.len() / self.kernel.lanes
    }

    /// Packs the picked rows, a block at a time; `visit` gets the place of the first among them.
    fn each_block(&self, rows: Rows<'_>, picked: Picked<'_>, mut visit: impl FnMut(usize, &Block)) {
        let kernel = self.kernel;
        let tile_words = self.scheme.point_planes * self.steps * kernel.rows;
        let tiles = (BLOCK_BYTES / (4 * tile_words)).max(1).min(picked.len().div_ceil(kernel.rows));
        let mut block = Block { words: vec![0; tiles * tile_words], offsets: Vec::new() };
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

    /// Hands the place in the block of each tile's first point, the number of the first centroid of each panel of a run, and
    /// their scores to `visit`.
    fn each_tile(&self, block: &Block, run: Range<usize>, mut visit: impl FnMut(usize, usize, Scores<'_>)) {
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

    /// A tile times a panel, term by term, cut so that no sum overflows.
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

impl Order {
    /// Writes a row's words into a tile of `rows`.
    fn place(self, words: &[u32], row: usize, rows: usize, tile: &mut [u32]) {
        match self {
            Self::ByRow => tile[row * words.len()..][..words.len()].copy_from_slice(words),
            Self::ByStep => {
                tile[row..].iter_mut().step_by(rows).zip(words).for_each(|(place, &word)| *place = word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Points of all precisions and centroids, noise or the extremes of their ranges.
    #[derive(Clone, Debug)]
    struct Case {
        precision: Precision,
        dims: usize,
        points: Vec<i16>,
        centroids: Vec<i16>,
    }

    impl Case {
        fn check(&self) {
            let bytes: Vec<u8> = self.points.iter().map(|&x| x as u8).collect();
            let rows = match self.precision {
                Precision::Byte => Rows::bytes(&bytes, self.dims),
                Precision::Wide => Rows::wide(&self.points, self.dims),
                Precision::Fine => Rows::fine(&self.points, self.dims),
            };
            let run = Picked::Run { first: 0, count: rows.len() };
            let expected: Vec<Nearest> =
                (0..rows.len()).map(|i| scalar::nearest(rows, i, &self.centroids)).collect();
            let table: Vec<i64> = (0..rows.len())
                .flat_map(|i| self.centroids.chunks(rows.width()).map(move |c| scalar::squared(rows, i, c)))
                .collect();
            for level in Level::available() {
                let panels = Panels::new(level, self.precision, &self.centroids, self.dims);
                let mut found = Vec::new();
                panels.nearest(rows, run, |_, nearest| found.push(nearest));
                assert_eq!(found, expected, "{level}");
                let mut all = vec![0; table.len()];
                let k = panels.len();
                panels.all(rows, run, 0..k, &mut all);
                assert_eq!(all, table, "{level}");
                let some = k / 3..k - k / 4;
                let part: Vec<i64> =
                    table.chunks_exact(k).flat_map(|row| row[some.clone()].to_vec()).collect();
                let mut found = vec![0; part.len()];
                panels.all(rows, run, some.clone(), &mut found);
                assert_eq!(found, part, "{level}, {some:?} of {k}");
                let list: Vec<u32> = (0..rows.len() as u32).rev().step_by(2).collect();
                panels.nearest(rows, Picked::List(&list), |i, nearest| {
                    assert_eq!(nearest, expected[list[i] as usize], "{level}, picked");
                });
            }
        }
    }

    fn case(precision: Precision) -> impl Strategy<Value = Case> {
        let ends = |(least, largest): (i64, i64)| prop_oneof![4 => least..=largest, 1 => Just(least), 1 => Just(largest)];
        let anywhere = (ends(precision.range()).boxed(), ends(precision.centroid_range()).boxed());
        // So near together that upper words alone do not tell which is the nearest.
        let together = ((0..=255i64).boxed(), (0..=255i64).boxed());
        let values = prop_oneof![3 => Just(anywhere), 1 => Just(together)];
        (values, 1usize..140, 0usize..60, 1usize..80).prop_flat_map(move |((x, c), dims, n, k)| {
            let points = prop::collection::vec(x, n * dims);
            let centroids = prop::collection::vec(c, k * dims);
            let words = move |rows: &[i64]| -> Vec<i16> {
                rows.chunks(dims).flat_map(|row| precision.to_words(row.iter().copied())).collect()
            };
            (points, centroids).prop_map(move |(points, centroids)| Case {
                precision,
                dims,
                points: words(&points),
                centroids: words(&centroids),
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_level_equals_the_definition(
            case in prop_oneof![case(Precision::Byte), case(Precision::Wide), case(Precision::Fine)],
        ) {
            case.check();
        }
    }

    #[test]
    fn extreme_values_do_not_overflow_in_any_number_of_dimensions() {
        const FINEST: i64 = 32_767 * 256;
        for dims in [510, 511, 512, 1021, 1022, 1023, 1024, 5000, crate::MAX_DIMS / 4, crate::MAX_DIMS] {
            let cases = [
                (Precision::Byte, 255, 32_640),
                (Precision::Byte, 0, 32_640),
                (Precision::Byte, 255, 0),
                (Precision::Byte, 0, 0),
                (Precision::Wide, -32_767, -32_768),
                (Precision::Wide, 32_767, 32_767),
                (Precision::Wide, -32_767, 32_767),
                (Precision::Wide, -32_768, -32_768),
                (Precision::Fine, -FINEST, -FINEST),
                (Precision::Fine, FINEST, FINEST),
                (Precision::Fine, -FINEST, FINEST),
                (Precision::Fine, FINEST, -FINEST),
            ];
            for (precision, x, c) in cases.into_iter().filter(|(p, ..)| dims <= p.max_dims()) {
                let row = |x: i64| precision.to_words(std::iter::repeat_n(x, dims));
                let centroids = [row(c), row(c / 2)].concat();
                Case { precision, dims, points: row(x), centroids }.check();
            }
        }
    }

    #[test]
    fn of_equally_near_centroids_the_first_is_chosen_also_across_panels() {
        let mut centroids = vec![9; 200];
        (0..200).step_by(3).skip(1).for_each(|j| centroids[j] = if j % 2 == 0 { 3 } else { -3 });
        Case { precision: Precision::Wide, dims: 1, points: vec![0; 30], centroids }.check();
    }
}
