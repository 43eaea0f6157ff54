//! The vectorized inner loops, one set per level.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::nearest::NearestCentroid;
use crate::packing::WordFormat;
use crate::simd_level::SimdLevel;

/// How a level multiplies a tile of points with a panel of centroids.
pub(crate) struct Kernel {
    /// Format of its words.
    pub(crate) form: WordFormat,
    /// Points of a tile.
    pub(crate) rows: usize,
    /// Centroids of a panel.
    pub(crate) lanes: usize,
    /// A row's words are padded to a multiple of this number.
    pub(crate) steps: usize,
    /// Order of a tile's words. A panel's words are always ordered by step, then lane.
    pub(crate) order: TileOrder,
    /// Computes the dot products of all points of a tile with all centroids of a panel, row by row.
    pub(crate) product: fn(points: &[u32], centroids: &[u32], sums: &mut [i32]),
    /// Updates each row's nearest centroid where a score is lower. The first lane is centroid
    /// `first`. There may be fewer entries in `best` than rows.
    pub(crate) choose: fn(scores: &Scores<'_>, first: u32, best: &mut [NearestCentroid]),
    /// Does the same for the nearest two.
    pub(crate) choose_two: fn(scores: &Scores<'_>, first: u32, best: &mut [NearestTwo]),
    /// Writes the scores of as many rows as `places` can hold, row by row.
    pub(crate) write: fn(scores: &Scores<'_>, places: &mut [i64]),
}

/// A point's nearest centroid, and the distance of the second nearest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NearestTwo {
    pub(crate) nearest: NearestCentroid,
    /// Squared distance of the second nearest, in squared units of the centroids' grid; `i64::MAX`
    /// if there is no other centroid.
    pub(crate) next: i64,
}

/// The order of a tile's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileOrder {
    /// Row by row.
    ByRow,
    /// The first word of every row, then the second of every row, and so on.
    ByStep,
}

/// Returns the kernel of a level, or `None` for the scalar level, which has no kernel.
///
/// # Panics
/// If this CPU does not support the level. This check makes the kernels' functions safe to call,
/// because there is no other way to obtain them.
pub(crate) fn kernel(level: SimdLevel) -> Option<&'static Kernel> {
    assert!(level.is_available(), "this CPU does not support {level}");
    #[cfg(target_arch = "x86_64")]
    match level {
        SimdLevel::Scalar => None,
        SimdLevel::Sse2 => Some(&x86::SSE2),
        SimdLevel::Avx2 => Some(&x86::AVX2),
        SimdLevel::Avx512 => Some(&x86::AVX512),
        SimdLevel::Vnni => Some(&x86::VNNI),
        SimdLevel::Amx => Some(&amx::AMX),
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// How a level multiplies one point with one centroid.
pub(crate) struct DotProducts {
    /// For points of bytes.
    pub(crate) bytes: fn(point: &[u8], centroid: &[i16]) -> i64,
    /// For points of 16-bit integers.
    pub(crate) wide: fn(point: &[i16], centroid: &[i16]) -> i64,
    /// For points of [`Precision::Fine`](crate::Precision::Fine).
    pub(crate) fine: fn(point: &[i16], centroid: &[i16]) -> i64,
}

/// Returns the dot products of a level.
///
/// # Panics
/// If this CPU does not support the level.
pub(crate) fn dots(level: SimdLevel) -> &'static DotProducts {
    assert!(level.is_available(), "this CPU does not support {level}");
    static PLAIN: DotProducts = DotProducts { bytes: dot_bytes, wide: dot_wide, fine: dot_fine };
    #[cfg(target_arch = "x86_64")]
    match level {
        SimdLevel::Scalar | SimdLevel::Sse2 => &PLAIN,
        SimdLevel::Avx2 => &x86::AVX2_DOTS,
        SimdLevel::Avx512 | SimdLevel::Vnni | SimdLevel::Amx => &x86::AVX512_DOTS,
    }
    #[cfg(not(target_arch = "x86_64"))]
    &PLAIN
}

/// Number of products that fit a 32-bit sum: 256 * 255 * 32768 is just below 2^31.
const BLOCK: usize = 256;

/// Implements [`DotProducts::bytes`] in plain Rust, which compilers turn into `pmaddwd` of the
/// available width.
#[inline(always)]
fn dot_bytes(point: &[u8], centroid: &[i16]) -> i64 {
    let block = |(x, c): (&[u8], &[i16])| -> i32 {
        x.iter().zip(c).map(|(&x, &c)| i32::from(x) * i32::from(c)).sum()
    };
    point.chunks(BLOCK).zip(centroid.chunks(BLOCK)).map(|blocks| i64::from(block(blocks))).sum()
}

/// Implements [`DotProducts::wide`] in plain Rust, by high and low bytes.
#[inline(always)]
fn dot_wide(point: &[i16], centroid: &[i16]) -> i64 {
    let block = |(x, c): (&[i16], &[i16])| -> i64 {
        let high: i32 = x.iter().zip(c).map(|(&x, &c)| i32::from(x >> 8) * i32::from(c)).sum();
        let low: i32 = x.iter().zip(c).map(|(&x, &c)| i32::from(x & 255) * i32::from(c)).sum();
        (i64::from(high) << 8) + i64::from(low)
    };
    point.chunks(BLOCK).zip(centroid.chunks(BLOCK)).map(block).sum()
}

/// Implements [`DotProducts::fine`] in plain Rust, by four products of words.
#[inline(always)]
fn dot_fine(point: &[i16], centroid: &[i16]) -> i64 {
    let (upper, lower) = point.split_at(point.len() / 2);
    let (of_upper, of_lower) = centroid.split_at(centroid.len() / 2);
    let both = dot_wide(upper, of_lower) + dot_wide(lower, of_upper);
    (dot_wide(upper, of_upper) << 16) + (both << 8) + dot_wide(lower, of_lower)
}

/// The squared distances between a tile's points and a panel's centroids, without the points' own
/// offsets.
pub(crate) struct Scores<'a> {
    /// Offset of each centroid.
    pub(crate) offsets: &'a [i64],
    /// Layers of products to subtract, each row by row.
    pub(crate) layers: &'a [i32],
    /// For each layer, the exponent of its weight, which is a power of two.
    pub(crate) shifts: &'a [u32],
}

