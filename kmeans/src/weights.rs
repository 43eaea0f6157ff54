//! How many times each point counts: numbers from a file as integers, so that sums with them are exact.

use crate::error::Error;
use crate::npy::{self, Array};
use crate::peers::Peers;
use cool::Op;
use std::path::Path;

/// The largest weight.
const MOST: f64 = u16::MAX as f64;

/// A file of weights.
#[derive(Debug)]
pub struct Weights {
    array: Array,
    /// The weight that the integer 1 stands for: 1 if all are whole numbers up to 65,535; else the largest is that integer.
    pub unit: f64,
}

impl Weights {
    /// Opens the file, which must have a number for each of `rows`; the ranks look at the rows that are theirs.
    pub fn open(peers: &Peers<'_>, path: &Path, rows: u64, mine: &[u64]) -> Result<Self, Error> {
        let found = || {
            let array = Array::open_column(path)?;
            if array.rows != rows {
                let problem = format!(
                    "has {} weights; the input has {rows} points, each of which needs one",
                    array.rows
                );
                return Err(Error::Array { path: path.to_owned(), problem });
            }
            let mut most = [0.0f64; 2];
            each(&array, mine, |weight| {
                most = [most[0].max(weight), most[1].max(f64::from(u8::from(weight.fract() != 0.0)))];
            })?;
            Ok((array, most))
        };
        let (array, most) = peers.agree(found())?;
        let most = peers.combine(most.to_vec(), Op::Max)?;
        if most[0] == 0.0 {
            let problem = "has no weight above 0".to_owned();
            return peers.agree(Err(Error::Array { path: path.to_owned(), problem }));
        }
        let whole = most[1] == 0.0 && most[0] <= MOST;
        Ok(Self { array, unit: if whole { 1.0 } else { most[0] / MOST } })
    }

    /// The weights of some rows, which rise. One above 0 is 1 at least.
    pub fn load(&self, rows: &[u64]) -> Result<Vec<u16>, Error> {
        let mut weights = Vec::with_capacity(rows.len());
        each(&self.array, rows, |weight| {
            let least = if weight > 0.0 { 1.0 } else { 0.0 };
            weights.push((weight / self.unit).round().clamp(least, MOST) as u16);
        })?;
        Ok(weights)
    }
}

/// Hands the numbers of some rows to `take`.
fn each(array: &Array, rows: &[u64], mut take: impl FnMut(f64)) -> Result<(), Error> {
    let mut number = Vec::with_capacity(1);
    array.read(rows, |row, bytes| {
        number.clear();
        npy::decode(array.kind, bytes, &mut number);
        if !(number[0].is_finite() && number[0] >= 0.0) {
            let problem = format!("row {row} is {}; a weight is a number from 0", number[0]);
            return Err(Error::Array { path: array.path.clone(), problem });
        }
        take(number[0]);
        Ok(())
    })
}
