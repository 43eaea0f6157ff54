//! How many times each point counts: numbers from a file as integers, so that sums with them are exact.

use crate::data::inputs::array::ArrayFile;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use cool::Op;
use std::path::Path;

/// The largest weight.
const MOST: f64 = u16::MAX as f64;

/// Weights of points.
#[derive(Debug)]
pub struct Weights {
    /// The file; none if the program has given them.
    array: Option<ArrayFile>,
    /// The weight that the integer 1 stands for: 1 if all are whole numbers up to 65,535; else the largest is that integer.
    pub unit: f64,
}

impl Weights {
    /// Opens the file, which must have a number for each of `rows`; the ranks look at the rows that are theirs.
    pub fn open(peers: &PeerRanks<'_>, path: &Path, rows: u64, mine: &[u64]) -> Result<Self, Error> {
        let found = || {
            let array = ArrayFile::open_column(path)?;
            if array.rows != rows {
                let problem = format!(
                    "has {} weights; the input has {rows} points, each of which needs one",
                    array.rows
                );
                return Err(Error::Content { path: path.to_owned(), problem });
            }
            let mut most = [0.0f64; 2];
            each(&array, mine, |weight| {
                most = larger(most, weight);
            })?;
            Ok((array, most))
        };
        let (array, most) = peers.agree(found())?;
        match unit(peers, most)? {
            Some(unit) => Ok(Self { array: Some(array), unit }),
            None => {
                let problem = "has no weight above 0".to_owned();
                peers.agree(Err(Error::Content { path: path.to_owned(), problem }))
            }
        }
    }

    /// Those that the program has, of this rank's points; and as integers.
    pub(crate) fn from_memory(peers: &PeerRanks<'_>, weights: &[f64]) -> Result<(Self, Vec<u16>), Error> {
        let most = weights.iter().fold([0.0f64; 2], |most, weight| larger(most, *weight));
        let unit = unit(peers, most)?;
        let none = || Error::Input("the weights of all points are zero; one must be above".into());
        let weighed = Self { array: None, unit: peers.agree(unit.ok_or_else(none))? };
        let integers = weights.iter().map(|weight| weighed.integer(*weight)).collect();
        Ok((weighed, integers))
    }

    /// The weights of some rows, which rise. One above 0 is 1 at least.
    pub fn load(&self, rows: &[u64]) -> Result<Vec<u16>, Error> {
        let gone = || Error::Input("weights that a lost rank was given are gone; give them again".into());
        let mut weights = Vec::with_capacity(rows.len());
        each(self.array.as_ref().ok_or_else(gone)?, rows, |weight| weights.push(self.integer(weight)))?;
        Ok(weights)
    }

    fn integer(&self, weight: f64) -> u16 {
        let least = if weight > 0.0 { 1.0 } else { 0.0 };
        (weight / self.unit).round().clamp(least, MOST) as u16
    }
}

/// The largest weight, and whether there is one that is no whole number.
fn larger([most, broken]: [f64; 2], weight: f64) -> [f64; 2] {
    [most.max(weight), broken.max(f64::from(u8::from(weight.fract() != 0.0)))]
}

/// What the integer 1 stands for, given [`larger`] of this rank's weights; none if all ranks' are 0.
fn unit(peers: &PeerRanks<'_>, most: [f64; 2]) -> Result<Option<f64>, Error> {
    let most = peers.combine(most.to_vec(), Op::Max)?;
    let whole = most[1] == 0.0 && most[0] <= MOST;
    Ok((most[0] > 0.0).then_some(if whole { 1.0 } else { most[0] / MOST }))
}

/// Hands the numbers of some rows to `take`.
fn each(array: &ArrayFile, rows: &[u64], mut take: impl FnMut(f64)) -> Result<(), Error> {
    let mut number = Vec::with_capacity(1);
    array.read(rows.iter().copied(), |row, bytes| {
        number.clear();
        array.kind.decode(bytes, &mut number);
        if !(number[0].is_finite() && number[0] >= 0.0) {
            let problem = format!("row {row} is {}; a weight is a number from 0", number[0]);
            return Err(Error::Content { path: array.path.clone(), problem });
        }
        take(number[0]);
        Ok(())
    })
}
