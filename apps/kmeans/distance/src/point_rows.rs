//! Points as rows of integers, borrowed from whoever holds them.

use std::ops::Range;

/// Most coordinates of a point of any precision: with more, a 32-bit sum of byte products could overflow (`pack`).
pub const MAX_DIMS: usize = 65_536;

/// The largest magnitude of a coordinate of [`Precision::Fine`], whose upper word then fits `i16`.
const FINEST: i64 = 32_767 * 256;

/// What a coordinate of a point is, and how much finer the centroids' grid is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Precision {
    /// 0 to 255; centroids from 0 to 32,640 stand for these with 7 bits behind the point.
    Byte,
    /// -32,767 to 32,767; centroids the same.
    Wide,
    /// -8,388,352 to 8,388,352, as fine as the mantissas of 32-bit floating-point numbers; centroids the same.
    ///
    /// A coordinate is two `i16`: an upper word, which counts 256, and a lower one from -128 to 127. A row has all upper words
    /// first, then all lower ones.
    Fine,
}

impl Precision {
    /// Bits that a centroid's coordinate has behind the point.
    pub fn fraction(self) -> u32 {
        match self {
            Self::Byte => 7,
            Self::Wide | Self::Fine => 0,
        }
    }

    /// Words of 16 bits that a centroid's coordinate takes.
    pub fn words(self) -> usize {
        match self {
            Self::Byte | Self::Wide => 1,
            Self::Fine => 2,
        }
    }

    /// Most coordinates of a point: with more, a squared distance could overflow 62 bits.
    pub fn max_dims(self) -> usize {
        match self {
            Self::Byte | Self::Wide => MAX_DIMS,
            Self::Fine => MAX_DIMS / 4,
        }
    }

    /// The least and the largest coordinate of a point.
    pub fn range(self) -> (i64, i64) {
        match self {
            Self::Byte => (0, 255),
            Self::Wide => (-32_767, 32_767),
            Self::Fine => (-FINEST, FINEST),
        }
    }

    /// The least and the largest coordinate of a centroid.
    pub fn centroid_range(self) -> (i64, i64) {
        let (least, largest) = self.range();
        (least << self.fraction(), largest << self.fraction())
    }

    /// A row of words as coordinates.
    pub fn coordinates(self, words: &[i16]) -> impl Iterator<Item = i64> + use<'_> {
        let (upper, lower) = words.split_at(words.len() / self.words());
        let unit = if lower.is_empty() { 1 } else { 256 };
        let lower = lower.iter().copied().chain(std::iter::repeat(0));
        upper.iter().zip(lower).map(move |(&upper, lower)| unit * i64::from(upper) + i64::from(lower))
    }

    /// Coordinates, which must be within the range, as a row of words.
    pub fn to_words(self, coordinates: impl Iterator<Item = i64> + Clone) -> Vec<i16> {
        match self {
            Self::Byte | Self::Wide => coordinates.map(|x| x as i16).collect(),
            Self::Fine => {
                let upper = |x: i64| (x + 128) >> 8;
                let lower = coordinates.clone().map(|x| (x - (upper(x) << 8)) as i16);
                coordinates.clone().map(|x| upper(x) as i16).chain(lower).collect()
            }
        }
    }
}

