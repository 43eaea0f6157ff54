//! Rows of numbers, numbered from 0 and summed: for example vectors of centroids, ranks of pages,
//! or coordinates.
//!
//! Only rows to which numbers were added occupy memory. Only rows that contain a number other than
//! zero are sent; each integer takes as many bits as the widest of its row needs.

use super::Table;
use super::number::{Number, NumberWidth};
use crate::error::{Error, Malformed};
use crate::link_load::share;
use cool::{Comm, Element, Op};
use std::ops::Range;

/// The place of a row that has no memory.
const NONE: u32 = u32::MAX;

/// Rows `0..keys` of `width` numbers each. A row of zeros counts as absent. Each owner has a run of
/// rows; all runs have nearly equal lengths.
#[derive(Clone, Debug)]
pub struct Rows<N> {
    keys: u32,
    width: usize,
    /// For each row its place, which is its index among the rows in `values`, or [`NONE`]. The
    /// vector is empty if no row has a place.
    places: Vec<u32>,
    values: Vec<N>,
}

impl<N: Number> Rows<N> {
    /// Creates rows of zeros.
    ///
    /// # Panics
    /// If there are 2^32 - 1 rows or more, or rows have no numbers.
    pub fn new(keys: usize, width: usize) -> Self {
        assert!(keys < NONE as usize && width > 0, "{keys} rows of {width} numbers");
        Self { keys: keys as u32, width, places: Vec::new(), values: Vec::new() }
    }

    /// Creates rows of zeros, with memory for the given rows, which must ascend.
    ///
    /// # Panics
    /// As [`Rows::new`]; also if a row is not below `keys`.
    pub fn zeros(keys: usize, width: usize, rows: &[usize]) -> Self {
        let mut places = vec![NONE; if rows.is_empty() { 0 } else { keys }];
        (0u32..).zip(rows).for_each(|(place, row)| places[*row] = place);
        Self { places, values: vec![N::zeroed(); rows.len() * width], ..Self::new(keys, width) }
    }

    /// Returns the rows that have memory, in the order in which it was allocated.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = &mut [N]> {
        self.values.chunks_exact_mut(self.width)
    }

    /// Returns the number of possible rows.
    pub fn keys(&self) -> usize {
        self.keys as usize
    }

    /// Returns the number of numbers per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns a row for modification. A row without memory receives memory, filled with zeros.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [N] {
        if self.places.is_empty() {
            self.places.resize(self.keys(), NONE);
        }
        let place = match self.places[row] {
            NONE => {
                let place = self.values.len() / self.width;
                self.places[row] = place as u32;
                self.values.resize(self.values.len() + self.width, N::zeroed());
                place
            }
            place => place as usize,
        };
        &mut self.values[place * self.width..][..self.width]
    }

    /// Adds numbers to a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn add(&mut self, row: usize, numbers: &[N]) {
        for (sum, number) in self.row_mut(row).iter_mut().zip(numbers) {
            *sum = sum.plus(*number);
        }
    }

    /// Returns the rows that contain a number other than zero, in ascending order, each with its
    /// row number.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[N])> {
        self.within(0..self.keys())
    }

    fn within(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, &[N])> {
        let places = self.places.get(rows.clone()).unwrap_or_default();
        rows.zip(places).filter(|(_, place)| **place != NONE).filter_map(|(row, place)| {
            let numbers = &self.values[*place as usize * self.width..][..self.width];
            numbers.iter().any(|n| *n != N::zeroed()).then_some((row, numbers))
        })
    }

    /// Sums the rows of all ranks as numbers of type `M`, which must be wide enough for every sum.
    /// Returns the rows that this rank owns.
    fn reduce_scatter_as<M: Element>(
        self,
        comm: &Comm,
        to: fn(N) -> M,
        from: fn(M) -> N,
    ) -> Result<Self, Error> {
        let mut send = vec![M::zeroed(); self.keys() * self.width];
        for (row, numbers) in self.iter() {
            for (place, n) in send[row * self.width..].iter_mut().zip(numbers) {
                *place = to(*n);
            }
        }
        let owned = |rank| share(self.keys(), comm.size(), rank);
        let counts: Vec<usize> = (0..comm.size()).map(|rank| owned(rank).len() * self.width).collect();
        let mut sums = vec![M::zeroed(); counts[comm.rank()]];
        comm.reduce_scatter_counts(&send, &mut sums, &counts, Op::Sum)?;
        let mut mine = self.empty();
        for (row, numbers) in owned(comm.rank()).zip(sums.chunks_exact(self.width)) {
            if numbers.iter().any(|n| bytemuck::bytes_of(n).iter().any(|byte| *byte != 0)) {
                mine.row_mut(row).iter_mut().zip(numbers).for_each(|(n, sum)| *n = from(*sum));
            }
        }
        Ok(mine)
    }
}

