//! The blocked product of points and centroids: panels of centroids stay in the first-level cache
//! while tiles of points stream past them from the second-level cache.

use crate::nearest::NearestCentroid;
use crate::packed_panels::PackedPanels;
use crate::packing::PackingScheme;
use crate::point_rows::{PointRows, Precision, RowSelection};
use crate::scalar;
use crate::simd;
use crate::simd_level::SimdLevel;
use crate::upper_word_filter::UpperWordFilter;
use std::ops::Range;

/// Centroids prepared for comparison with many points.
pub struct Panels<'a> {
    precision: Precision,
    dims: usize,
    count: usize,
    work: PanelStorage<'a>,
}

enum PanelStorage<'a> {
    Plain(&'a [i16]),
    Packed(PackedPanels),
    Filtered(PackedPanels, Box<UpperWordFilter<'a>>),
}

impl<'a> Panels<'a> {
    /// Packs centroids, given as rows of `dims` coordinates on the grid of `precision`. There must
    /// be at least one.
    ///
    /// # Panics
    /// If there is no centroid, a row is incomplete, a coordinate of [`Precision::Byte`] is not
    /// within 0 to 32,640 (255 with 7 fraction bits), or this CPU does not support the level.
    pub fn new(level: SimdLevel, precision: Precision, centroids: &'a [i16], dims: usize) -> Self {
        let width = dims * precision.words();
        let count = centroids.len() / width;
        assert!(count > 0 && centroids.len() == count * width, "{} words, {width} a row", centroids.len());
        let in_range = |c: &i16| precision != Precision::Byte || (0..=32_640).contains(c);
        assert!(centroids.iter().all(in_range), "a centroid of bytes exceeds 255");
        let work = match simd::kernel(level) {
            None => PanelStorage::Plain(centroids),
            Some(kernel) => {
                let scheme = PackingScheme::new(kernel.form, precision);
                let packed = PackedPanels::new(kernel, scheme, centroids.chunks_exact(width), dims);
                match precision {
                    Precision::Byte | Precision::Wide => PanelStorage::Packed(packed),
                    Precision::Fine => {
                        let filter = UpperWordFilter::new(level, kernel, centroids, dims);
                        PanelStorage::Filtered(packed, Box::new(filter))
                    }
                }
            }
        };
        Self { precision, dims, count, work }
    }

    /// Returns the number of centroids.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no centroids, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Passes each selected row's index within the selection and its nearest centroid to `take`, in
    /// order.
    pub fn nearest(
        &self,
        rows: PointRows<'_>,
        picked: RowSelection<'_>,
        mut take: impl FnMut(usize, NearestCentroid),
    ) {
        self.check(rows);
        match &self.work {
            PanelStorage::Plain(centroids) => {
                (0..picked.len()).for_each(|i| take(i, scalar::nearest(rows, picked.row(i), centroids)));
            }
            PanelStorage::Packed(packed) => packed.nearest(rows, picked, take),
            PanelStorage::Filtered(packed, filter) => filter.nearest(packed, rows, picked, take),
        }
    }

    /// Writes the squared distances between the selected rows and the consecutive centroids `run`
    /// to `table`, row by row.
    ///
    /// # Panics
    /// If the run exceeds the centroids, or if the table does not have exactly one place per
    /// distance.
    pub fn all(&self, rows: PointRows<'_>, picked: RowSelection<'_>, run: Range<usize>, table: &mut [i64]) {
        self.check(rows);
        assert!(run.start < run.end && run.end <= self.count, "{run:?} of {} centroids", self.count);
        assert_eq!(table.len(), picked.len() * run.len(), "a place for every distance");
        match &self.work {
            PanelStorage::Plain(centroids) => {
                let centroids = &centroids[run.start * rows.width()..run.end * rows.width()];
                for (i, distances) in table.chunks_exact_mut(run.len()).enumerate() {
                    let row = picked.row(i);
                    for (distance, c) in distances.iter_mut().zip(centroids.chunks_exact(rows.width())) {
                        *distance = scalar::squared(rows, row, c);
                    }
                }
            }
            PanelStorage::Packed(packed) | PanelStorage::Filtered(packed, _) => {
                packed.all(rows, picked, &run, table)
            }
        }
    }

    fn check(&self, rows: PointRows<'_>) {
        assert!(
            rows.precision() == self.precision && rows.dims() == self.dims,
            "points are not on the centroids' grid"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Points of any precision and centroids: noise, or the extremes of their ranges.
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
                Precision::Byte => PointRows::bytes(&bytes, self.dims),
                Precision::Wide => PointRows::wide(&self.points, self.dims),
                Precision::Fine => PointRows::fine(&self.points, self.dims),
            };
            let run = RowSelection::Run { first: 0, count: rows.len() };
            let expected: Vec<NearestCentroid> =
                (0..rows.len()).map(|i| scalar::nearest(rows, i, &self.centroids)).collect();
            let table: Vec<i64> = (0..rows.len())
                .flat_map(|i| self.centroids.chunks(rows.width()).map(move |c| scalar::squared(rows, i, c)))
                .collect();
            for level in SimdLevel::available() {
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
                panels.nearest(rows, RowSelection::List(&list), |i, nearest| {
                    assert_eq!(nearest, expected[list[i] as usize], "{level}, picked");
                });
            }
        }
    }

    fn case(precision: Precision) -> impl Strategy<Value = Case> {
        let ends = |(least, largest): (i64, i64)| prop_oneof![4 => least..=largest, 1 => Just(least), 1 => Just(largest)];
        let anywhere = (ends(precision.range()).boxed(), ends(precision.centroid_range()).boxed());
        // So near to each other that the upper words alone do not determine the nearest.
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
    fn ties_go_to_the_first_centroid_across_panels() {
        let mut centroids = vec![9; 200];
        (0..200).step_by(3).skip(1).for_each(|j| centroids[j] = if j % 2 == 0 { 3 } else { -3 });
        Case { precision: Precision::Wide, dims: 1, points: vec![0; 30], centroids }.check();
    }
}
