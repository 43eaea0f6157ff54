//! Points and centroids as integers on a grid, so that every sum of them is exact.
//!
//! The result of a clustering must not depend on the number of ranks and threads, so nothing may
//! depend on the order of additions. Integers ensure that: as in Zhang and Qiu's image clustering,
//! coordinates are small integers and their sums are exact. A coordinate `v` of dimension `d` is
//! stored as the integer `x = round((v - origin[d]) / step)`:
//!
//! - [`Precision::Byte`]: 0 to 255, for HOG vectors (step 1/255) and for data that consists of
//!   bytes (step 1).
//! - [`Precision::Wide`]: -32767 to 32767, for other numbers. The dimension with the largest range
//!   fills the grid, and each dimension is centered on its own middle, so a coordinate is off by at
//!   most range / 131,068.
//! - [`Precision::Fine`]: the same with 256 times as many steps, as fine as the mantissas of 32-bit
//!   floating-point numbers. A coordinate is off by at most range / 33,553,408.
//!
//! A centroid is stored on the same grid with [`Precision::fraction`] additional bits, rounded to
//! nearest, in [`Precision::words`] words of 16 bits per coordinate. Only this rounding loses
//! information: distances, sums, inertia and choices are exact.

pub use cool_distance::{MAX_DIMS, Precision};
use cool_distance::{PointRows, scalar};
use std::ops::Range;

/// How numbers other than bytes are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Reals {
    /// In 16 bits: 65,535 steps over their range.
    #[default]
    Short,
    /// In 32 bits: as fine as the mantissas of 32-bit floating-point numbers, 2^24 steps over their
    /// range.
    Float,
}

impl Reals {
    fn precision(self) -> Precision {
        match self {
            Self::Short => Precision::Wide,
            Self::Float => Precision::Fine,
        }
    }

    /// Returns the maximum number of coordinates of such points.
    pub fn max_dims(self) -> usize {
        self.precision().max_dims()
    }
}

/// How distance is defined.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum,
)]
pub enum Metric {
    /// The length of the line between two points.
    #[default]
    Euclidean,
    /// The distance of directions: points and centroids are scaled to length 1 (spherical K-means;
    /// Dhillon and Modha, Machine Learning 2001). A point of zeros stays unchanged, at the same
    /// distance from all centroids.
    Cosine,
}

/// The mapping between integers and real numbers.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Grid {
    /// The metric on the grid. With [`Metric::Cosine`], points and centroids have length 1.
    pub metric: Metric,
    /// The precision of the grid.
    pub precision: Precision,
    /// The real number at integer 0, by dimension.
    pub origin: Vec<f64>,
    /// The distance between neighboring integers, in all dimensions.
    pub step: f64,
}

impl Grid {
    /// Returns the grid of vectors of bytes, in which the byte `x` represents the number `step *
    /// x`.
    pub fn bytes(dims: usize, step: f64) -> Self {
        Self { metric: Metric::Euclidean, precision: Precision::Byte, origin: vec![0.0; dims], step }
    }

    /// Returns the finest grid that contains coordinates between `low` and `high`, which must be
    /// finite and at most 1e300.
    pub fn spanning(reals: Reals, low: &[f64], high: &[f64]) -> Self {
        let precision = reals.precision();
        let range = low.iter().zip(high).map(|(l, h)| h - l).fold(0.0, f64::max);
        let step = range / (2 * precision.range().1) as f64;
        // Equal points also need a step, and so do points that are so near to each other that the
        // division underflows.
        let step = if step > 0.0 { step } else { 1.0 };
        let origin = low.iter().zip(high).map(|(l, h)| l + (h - l) / 2.0).collect();
        Self { metric: Metric::Euclidean, precision, origin, step }
    }

    /// Returns the grid of vectors of length 1.
    pub fn directions(reals: Reals, dims: usize) -> Self {
        let precision = reals.precision();
        let step = 1.0 / precision.range().1 as f64;
        Self { metric: Metric::Cosine, precision, origin: vec![0.0; dims], step }
    }