/// Points, row by row.
#[derive(Clone, Copy, Debug)]
pub struct PointRows<'a> {
    pub(crate) values: RowValues<'a>,
    dims: usize,
    /// Numbers from one row to the next.
    stride: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RowValues<'a> {
    Byte(&'a [u8]),
    Wide(&'a [i16]),
    Fine(&'a [i16]),
}

impl<'a> PointRows<'a> {
    /// Points of `dims` bytes each.
    ///
    /// # Panics
    /// If the dimensions are not 1 to [`Precision::max_dims`], or the last row is not whole; so do [`PointRows::wide`] and
    /// [`PointRows::fine`].
    pub fn bytes(values: &'a [u8], dims: usize) -> Self {
        Self::checked(values.len(), Self { values: RowValues::Byte(values), dims, stride: dims })
    }

    /// Points of `dims` 16-bit integers each.
    pub fn wide(values: &'a [i16], dims: usize) -> Self {
        Self::checked(values.len(), Self { values: RowValues::Wide(values), dims, stride: dims })
    }

    /// Points of `dims` coordinates each, as [`Precision::Fine`] has them: twice as many words.
    pub fn fine(values: &'a [i16], dims: usize) -> Self {
        Self::checked(values.len(), Self { values: RowValues::Fine(values), dims, stride: 2 * dims })
    }

    fn checked(values: usize, rows: Self) -> Self {
        let (stride, most) = (rows.stride, rows.precision().max_dims());
        assert!((1..=most).contains(&rows.dims), "points have 1 to {most} coordinates, not {}", rows.dims);
        assert!(values.is_multiple_of(stride), "{values} numbers are no whole rows of {stride}");
        rows
    }

    /// The upper words of [`Precision::Fine`], as points of [`Precision::Wide`].
    pub(crate) fn upper(self) -> Self {
        match self.values {
            RowValues::Fine(values) => Self { values: RowValues::Wide(values), ..self },
            RowValues::Byte(_) | RowValues::Wide(_) => self,
        }
    }

    /// Numbers of a row.
    pub(crate) fn width(&self) -> usize {
        self.dims * self.precision().words()
    }

    /// What the coordinates are.
    pub fn precision(&self) -> Precision {
        match self.values {
            RowValues::Byte(_) => Precision::Byte,
            RowValues::Wide(_) => Precision::Wide,
            RowValues::Fine(_) => Precision::Fine,
        }
    }

    /// Coordinates of a point.
    pub fn dims(&self) -> usize {
        self.dims
    }

    /// How many points there are.
    pub fn len(&self) -> usize {
        match self.values {
            RowValues::Byte(values) => values.len() / self.stride,
            RowValues::Wide(values) | RowValues::Fine(values) => values.len() / self.stride,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `i`th row as numbers.
    pub fn row(&self, i: usize) -> impl Iterator<Item = i64> + use<'a> {
        let (bytes, words) = match self.values {
            RowValues::Byte(values) => (&values[self.at(i)], &[][..]),
            RowValues::Wide(values) | RowValues::Fine(values) => (&[][..], &values[self.at(i)]),
        };
        bytes.iter().map(|&x| i64::from(x)).chain(self.precision().coordinates(words))
    }

    /// Where the numbers of the `i`th row are.
    pub(crate) fn at(&self, i: usize) -> Range<usize> {
        i * self.stride..i * self.stride + self.width()
    }

    /// The `i`th point's length squared.
    pub fn norm(&self, i: usize) -> i64 {
        let at = self.at(i);
        match self.values {
            // 256 squares of bytes fit 24 bits.
            RowValues::Byte(values) => {
                let block = |b: &[u8]| b.iter().map(|&x| u32::from(x) * u32::from(x)).sum::<u32>();
                values[at].chunks(256).map(|b| i64::from(block(b))).sum()
            }
            RowValues::Wide(values) => {
                values[at].iter().map(|&x| i64::from(i32::from(x) * i32::from(x))).sum()
            }
            RowValues::Fine(values) => Precision::Fine.coordinates(&values[at]).map(|x| x * x).sum(),
        }
    }
}

/// Which rows are meant.
#[derive(Clone, Copy, Debug)]
pub enum RowSelection<'a> {
    /// A run of them.
    Run {
        /// The first.
        first: usize,
        /// How many.
        count: usize,
    },
    /// These, in this order.
    List(&'a [u32]),
}

impl RowSelection<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Run { count, .. } => *count,
            Self::List(list) => list.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row that the `i`th is.
    pub fn row(&self, i: usize) -> usize {
        match self {
            Self::Run { first, .. } => first + i,
            Self::List(list) => list[i] as usize,
        }
    }
}
