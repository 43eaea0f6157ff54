//! How often each point counts: numbers from a file or from the program, converted to integers, so
//! that weighted sums are exact.

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
    /// The file, or `None` if the program passed the weights.
    array: Option<ArrayFile>,
    /// The weight that the integer 1 represents: 1 if all weights are whole numbers up to 65,535;
    /// otherwise the largest weight becomes 65,535.
    pub unit: f64,
}

impl Weights {
    /// Opens the file, which must contain a number for each of `rows` points. Each rank examines
    /// the weights of its own points, `mine`. All ranks must call this.
    pub fn open(peers: &PeerRanks<'_>, path: &Path, rows: u64, mine: &[u64]) -> Result<Self, Error> {
        let found = || {
            let array = ArrayFile::open_column(path)?;
            if array.rows != rows {
                let problem = format!("has {} weights for {rows} points; provide one per point", array.rows);
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
                let problem = "has no weight above 0; at least one must be".to_owned();
                peers.agree(Err(Error::Content { path: path.to_owned(), problem }))
            }
        }
    }

    /// Converts weights that the program passed for this rank's points. Returns them with the
    /// integers.
    pub(crate) fn from_memory(peers: &PeerRanks<'_>, weights: &[f64]) -> Result<(Self, Vec<u16>), Error> {
        let most = weights.iter().fold([0.0f64; 2], |most, weight| larger(most, *weight));
        let unit = unit(peers, most)?;
        let none = || Error::Input("the weights of all points are zero; at least one must be above 0".into());
        let weighed = Self { array: None, unit: peers.agree(unit.ok_or_else(none))? };
        let integers = weights.iter().map(|weight| weighed.integer(*weight)).collect();
        Ok((weighed, integers))
    }

    /// Returns the weights of some rows, which must ascend. A weight above 0 is at least 1.
    pub fn load(&self, rows: &[u64]) -> Result<Vec<u16>, Error> {
        let unavailable =
            || Error::Input("the weights of a lost rank are no longer available; pass them again".into());
        let mut weights = Vec::with_capacity(rows.len());
        each(self.array.as_ref().ok_or_else(unavailable)?, rows, |weight| {
            weights.push(self.integer(weight))
        })?;
        Ok(weights)
    }

    fn integer(&self, weight: f64) -> u16 {
        let least = if weight > 0.0 { 1.0 } else { 0.0 };
        (weight / self.unit).round().clamp(least, MOST) as u16
    }
}

/// Returns the larger of two weights, and 1 if any weight so far is not a whole number, or 0 if all
/// are.
fn larger([most, broken]: [f64; 2], weight: f64) -> [f64; 2] {
    [most.max(weight), broken.max(f64::from(u8::from(weight.fract() != 0.0)))]
}

/// Returns the weight that the integer 1 represents, given this rank's result of [`larger`], or
/// `None` if all ranks' weights are 0.
fn unit(peers: &PeerRanks<'_>, most: [f64; 2]) -> Result<Option<f64>, Error> {
    let most = peers.combine(most.to_vec(), Op::Max)?;
    let whole = most[1] == 0.0 && most[0] <= MOST;
    Ok((most[0] > 0.0).then_some(if whole { 1.0 } else { most[0] / MOST }))
}

/// Passes the numbers of some rows to `take`.
fn each(array: &ArrayFile, rows: &[u64], mut take: impl FnMut(f64)) -> Result<(), Error> {
    let mut number = Vec::with_capacity(1);
    array.read(rows.iter().copied(), |row, bytes| {
        number.clear();
        array.kind.decode(bytes, &mut number);
        if !(number[0].is_finite() && number[0] >= 0.0) {
            let problem =
                format!("row {row} is {}; a weight must be a finite number of at least 0", number[0]);
            return Err(Error::Content { path: array.path.clone(), problem });
        }
        take(number[0]);
        Ok(())
    })
}