    /// Returns a row as the metric requires it: scaled to length 1 if the metric is cosine.
    fn scaled(&self, row: &[f64]) -> Vec<f64> {
        match self.metric {
            Metric::Euclidean => row.to_vec(),
            Metric::Cosine => direction(row),
        }
    }

    /// Rounds rows of real numbers to the grid, and appends them to `points`.
    pub fn quantize(&self, rows: &[f64], points: &mut Points) {
        let (least, most) = self.bounds();
        let place = |(v, o): (&f64, &f64)| ((v - o) / self.step).round().clamp(least, most);
        for row in rows.chunks(self.origin.len()) {
            let row = self.scaled(row);
            let quantized = row.iter().zip(&self.origin).map(place);
            match &mut points.values {
                PointValues::Byte(values) => values.extend(quantized.map(|x| x as u8)),
                PointValues::Wide(values) => values.extend(quantized.map(|x| x as i16)),
                PointValues::Fine(values) => {
                    values.extend(self.precision.to_words(quantized.map(|x| x as i64)))
                }
            }
        }
    }

    /// Returns the smallest and the largest coordinate of a point.
    fn bounds(&self) -> (f64, f64) {
        let (least, most) = self.precision.range();
        (least as f64, most as f64)
    }

    /// Returns whether a row of real numbers is within the grid, so that its distances on the grid
    /// are correct.
    pub fn contains(&self, row: &[f64]) -> bool {
        let (least, most) = self.bounds();
        row.iter().zip(&self.origin).all(|(v, o)| (least..=most).contains(&((v - o) / self.step).round()))
    }

    /// Returns the grid's centroids that are nearest to real ones.
    pub fn centroids(&self, real: &[f64]) -> Centroids {
        let unit = self.step / f64::from(1 << self.precision.fraction());
        let (least, most) = self.precision.centroid_range();
        let place = |(v, o): (&f64, &f64)| ((v - o) / unit).round().clamp(least as f64, most as f64) as i64;
        let dims = self.origin.len();
        let quantized = |row| self.precision.to_words(self.scaled(row).iter().zip(&self.origin).map(place));
        let values = real.chunks(dims).flat_map(quantized).collect();
        Centroids { precision: self.precision, dims, values }
    }

    /// Returns points of bytes as points of this grid.
    pub(crate) fn quantize_bytes(&self, bytes: &Points) -> Points {
        let mut points = self.empty_points();
        points.reserve(bytes.len());
        for i in 0..bytes.len() {
            let row: Vec<f64> = bytes.rows().row(i).map(|x| x as f64).collect();
            self.quantize(&row, &mut points);
        }
        points
    }

    /// Returns an empty list of points.
    pub fn empty_points(&self) -> Points {
        Points::new(self.precision, self.origin.len(), Vec::new())
    }

    /// Returns the real coordinates of centroids.
    pub fn real(&self, centroids: &Centroids) -> Vec<f64> {
        let unit = self.step / f64::from(1 << self.precision.fraction());
        let row = |row: &[i16]| -> Vec<f64> {
            let coordinates = self.precision.coordinates(row);
            coordinates.zip(&self.origin).map(|(c, o)| o + unit * c as f64).collect()
        };
        centroids.rows().flat_map(row).collect()
    }

    /// Converts a sum of squared distances on the grid to real units.
    pub fn real_squared(&self, squared: u128) -> f64 {
        let unit = self.step / f64::from(1 << self.precision.fraction());
        squared as f64 * unit * unit
    }
}

/// Returns a vector scaled to length 1; a vector of zeros is returned unchanged.
fn direction(row: &[f64]) -> Vec<f64> {
    // Divides by the largest number first, so that no square overflows or vanishes.
    let largest = row.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
    if largest == 0.0 {
        return row.to_vec();
    }
    let length = row.iter().map(|v| (v / largest) * (v / largest)).sum::<f64>().sqrt();
    row.iter().map(|v| v / largest / length).collect()
}

