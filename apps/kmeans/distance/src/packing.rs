//! How coordinates become the 32-bit words that the CPU multiplies, and why their sums fit 32 bits.
//!
//! Instructions multiply pairs of `i16` (`pmaddwd`) or quads of an unsigned and a signed byte
//! (`vpdpbusd`, `tdpbusd`) and add up to `i32`. Wider coordinates are split into planes, as into
//! digits: `x = 256 high + low`. Both sides are shifted by a constant where they must become signed
//! or unsigned:
//!
//! `x = X + a` and `c = C + b`, so `x.c = X.C + b sum(x) + a sum(c) - a b d`, of which only `X.C`
//! takes time.
//!
//! | form, precision | X | planes of X | C | planes of C | largest product | coordinates to 2^31 |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | pairs, byte | x - 128 | itself | c - 16,384 | itself | 2^7 2^14 = 2^21 | 1,023 |
//! | pairs, wide | x | -128 to 128, -128 to 127 | c | itself | 2^7 2^15 = 2^22 | 511 |
//! | quads, byte | x | itself | c - 16,384 | -64 to 64, -128 to 127 | 255 * 128 | 65,793 |
//! | pairs, fine | x | as wide, and the lower word | c | itself: two words | 2^7 2^15 = 2^22 | 511 |
//! | quads, wide | x + 32,768 | 0 to 255, 0 to 255 | c - 128 | -128 to 127, -128 to 127 | 255 * 128 | 65,793 |
//! | quads, fine | x + 2^23 + 128 | 0 to 255, three times | c - 2^15 | -128 to 127, three times | 255 * 128 | 65,793 |

use crate::point_rows::{PointRows, Precision, RowValues};

/// The contents of a 32-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordFormat {
    /// Two `i16`.
    Pairs,
    /// Four bytes.
    Quads,
}

/// The product of one plane of points with one plane of centroids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaneProduct {
    pub(crate) point: usize,
    pub(crate) centroid: usize,
    /// The exponent of the product's weight, which is a power of two.
    pub(crate) shift: u32,
}

const fn term(point: usize, centroid: usize, shift: u32) -> PlaneProduct {
    PlaneProduct { point, centroid, shift }
}

/// One row of the table above.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackingScheme {
    form: WordFormat,
    precision: Precision,
    pub(crate) point_planes: usize,
    pub(crate) centroid_planes: usize,
    pub(crate) terms: &'static [PlaneProduct],
    /// Maximum number of words per row such that one 32-bit sum can hold their products.
    pub(crate) span: usize,
    /// The shifts `a` and `b` of the table above.
    shifts: (i64, i64),
}

impl PackingScheme {
    pub(crate) fn new(form: WordFormat, precision: Precision) -> Self {
        const WHOLE: [PlaneProduct; 1] = [term(0, 0, 0)];
        const POINTS_CUT: [PlaneProduct; 2] = [term(0, 0, 8), term(1, 0, 0)];
        const CENTROIDS_CUT: [PlaneProduct; 2] = [term(0, 0, 8), term(0, 1, 0)];
        const BOTH_CUT: [PlaneProduct; 4] = [term(0, 0, 16), term(0, 1, 8), term(1, 0, 8), term(1, 1, 0)];
        const PAIRS_FINE: [PlaneProduct; 6] =
            [term(0, 0, 24), term(1, 0, 16), term(2, 0, 8), term(0, 1, 16), term(1, 1, 8), term(2, 1, 0)];
        const QUADS_FINE: [PlaneProduct; 9] = {
            let mut terms = [term(0, 0, 32); 9];
            let mut at = 0;
            while at < 9 {
                terms[at] = term(at / 3, at % 3, 32 - 8 * (at / 3 + at % 3) as u32);
                at += 1;
            }
            terms
        };
        let (terms, span, shifts): (&[PlaneProduct], _, _) = match (form, precision) {
            (WordFormat::Pairs, Precision::Byte) => (&WHOLE, 511, (128, 16_384)),
            (WordFormat::Pairs, Precision::Wide) => (&POINTS_CUT, 255, (0, 0)),
            (WordFormat::Quads, Precision::Byte) => (&CENTROIDS_CUT, 16_384, (0, 16_384)),
            (WordFormat::Quads, Precision::Wide) => (&BOTH_CUT, 16_384, (-32_768, 128)),
            (WordFormat::Pairs, Precision::Fine) => (&PAIRS_FINE, 255, (0, 0)),
            (WordFormat::Quads, Precision::Fine) => (&QUADS_FINE, 16_384, (-(1 << 23) - 128, 1 << 15)),
        };
        let planes = |plane: fn(&PlaneProduct) -> usize| terms.iter().map(plane).max().unwrap_or(0) + 1;
        let (point_planes, centroid_planes) = (planes(|t| t.point), planes(|t| t.centroid));
        Self { form, precision, point_planes, centroid_planes, terms, span, shifts }
    }

    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// Returns the number of words of a row in one plane.
    pub(crate) fn words(&self, dims: usize) -> usize {
        match self.form {
            WordFormat::Pairs => dims.div_ceil(2),
            WordFormat::Quads => dims.div_ceil(4),
        }
    }