impl<N: Number> Table for Rows<N> {
    const ANY_ORDER: bool = N::ANY_ORDER;

    fn empty(&self) -> Self {
        Self::new(self.keys(), self.width)
    }

    fn len(&self) -> usize {
        self.iter().count()
    }

    fn merge(&mut self, later: Self) {
        if self.values.is_empty() {
            *self = later;
            return;
        }
        later.iter().for_each(|(row, numbers)| self.add(row, numbers));
    }

    fn to_bytes(&self, owners: usize) -> Result<Vec<Vec<u8>>, Error> {
        let piece = |owner| {
            let (mut bytes, mut next) = (Vec::new(), 0);
            for (row, numbers) in self.within(share(self.keys(), owners, owner)) {
                // Rows ascend. The encoding of a row consists of the number of skipped rows, the
                // width, and the numbers.
                bytes = postcard::to_extend(&((row - next) as u32), bytes).map_err(Error::Value)?;
                next = row + 1;
                let width = N::width(numbers);
                bytes.push(width.to_byte());
                N::write(numbers, width, &mut bytes);
            }
            Ok(bytes)
        };
        (0..owners).map(piece).collect()
    }

    fn merge_bytes(&mut self, mut bytes: &[u8]) -> Result<(), Malformed> {
        let mut next = 0u64;
        while !bytes.is_empty() {
            let (skipped, rest) = postcard::take_from_bytes::<u32>(bytes)?;
            let row = next + u64::from(skipped);
            if row >= u64::from(self.keys) {
                return Err(Malformed::Row(row));
            }
            let (&width, rest) = rest.split_first().ok_or(Malformed::Short)?;
            let width = NumberWidth::read(width)?;
            let numbers = rest.split_at_checked(width.bytes(self.width)).ok_or(Malformed::Short)?;
            N::add_written(self.row_mut(row as usize), width, numbers.0)?;
            (next, bytes) = (row + 1, numbers.1);
        }
        Ok(())
    }

    fn magnitude(&self) -> Option<u64> {
        let largest = self.values.iter().map(|n| n.to_integer().unsigned_abs()).max();
        N::ANY_ORDER.then(|| largest.unwrap_or(0))
    }

    fn dense_bytes(&self, magnitude: u64) -> u64 {
        (self.keys() * self.width) as u64 * bytes_for(magnitude)
    }

    fn reduce_scatter(self, comm: &Comm, magnitude: u64) -> Result<Self, Error> {
        match bytes_for(magnitude) {
            1 => self.reduce_scatter_as(comm, |n| n.to_integer() as i8, |n| N::from_integer(n.into())),
            2 => self.reduce_scatter_as(comm, |n| n.to_integer() as i16, |n| N::from_integer(n.into())),
            4 => self.reduce_scatter_as(comm, |n| n.to_integer() as i32, |n| N::from_integer(n.into())),
            _ => self.reduce_scatter_as(comm, N::to_integer, N::from_integer),
        }
    }
}