/// Points on a grid, row by row, in as few bytes as their precision allows.
#[derive(Clone, Debug, PartialEq)]
pub struct Points {
    /// Coordinates per point.
    pub dims: usize,
    /// All coordinates, `dims` per point, in the form of the precision.
    pub values: PointValues,
    /// How often each point counts, or `None` if each counts once.
    pub weights: Option<Vec<u16>>,
}

/// Coordinates of points.
#[derive(Clone, Debug, PartialEq)]
pub enum PointValues {
    /// For [`Precision::Byte`].
    Byte(Vec<u8>),
    /// For [`Precision::Wide`].
    Wide(Vec<i16>),
    /// For [`Precision::Fine`], with two words per coordinate.
    Fine(Vec<i16>),
}

impl Points {
    /// Creates points from coordinates in the range and form of the precision.
    pub fn new(precision: Precision, dims: usize, values: Vec<i16>) -> Self {
        let values = match precision {
            Precision::Byte => PointValues::Byte(values.into_iter().map(|x| x as u8).collect()),
            Precision::Wide => PointValues::Wide(values),
            Precision::Fine => PointValues::Fine(values),
        };
        Self { dims, values, weights: None }
    }

    /// Creates points of bytes.
    pub fn bytes(dims: usize, values: Vec<u8>) -> Self {
        Self { dims, values: PointValues::Byte(values), weights: None }
    }

    /// Returns how often a point counts.
    pub fn weight(&self, i: usize) -> i64 {
        self.weights.as_ref().map_or(1, |weights| weights[i].into())
    }

    /// Returns the precision of the points' grid.
    pub fn precision(&self) -> Precision {
        self.rows().precision()
    }

    /// Returns the points as rows for distance measurements.
    pub fn rows(&self) -> PointRows<'_> {
        match &self.values {
            PointValues::Byte(values) => PointRows::bytes(values, self.dims),
            PointValues::Wide(values) => PointRows::wide(values, self.dims),
            PointValues::Fine(values) => PointRows::fine(values, self.dims),
        }
    }

    /// Returns the number of points.
    pub fn len(&self) -> usize {
        self.rows().len()
    }

    /// Returns whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.rows().is_empty()
    }

    /// Reserves memory for `points` further points.
    pub fn reserve(&mut self, points: usize) {
        let numbers = points * self.width();
        match &mut self.values {
            PointValues::Byte(values) => values.reserve_exact(numbers),
            PointValues::Wide(values) | PointValues::Fine(values) => values.reserve_exact(numbers),
        }
    }

    /// Returns how many numbers represent a point.
    pub fn width(&self) -> usize {
        self.dims * self.precision().words()
    }

    /// Returns the numbers of a point as words.
    pub(crate) fn words(&self, i: usize) -> Vec<i16> {
        let at = i * self.width()..(i + 1) * self.width();
        match &self.values {
            PointValues::Byte(values) => values[at].iter().map(|&x| x.into()).collect(),
            PointValues::Wide(values) | PointValues::Fine(values) => values[at].to_vec(),
        }
    }

    /// Returns a centroid at the position of a point, as words on the centroids' grid.
    pub fn centroid_at(&self, i: usize) -> Vec<i16> {
        let fraction = self.precision().fraction();
        self.words(i).into_iter().map(|x| x << fraction).collect()
    }

    /// Returns the squared distance between a point and a centroid, in squared units of the
    /// centroids' grid.
    pub fn squared(&self, i: usize, centroid: &[i16]) -> i64 {
        scalar::squared(self.rows(), i, centroid)
    }

    /// Appends a run of other points, which must be on the same grid.
    pub fn append(&mut self, other: &Points, run: Range<usize>) {
        if let Some(weights) = &other.weights {
            self.weights.get_or_insert_default().extend_from_slice(&weights[run.clone()]);
        }
        let run = run.start * self.width()..run.end * self.width();
        match (&mut self.values, &other.values) {
            (PointValues::Byte(values), PointValues::Byte(more)) => values.extend_from_slice(&more[run]),
            (PointValues::Wide(values), PointValues::Wide(more))
            | (PointValues::Fine(values), PointValues::Fine(more)) => {
                values.extend_from_slice(&more[run]);
            }
            _ => unreachable!("points of one grid have one precision"),
        }
    }
}