    /// Returns the term that all squared distances of a point have in common, with `f` fraction
    /// bits of centroids: `|x|^2 4^f - 2^(f+1) (b sum(x) - a b d)`.
    pub(crate) fn point_offset(&self, rows: PointRows<'_>, i: usize) -> i64 {
        let (a, b) = self.shifts;
        let fraction = self.precision.fraction();
        let rest = if b == 0 { 0 } else { b * (sum(rows, i) - a * rows.dims() as i64) };
        (rows.norm(i) << (2 * fraction)) - (rest << (fraction + 1))
    }

    /// Returns the part of a centroid's squared distances that does not depend on `X.C`: `|c|^2 -
    /// 2^(f+1) a sum(c)`.
    pub(crate) fn centroid_offset(&self, centroid: &[i16]) -> i64 {
        let norm: i64 = self.precision.coordinates(centroid).map(|c| c * c).sum();
        let sum: i64 = self.precision.coordinates(centroid).sum();
        norm - ((self.shifts.0 * sum) << (self.precision.fraction() + 1))
    }

    /// Writes one plane of a point. Words after its last coordinate keep their values.
    pub(crate) fn pack_point(&self, rows: PointRows<'_>, i: usize, plane: usize, words: &mut [u32]) {
        let row = match rows.values {
            RowValues::Byte(v) => return self.pack_bytes(&v[rows.at(i)], words),
            RowValues::Wide(v) | RowValues::Fine(v) => &v[rows.at(i)],
        };
        let (upper, lower) = row.split_at(rows.dims());
        let high = |x: i16| ((i32::from(x) + 128) >> 8) as i16;
        match (self.form, plane) {
            (WordFormat::Pairs, 0) => pairs(upper, words, high),
            (WordFormat::Pairs, 1) => {
                pairs(upper, words, |x| (i32::from(x) - (i32::from(high(x)) << 8)) as i16)
            }
            (WordFormat::Pairs, _) => pairs(lower, words, |x| x),
            (WordFormat::Quads, 0) => quads(upper, words, |x| ((x >> 8) + 128) as u8),
            (WordFormat::Quads, 1) => quads(upper, words, |x| (x & 255) as u8),
            (WordFormat::Quads, _) => quads(lower, words, |x| (x + 128) as u8),
        }
    }

    fn pack_bytes(&self, row: &[u8], words: &mut [u32]) {
        match self.form {
            WordFormat::Pairs => pairs(row, words, |x| i16::from(x) - 128),
            WordFormat::Quads => quads(row, words, |x| x),
        }
    }

    /// Writes one plane of a centroid. Words after its last coordinate keep their values.
    pub(crate) fn pack_centroid(&self, row: &[i16], plane: usize, words: &mut [u32]) {
        let shifted = |c: i16| i32::from(c) - 16_384;
        let high = |c: i16| (shifted(c) + 128) >> 8;
        let (upper, lower) = row.split_at(row.len() / self.precision.words());
        match (self.form, self.precision, plane) {
            (WordFormat::Pairs, Precision::Byte, _) => pairs(row, words, |c| shifted(c) as i16),
            (WordFormat::Quads, Precision::Byte, 0) => quads(row, words, |c| high(c) as u8),
            (WordFormat::Quads, Precision::Byte, _) => {
                quads(row, words, |c| (shifted(c) - (high(c) << 8)) as u8)
            }
            (WordFormat::Pairs, _, 0) => pairs(upper, words, |c| c),
            (WordFormat::Pairs, _, _) => pairs(lower, words, |c| c),
            (WordFormat::Quads, _, 0) => quads(upper, words, |c| (c >> 8) as u8),
            (WordFormat::Quads, _, 1) => quads(upper, words, |c| ((c & 255) - 128) as u8),
            (WordFormat::Quads, _, _) => quads(lower, words, |c| c as u8),
        }
    }
}

fn sum(rows: PointRows<'_>, i: usize) -> i64 {
    let at = rows.at(i);
    match rows.values {
        RowValues::Byte(v) => v[at].iter().map(|&x| u32::from(x)).sum::<u32>().into(),
        RowValues::Wide(v) => v[at].iter().map(|&x| i32::from(x)).sum::<i32>().into(),
        RowValues::Fine(v) => Precision::Fine.coordinates(&v[at]).sum(),
    }
}

fn pairs<T: Copy>(row: &[T], words: &mut [u32], digit: impl Fn(T) -> i16) {
    let digit = |x: T| u32::from(digit(x).cast_unsigned());
    let (whole, rest) = row.as_chunks::<2>();
    for (word, [x, y]) in words.iter_mut().zip(whole) {
        *word = digit(*x) | digit(*y) << 16;
    }
    if let [x] = rest {
        words[whole.len()] = digit(*x);
    }
}

fn quads<T: Copy>(row: &[T], words: &mut [u32], digit: impl Fn(T) -> u8) {
    let (whole, rest) = row.as_chunks::<4>();
    for (word, four) in words.iter_mut().zip(whole) {
        *word = u32::from_le_bytes(four.map(&digit));
    }
    if !rest.is_empty() {
        let mut last = [0; 4];
        last.iter_mut().zip(rest).for_each(|(byte, &x)| *byte = digit(x));
        words[whole.len()] = u32::from_le_bytes(last);
    }
}