/// Returns the size in bytes of the narrowest signed integers that can hold numbers of this
/// magnitude.
fn bytes_for(magnitude: u64) -> u64 {
    match magnitude {
        0..0x80 => 1,
        0x80..0x8000 => 2,
        0x8000..0x8000_0000 => 4,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(numbers: &[(usize, i64)]) -> Rows<i64> {
        let mut rows = Rows::new(60, 2);
        numbers.iter().for_each(|(row, n)| rows.add(*row, &[*n, 7]));
        rows
    }

    fn list<N: Number>(rows: &Rows<N>) -> Vec<(usize, Vec<N>)> {
        rows.iter().map(|(row, numbers)| (row, numbers.to_vec())).collect()
    }

    fn any_width() -> impl Strategy<Value = i64> {
        (0u32..64, any::<i64>()).prop_map(|(shift, n)| n >> shift)
    }

    proptest! {
        #[test]
        fn bytes_of_rows_round_trip_for_any_number_of_owners(
            numbers in prop::collection::vec((0usize..60, any_width()), 0..80),
            owners in 1usize..9,
        ) {
            let table = rows(&numbers);
            let mut again = table.empty();
            for piece in table.to_bytes(owners).expect("bytes") {
                let mut part = table.empty();
                part.merge_bytes(&piece).expect("rows");
                again.merge(part);
            }
            prop_assert_eq!(list(&again), list(&table));
        }

        #[test]
        fn any_bytes_are_rows_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut integers = Rows::<i32>::new(9, 3);
            let mut floats = Rows::<f64>::new(9, 3);
            let _ = (integers.merge_bytes(&bytes), floats.merge_bytes(&bytes));
            prop_assert!(integers.len() <= 9 && floats.len() <= 9);
        }
    }

    #[test]
    fn rows_take_the_bytes_that_their_numbers_need() {
        for (number, bytes) in
            [(255, 2), (256, 3), (-1, 1), (-8, 1), (-129, 3), (40_000, 4), (-40_000, 5), (1 << 40, 11)]
        {
            assert_eq!(rows(&[(0, number)]).to_bytes(1).expect("bytes")[0].len(), 2 + bytes, "{number}");
        }
    }

    #[test]
    fn preallocated_rows_can_be_filled_in() {
        let mut table = Rows::<i64>::zeros(60, 2, &[3, 59]);
        assert!(table.is_empty());
        table.rows_mut().zip([1, -1000]).for_each(|(row, n)| row.copy_from_slice(&[n, 7]));
        assert_eq!(list(&table), list(&rows(&[(3, 1), (59, -1000)])));
        assert!(Rows::<i64>::zeros(0, 1, &[]).rows_mut().next().is_none());
    }

    #[test]
    fn a_row_that_sums_to_zeros_is_absent() {
        let mut table = Rows::<i32>::new(3, 1);
        table.add(1, &[5]);
        table.add(1, &[-5]);
        assert!(table.is_empty() && table.to_bytes(1).expect("bytes")[0].is_empty());
    }

    #[test]
    fn truncated_and_out_of_range_bytes_are_refused() {
        let bytes = rows(&[(3, 1), (59, -1000)]).to_bytes(1).expect("bytes").remove(0);
        let read = |bytes: &[u8]| rows(&[]).merge_bytes(bytes);
        assert_eq!(read(&bytes), Ok(()));
        let whole = [0, 1 + 1 + 1, bytes.len()];
        for end in (0..=bytes.len()).filter(|end| !whole.contains(end)) {
            assert_eq!(read(&bytes[..end]), Err(Malformed::Short), "{end}");
        }
        assert_eq!(read(&[60, 1, 3]), Err(Malformed::Row(60)));
        assert_eq!(read(&[59, 1, 3, 0, 1, 3]), Err(Malformed::Row(60)));
        for width in [0x40, 0x7e, 0x7f, 0x80, 0xc1] {
            assert_eq!(read(&[&[0, width][..], &[1; 16]].concat()), Err(Malformed::Form), "{width}");
        }
        let narrow = |width| Rows::<i32>::new(1, 1).merge_bytes(&[&[0, width][..], &[1; 8]].concat());
        assert_eq!((narrow(32), narrow(0x80 | 33)), (Err(Malformed::Form), Err(Malformed::Form)));
    }
}