/// Centroids on a grid with [`Precision::fraction`] additional bits, row by row.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Centroids {
    /// Precision of the points' grid.
    pub precision: Precision,
    /// Coordinates per centroid.
    pub dims: usize,
    /// All coordinates, `dims` per centroid, in [`Precision::words`] words of 16 bits.
    pub values: Vec<i16>,
}

impl Centroids {
    /// Places centroids at the positions of points.
    pub fn at(points: &Points) -> Self {
        let values = (0..points.len()).flat_map(|i| points.centroid_at(i)).collect();
        Self { precision: points.precision(), dims: points.dims, values }
    }

    /// Returns the number of centroids.
    pub fn len(&self) -> usize {
        self.values.len() / self.width()
    }

    /// Returns the number of words of a centroid.
    pub fn width(&self) -> usize {
        self.dims * self.precision.words()
    }

    /// Returns whether there are no centroids.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the words of a centroid.
    pub fn row(&self, j: usize) -> &[i16] {
        &self.values[j * self.width()..(j + 1) * self.width()]
    }

    /// Returns the coordinates of a centroid.
    pub fn coordinates(&self, j: usize) -> impl Iterator<Item = i64> {
        self.precision.coordinates(self.row(j))
    }

    /// Returns the words of every centroid.
    pub fn rows(&self) -> impl Iterator<Item = &[i16]> {
        self.values.chunks_exact(self.width())
    }

    /// Moves each centroid to the mean of its points, given their sums and weights. A centroid
    /// without points keeps its position. Returns how many centroids moved.
    pub fn update(&mut self, metric: Metric, sums: &[i64], weights: &[i64]) -> usize {
        let mut moved = 0;
        for (j, (sums, weight)) in
            sums.chunks_exact(self.dims).zip(weights).enumerate().filter(|(_, s)| *s.1 > 0)
        {
            let mean = self.mean(j, metric, sums, *weight);
            moved += usize::from(self.put(j, &mean) > 0);
        }
        moved
    }

    /// Returns the new position of a centroid: the mean of its points, rounded to nearest (halves
    /// up), or, with [`Metric::Cosine`], their common direction. If the points have no common
    /// direction, the centroid keeps its position.
    pub fn mean(&self, j: usize, metric: Metric, sums: &[i64], weight: i64) -> Vec<i16> {
        let fraction = self.precision.fraction();
        let mean = |&sum: &i64| (2 * (sum << fraction) + weight).div_euclid(2 * weight);
        match metric {
            Metric::Euclidean => self.precision.to_words(sums.iter().map(mean)),
            Metric::Cosine if sums.iter().all(|sum| *sum == 0) => self.row(j).to_vec(),
            Metric::Cosine => {
                let sums: Vec<f64> = sums.iter().map(|sum| *sum as f64).collect();
                let length = self.precision.range().1 as f64;
                self.precision.to_words(direction(&sums).iter().map(|x| (x * length).round() as i64))
            }
        }
    }

    /// Returns a message that moves a centroid to the mean of its points ([`Centroids::displace`]),
    /// or `None` if the centroid is already there. The numbers of the message are as small as
    /// possible. If the points' weight is less than the number of centroid steps per step of the
    /// points' grid, their mean is one of few numbers. The message then contains the weight, and by
    /// how much each sum exceeds that of as many points at the centroid's position. Otherwise, it
    /// contains 0, and how far each coordinate moves.
    pub(crate) fn displacement(
        &self,
        j: usize,
        metric: Metric,
        sums: &[i64],
        weight: i64,
    ) -> Option<Vec<i32>> {
        let mean = self.mean(j, metric, sums, weight);
        if self.row(j) == mean {
            return None;
        }
        let displacement: Vec<i32> = if self.has_few_means(weight) {
            self.sums_here(j, weight).zip(sums).map(|(here, sum)| (sum - here) as i32).collect()
        } else {
            let to = self.precision.coordinates(&mean);
            to.zip(self.coordinates(j)).map(|(to, from)| (to - from) as i32).collect()
        };
        let weight = if self.has_few_means(weight) { weight as i32 } else { 0 };
        Some([vec![weight], displacement].concat())
    }

