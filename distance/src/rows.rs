//! Points as rows of integers, borrowed from whoever holds them.

/// Most coordinates of a point: with more, a 32-bit sum of byte products could overflow (`pack`).
pub const MAX_DIMS: usize = 65_536;

/// What a coordinate of a point is, and how much finer the centroids' grid is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Precision {
    /// 0 to 255; centroids from 0 to 32,640 stand for these with 7 bits behind the point.
    Byte,
    /// -32,767 to 32,767; centroids the same.
    Wide,
}

impl Precision {
    /// Bits that a centroid's coordinate has behind the point.
    pub fn fraction(self) -> u32 {
        match self {
            Self::Byte => 7,
            Self::Wide => 0,
        }
    }
}

/// Points, row by row.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub(crate) values: Values<'a>,
    dims: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Values<'a> {
    Byte(&'a [u8]),
    Wide(&'a [i16]),
}

impl<'a> Rows<'a> {
    /// Points of `dims` bytes each.
    ///
    /// # Panics
    /// If the dimensions are not 1 to [`MAX_DIMS`], or the last row is not whole; so does [`Rows::wide`].
    pub fn bytes(values: &'a [u8], dims: usize) -> Self {
        check(values.len(), dims);
        Self { values: Values::Byte(values), dims }
    }

    /// Points of `dims` 16-bit integers each.
    pub fn wide(values: &'a [i16], dims: usize) -> Self {
        check(values.len(), dims);
        Self { values: Values::Wide(values), dims }
    }

    /// What the coordinates are.
    pub fn precision(&self) -> Precision {
        match self.values {
            Values::Byte(_) => Precision::Byte,
            Values::Wide(_) => Precision::Wide,
        }
    }

    /// Coordinates of a point.
    pub fn dims(&self) -> usize {
        self.dims
    }

    /// How many points there are.
    pub fn len(&self) -> usize {
        match self.values {
            Values::Byte(values) => values.len() / self.dims,
            Values::Wide(values) => values.len() / self.dims,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `i`th row as numbers.
    pub fn row(&self, i: usize) -> impl Iterator<Item = i64> + use<'a> {
        let at = i * self.dims..(i + 1) * self.dims;
        let (bytes, wide) = match self.values {
            Values::Byte(values) => (&values[at], &[][..]),
            Values::Wide(values) => (&[][..], &values[at]),
        };
        bytes.iter().map(|&x| i64::from(x)).chain(wide.iter().map(|&x| i64::from(x)))
    }

    /// The `i`th point's length squared.
    pub fn norm(&self, i: usize) -> i64 {
        let at = i * self.dims..(i + 1) * self.dims;
        match self.values {
            // 256 squares of bytes fit 24 bits.
            Values::Byte(values) => {
                let block = |b: &[u8]| b.iter().map(|&x| u32::from(x) * u32::from(x)).sum::<u32>();
                values[at].chunks(256).map(|b| i64::from(block(b))).sum()
            }
            Values::Wide(values) => values[at].iter().map(|&x| i64::from(i32::from(x) * i32::from(x))).sum(),
        }
    }
}

fn check(values: usize, dims: usize) {
    assert!((1..=MAX_DIMS).contains(&dims), "points have 1 to {MAX_DIMS} coordinates, not {dims}");
    assert!(values.is_multiple_of(dims), "{values} numbers are no whole rows of {dims}");
}

/// Which rows are meant.
#[derive(Clone, Copy, Debug)]
pub enum Picked<'a> {
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

impl Picked<'_> {
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
