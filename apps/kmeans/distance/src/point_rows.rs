//! Points as rows of integers, borrowed from their owner.

use std::ops::Range;

/// Maximum number of coordinates of a point at any precision. With more, a 32-bit sum of byte
/// products could overflow (see `packing`).
pub const MAX_DIMS: usize = 65_536;

/// Largest magnitude of a coordinate of [`Precision::Fine`]; its upper word then fits `i16`.
const FINEST: i64 = 32_767 * 256;

/// The range of a point's coordinates, and how much finer the centroids' grid is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Precision {
    /// 0 to 255. Centroids range from 0 to 32,640, because they have 7 fraction bits.
    Byte,
    /// -32,767 to 32,767, for centroids too.
    Wide,
    /// -8,388,352 to 8,388,352, for centroids too: as fine as the mantissas of 32-bit
    /// floating-point numbers.
    ///
    /// A coordinate consists of two `i16`: an upper word, in units of 256, and a lower word from
    /// -128 to 127. A row contains all upper words first, then all lower words.
    Fine,
}

impl Precision {
    /// Returns the number of fraction bits of a centroid's coordinate.
    pub fn fraction(self) -> u32 {
        match self {
            Self::Byte => 7,
            Self::Wide | Self::Fine => 0,
        }
    }

    /// Returns the number of 16-bit words of a centroid's coordinate.
    pub fn words(self) -> usize {
        match self {
            Self::Byte | Self::Wide => 1,
            Self::Fine => 2,
        }
    }

    /// Returns the maximum number of coordinates of a point. With more, a squared distance could
    /// overflow 62 bits.
    pub fn max_dims(self) -> usize {
        match self {
            Self::Byte | Self::Wide => MAX_DIMS,
            Self::Fine => MAX_DIMS / 4,
        }
    }

    /// Returns the smallest and the largest coordinate of a point.
    pub fn range(self) -> (i64, i64) {
        match self {
            Self::Byte => (0, 255),
            Self::Wide => (-32_767, 32_767),
            Self::Fine => (-FINEST, FINEST),
        }
    }

    /// Returns the smallest and the largest coordinate of a centroid.
    pub fn centroid_range(self) -> (i64, i64) {
        let (least, largest) = self.range();
        (least << self.fraction(), largest << self.fraction())
    }

    /// Returns the coordinates of a row of words.
    pub fn coordinates(self, words: &[i16]) -> impl Iterator<Item = i64> + use<'_> {
        let (upper, lower) = words.split_at(words.len() / self.words());
        let unit = if lower.is_empty() { 1 } else { 256 };
        let lower = lower.iter().copied().chain(std::iter::repeat(0));
        upper.iter().zip(lower).map(move |(&upper, lower)| unit * i64::from(upper) + i64::from(lower))
    }

    /// Returns coordinates as a row of words. They must be within the range.
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
    /// Numbers from the start of one row to the start of the next.
    stride: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RowValues<'a> {
    Byte(&'a [u8]),
    Wide(&'a [i16]),
    Fine(&'a [i16]),
}

impl<'a> PointRows<'a> {
    /// Returns points of `dims` bytes each.
    ///
    /// # Panics
    /// If `dims` is not within 1 to [`Precision::max_dims`], or if the last row is incomplete. The
    /// same holds for [`PointRows::wide`] and [`PointRows::fine`].
    pub fn bytes(values: &'a [u8], dims: usize) -> Self {
        Self::checked(values.len(), Self { values: RowValues::Byte(values), dims, stride: dims })
    }

    /// Returns points of `dims` 16-bit integers each.
    pub fn wide(values: &'a [i16], dims: usize) -> Self {
        Self::checked(values.len(), Self { values: RowValues::Wide(values), dims, stride: dims })
    }

    /// Returns points of `dims` coordinates each in the form of [`Precision::Fine`], with two words
    /// per coordinate.
    pub fn fine(values: &'a [i16], dims: usize) -> Self {
        Self::checked(values.len(), Self { values: RowValues::Fine(values), dims, stride: 2 * dims })
    }

    fn checked(values: usize, rows: Self) -> Self {
        let (stride, most) = (rows.stride, rows.precision().max_dims());
        assert!((1..=most).contains(&rows.dims), "points have 1 to {most} coordinates, not {}", rows.dims);
        assert!(values.is_multiple_of(stride), "{values} numbers are no whole rows of {stride}");
        rows
    }

    /// Returns the upper words of [`Precision::Fine`] as points of [`Precision::Wide`].
    pub(crate) fn upper(self) -> Self {
        match self.values {
            RowValues::Fine(values) => Self { values: RowValues::Wide(values), ..self },
            RowValues::Byte(_) | RowValues::Wide(_) => self,
        }
    }

    /// Returns how many numbers a row has.
    pub(crate) fn width(&self) -> usize {
        self.dims * self.precision().words()
    }

    /// Returns the precision of the coordinates.
    pub fn precision(&self) -> Precision {
        match self.values {
            RowValues::Byte(_) => Precision::Byte,
            RowValues::Wide(_) => Precision::Wide,
            RowValues::Fine(_) => Precision::Fine,
        }
    }

    /// Returns the number of coordinates of a point.
    pub fn dims(&self) -> usize {
        self.dims
    }

    /// Returns the number of points.
    pub fn len(&self) -> usize {
        match self.values {
            RowValues::Byte(values) => values.len() / self.stride,
            RowValues::Wide(values) | RowValues::Fine(values) => values.len() / self.stride,
        }
    }

    /// Returns whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the coordinates of the `i`th row.
    pub fn row(&self, i: usize) -> impl Iterator<Item = i64> + use<'a> {
        let (bytes, words) = match self.values {
            RowValues::Byte(values) => (&values[self.at(i)], &[][..]),
            RowValues::Wide(values) | RowValues::Fine(values) => (&[][..], &values[self.at(i)]),
        };
        bytes.iter().map(|&x| i64::from(x)).chain(self.precision().coordinates(words))
    }

    /// Returns the range of the `i`th row's numbers.
    pub(crate) fn at(&self, i: usize) -> Range<usize> {
        i * self.stride..i * self.stride + self.width()
    }

    /// Returns the squared length of the `i`th point.
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

/// A selection of rows.
#[derive(Clone, Copy, Debug)]
pub enum RowSelection<'a> {
    /// Consecutive rows.
    Run {
        /// The first row.
        first: usize,
        /// Number of rows.
        count: usize,
    },
    /// The listed rows, in this order.
    List(&'a [u32]),
}

impl RowSelection<'_> {
    /// Returns the number of selected rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Run { count, .. } => *count,
            Self::List(list) => list.len(),
        }
    }

    /// Returns whether no row is selected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the row that is the `i`th of the selection.
    pub fn row(&self, i: usize) -> usize {
        match self {
            Self::Run { first, .. } => first + i,
            Self::List(list) => list[i] as usize,
        }
    }
}