    /// Moves a centroid by a message of [`Centroids::displacement`]. Returns the squared distance
    /// that it moved.
    pub(crate) fn displace(&mut self, j: usize, metric: Metric, displacement: &[i32]) -> u64 {
        let (weight, displacement) = (i64::from(displacement[0]), &displacement[1..]);
        let to: Vec<i16> = if weight > 0 {
            let sums: Vec<i64> =
                self.sums_here(j, weight).zip(displacement).map(|(here, by)| here + i64::from(*by)).collect();
            self.mean(j, metric, &sums, weight)
        } else {
            let to: Vec<i64> =
                self.coordinates(j).zip(displacement).map(|(from, by)| from + i64::from(*by)).collect();
            self.precision.to_words(to.into_iter())
        };
        self.put(j, &to)
    }

    /// Places centroid `to` next to centroid `from`, which moves in the opposite direction: by
    /// 1/1024 of each coordinate, and by at least one step (FAISS, `Clustering.cpp`). Returns the
    /// sum of both squared movements.
    pub(crate) fn split(&mut self, from: usize, to: usize, metric: Metric) -> u64 {
        let (least, most) = self.precision.centroid_range();
        let parts = [(to, 1), (from, -1)].map(|(j, sign)| {
            let apart = |(d, c): (usize, i64)| {
                let by = (c.abs() / 1024).max(1) * if d % 2 == 0 { sign } else { -sign };
                (c + by).clamp(least, most)
            };
            (j, self.coordinates(from).enumerate().map(apart).collect::<Vec<i64>>())
        });
        let mut far = 0;
        for (j, row) in parts {
            let row = match metric {
                Metric::Euclidean => self.precision.to_words(row.into_iter()),
                Metric::Cosine => self.mean(j, metric, &row, 1),
            };
            far += self.put(j, &row);
        }
        far
    }

    /// Moves a centroid to a position. Returns the squared distance that it moved.
    pub(crate) fn put(&mut self, j: usize, to: &[i16]) -> u64 {
        let pairs = self.coordinates(j).zip(self.precision.coordinates(to));
        let far = pairs.map(|(from, to)| from.abs_diff(to).pow(2)).sum();
        let width = self.width();
        self.values[j * width..][..width].copy_from_slice(to);
        far
    }

    fn has_few_means(&self, weight: i64) -> bool {
        weight < 1 << self.precision.fraction()
    }