impl Scores<'_> {
    /// Passes the scores of each row to `take`. It must be inlined, so that each level compiles it
    /// with its own instructions. Scores fit 64 bits, but intermediate values may not, which is why
    /// the arithmetic wraps.
    #[inline(always)]
    fn for_each_row<const LANES: usize>(&self, rows: usize, mut take: impl FnMut(usize, &[i64; LANES])) {
        let Some(offsets) = self.offsets.first_chunk::<LANES>() else { return };
        let layers = self.layers.as_chunks::<LANES>().0;
        let layer_rows = layers.len() / self.shifts.len();
        for row in 0..rows.min(layer_rows) {
            let mut scores = *offsets;
            for (sums, shift) in layers[row..].iter().step_by(layer_rows).zip(self.shifts) {
                for (score, &sum) in scores.iter_mut().zip(sums) {
                    *score = score.wrapping_sub(i64::from(sum) << shift);
                }
            }
            take(row, &scores);
        }
    }

    /// Implements [`Kernel::choose`] for a panel of `LANES` lanes.
    #[inline(always)]
    fn choose<const LANES: usize>(&self, first: u32, best: &mut [NearestCentroid]) {
        self.for_each_row::<LANES>(best.len(), |row, scores| {
            let best = &mut best[row];
            // Most panels contain no nearer centroid, so the search for its place is skipped.
            if !scores.iter().fold(false, |below, &score| below | (score < best.squared)) {
                return;
            }
            for (index, &squared) in (first..).zip(scores) {
                if squared < best.squared {
                    *best = NearestCentroid { index, squared };
                }
            }
        });
    }

    /// Implements [`Kernel::choose_two`] for a panel of `LANES` lanes.
    #[inline(always)]
    fn choose_two<const LANES: usize>(&self, first: u32, best: &mut [NearestTwo]) {
        self.for_each_row::<LANES>(best.len(), |row, scores| {
            let NearestTwo { nearest, next } = &mut best[row];
            if !scores.iter().fold(false, |below, score| below | (score < next)) {
                return;
            }
            for (index, &squared) in (first..).zip(scores) {
                if squared < nearest.squared {
                    *next = nearest.squared;
                    *nearest = NearestCentroid { index, squared };
                } else if squared < *next {
                    *next = squared;
                }
            }
        });
    }

    /// Implements [`Kernel::write`] for a panel of `LANES` lanes.
    #[inline(always)]
    fn write<const LANES: usize>(&self, places: &mut [i64]) {
        let places = places.as_chunks_mut::<LANES>().0;
        self.for_each_row::<LANES>(places.len(), |row, scores| places[row] = *scores);
    }
}