    /// Returns the sums of points of the given weight at a centroid's position, rounded down.
    fn sums_here(&self, j: usize, weight: i64) -> impl Iterator<Item = i64> {
        let fraction = self.precision.fraction();
        self.coordinates(j).map(move |c| (c * weight) >> fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_coordinate_is_off_by_at_most_half_a_step(
            values in prop::collection::vec(-1e6f64..1e6, 1..60),
            reals in prop_oneof![Just(Reals::Short), Just(Reals::Float)],
        ) {
            let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
            let grid = Grid::spanning(reals, &[low], &[high]);
            let mut points = grid.empty_points();
            grid.quantize(&values, &mut points);
            let back = grid.real(&Centroids::at(&points));
            for (v, b) in values.iter().zip(back) {
                prop_assert!((v - b).abs() <= grid.step * 0.500_001, "{} became {}", v, b);
            }
        }

        #[test]
        fn a_centroid_is_the_rounded_mean_of_its_points(points in prop::collection::vec(0i64..=255, 1..50)) {
            let sum: i64 = points.iter().sum();
            let count = points.len() as i64;
            let mut centroid = Centroids { precision: Precision::Byte, dims: 1, values: vec![0] };
            centroid.update(Metric::Euclidean, &[sum], &[count]);
            let off = f64::from(centroid.values[0]) / 128.0 - sum as f64 / count as f64;
            prop_assert!(off.abs() <= 0.5 / 128.0 + 1e-12);
        }

        #[test]
        fn a_displacement_leads_to_the_mean(
            (from, points) in (1usize..9).prop_flat_map(|dims| {
                let points = prop::collection::vec(prop::collection::vec(0i64..=255, dims), 1..300);
                (prop::collection::vec(0..=32_640i64, dims), points)
            }),
            (metric, precision) in prop_oneof![
                Just((Metric::Euclidean, Precision::Byte)),
                Just((Metric::Cosine, Precision::Wide)),
                Just((Metric::Euclidean, Precision::Fine)),
                Just((Metric::Cosine, Precision::Fine)),
            ],
        ) {
            let dims = from.len();
            let sums: Vec<i64> = (0..dims).map(|d| points.iter().map(|point| point[d]).sum()).collect();
            let values = precision.to_words(from.into_iter());
            let mut centroid = Centroids { precision, dims, values };
            let mean = centroid.mean(0, metric, &sums, points.len() as i64);
            if let Some(displacement) = centroid.displacement(0, metric, &sums, points.len() as i64) {
                prop_assert!(centroid.displace(0, metric, &displacement) > 0);
            }
            prop_assert_eq!(centroid.values, mean);
        }

        #[test]
        fn directions_have_length_1(
            row in prop::collection::vec(-1e150f64..1e150, 1..60),
            reals in prop_oneof![Just(Reals::Short), Just(Reals::Float)],
        ) {
            let grid = Grid::directions(reals, row.len());
            let mut points = grid.empty_points();
            grid.quantize(&row, &mut points);
            let length = (points.rows().norm(0) as f64).sqrt() * grid.step;
            prop_assert!((length - 1.0).abs() < 1e-3, "{}", length);
            let real = grid.real(&grid.centroids(&row));
            let dot: f64 = direction(&row).iter().zip(real).map(|(a, b)| a * b).sum();
            prop_assert!((dot - 1.0).abs() < 1e-3, "{}", dot);
        }
    }

    #[test]
    fn halves_are_rounded_up() {
        let centroids = Centroids { precision: Precision::Wide, dims: 2, values: vec![5, 7, 0, 1] };
        let mean = centroids.mean(1, Metric::Euclidean, &[-30, 30], 4);
        assert_eq!(mean, [-7, 8], "-7.5 rounds up, as 7.5 does");
    }

    #[test]
    fn centroids_are_restored_from_real_numbers() {
        for (precision, values) in [
            (Precision::Byte, vec![0, 32_640, 7, 129]),
            (Precision::Wide, vec![-32_767, 32_767, 0, 3]),
            (Precision::Fine, vec![-32_767, 32_767, 127, -128, 0, 32_766, 0, 1]),
        ] {
            let grid = Grid { metric: Metric::Euclidean, precision, origin: vec![0.5, -7.0], step: 0.25 };
            let centroids = Centroids { precision, dims: 2, values };
            assert_eq!(grid.centroids(&grid.real(&centroids)), centroids);
        }
    }

    #[test]
    fn equal_points_have_a_grid_too() {
        let grid = Grid::spanning(Reals::Short, &[3.0], &[3.0]);
        let mut points = grid.empty_points();
        grid.quantize(&[3.0], &mut points);
        assert_eq!(points.values, PointValues::Wide(vec![0]));
    }

    #[test]
    fn runs_of_points_are_put_together() {
        let all = Points::new(Precision::Byte, 2, vec![0, 255, 7, 8, 9, 10]);
        let mut some = Grid::bytes(2, 1.0).empty_points();
        some.append(&all, 1..3);
        some.append(&all, 0..1);
        assert_eq!(some.values, PointValues::Byte(vec![7, 8, 9, 10, 0, 255]));
    }
}
