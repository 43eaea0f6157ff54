//! Sources of points: pictures, arrays or lines of text, recognized by the files' names. Each rank
//! reads only its own part of them.

pub mod array;
#[cfg(feature = "parquet")]
mod columns;
pub mod entry;
pub mod formats;
pub mod hog;
pub mod pictures;
pub mod text;

use self::array::ArrayFile;
use self::entry::InputEntry;
use self::formats::{ElementKind, InputKind, PointOrigin, one_form};
use self::pictures::{PatchLayout, PatchSampling, Pictures};
use self::text::TextLines;
use crate::data::grid::{Grid, Metric, PointValues, Points, Precision};
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use std::path::PathBuf;

/// Which files to read, and how.
#[derive(Clone, Debug)]
pub struct InputOptions {
    /// Files and directories.
    pub paths: Vec<PathBuf>,
    /// How patches are cut out of pictures.
    pub cut: PatchLayout,
    /// Use random patches of each picture instead of all patches.
    pub sampling: Option<PatchSampling>,
    /// Numbers per line of a text file; by default the number in the first line.
    pub dims: Option<usize>,
    /// Skip pictures that cannot be decoded.
    pub skip_bad: bool,
}

/// Files that contain points.
#[derive(Debug)]
pub enum PointSource {
    /// Pictures.
    Pictures(Pictures),
    /// Text files.
    Text(TextLines),
    /// Arrays.
    Arrays(ArrayFiles),
    /// Points that the program passed in memory. They cannot be read again.
    InMemory {
        /// Total number of points.
        rows: u64,
        /// Coordinates per point.
        dims: usize,
    },
}

/// Arrays with equal numbers of columns, one after the other.
#[derive(Debug)]
pub struct ArrayFiles {
    list: Vec<ArrayFile>,
    /// For each array, the number of rows in it and in all previous arrays.
    ends: Vec<u64>,
}

impl PointSource {
    /// Opens files of one format. All ranks must call this. At each rank, `threads` threads examine
    /// pictures and count lines.
    ///
    /// # Errors
    /// If the files have several formats, there are none, or one cannot be read.
    pub fn open(peers: &PeerRanks<'_>, input: &InputOptions, threads: usize) -> Result<Self, Error> {
        let entries = InputEntry::find(peers, &input.paths)?;
        let names: Vec<PathBuf> = entries.iter().map(|entry| entry.name.clone()).collect();
        peers.agree(one_form(&names)).and_then(|form| match form {
            InputKind::Picture => {
                let pictures = Pictures::open(peers, entries, input.cut, input.skip_bad, threads)?;
                Ok(Self::Pictures(pictures.sampled(input.sampling)))
            }
            InputKind::Text => TextLines::open(peers, &names, input.dims, threads).map(Self::Text),
            InputKind::Array => peers.agree(ArrayFiles::open(&names)).map(Self::Arrays),
        })
    }

    /// Returns the name of the first file, or an empty name for points in memory.
    pub fn name(&self) -> String {
        let path = match self {
            Self::Pictures(p) => p.entries().next().map(|entry| entry.name.as_path()),
            Self::Text(t) => t.paths().next(),
            Self::Arrays(a) => a.list.first().map(|array| array.path.as_path()),
            Self::InMemory { .. } => None,
        };
        path.map(|path| path.display().to_string()).unwrap_or_default()
    }

    /// Returns the total number of points.
    pub fn rows(&self) -> u64 {
        match self {
            Self::Pictures(p) => p.rows(),
            Self::Text(t) => t.rows(),
            Self::Arrays(a) => a.ends.last().copied().unwrap_or(0),
            Self::InMemory { rows, .. } => *rows,
        }
    }

    /// Returns the number of coordinates of a point.
    pub fn dims(&self) -> usize {
        match self {
            Self::Pictures(p) => p.cut().dims(),
            Self::Text(t) => t.dims,
            Self::Arrays(a) => a.list[0].dims,
            Self::InMemory { dims, .. } => *dims,
        }
    }

    /// Returns the real number that the byte 1 represents if points are bytes, or `None` if they
    /// are other numbers.
    pub fn byte_step(&self) -> Option<f64> {
        match self {
            Self::Pictures(_) => Some(1.0 / 255.0),
            Self::Arrays(a) if a.list.iter().all(|array| array.kind == ElementKind::U8) => Some(1.0),
            Self::Text(_) | Self::Arrays(_) | Self::InMemory { .. } => None,
        }
    }

    /// Returns the pictures that were skipped.
    pub fn skipped(&self) -> Vec<PathBuf> {
        match self {
            Self::Pictures(p) => p.skipped().to_vec(),
            Self::Text(_) | Self::Arrays(_) | Self::InMemory { .. } => Vec::new(),
        }
    }

    /// Returns the given points as numbers on a grid. The points must ascend. `done` is called with
    /// the number of points read since its last call.
    ///
    /// # Errors
    /// If the points cannot be read or are not finite.
    pub fn load(
        &self,
        rows: &[u64],
        grid: &Grid,
        threads: usize,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Points, Error> {
        let mut points = grid.empty_points();
        if grid.precision == Precision::Byte {
            points.values = PointValues::Byte(self.bytes(rows, threads, done)?);
        } else if grid.metric == Metric::Cosine && self.byte_step().is_some() {
            points = grid.quantize_bytes(&Points::bytes(self.dims(), self.bytes(rows, threads, done)?));
        } else {
            points.reserve(rows.len());
            self.each(rows, |row| grid.quantize(row, &mut points))?;
        }
        Ok(points)
    }

    /// Returns the given points, which must ascend and be bytes.
    ///
    /// # Errors
    /// If the points cannot be read.
    pub fn bytes(&self, rows: &[u64], threads: usize, done: &(dyn Fn(u64) + Sync)) -> Result<Vec<u8>, Error> {
        match self {
            Self::Pictures(p) => p.load(rows, threads, done),
            Self::Arrays(a) => {
                let mut values = Vec::with_capacity(rows.len() * self.dims());
                a.read(rows, |_, _, row| {
                    values.extend_from_slice(row);
                    Ok(())
                })?;
                Ok(values)
            }
            Self::Text(_) => Ok(Vec::new()),
            Self::InMemory { .. } => Err(points_lost()),
        }
    }

    /// Passes the given points to `take`. They must ascend, and must not be pictures.
    ///
    /// # Errors
    /// If the points cannot be read or are not finite.
    pub fn each(&self, rows: &[u64], mut take: impl FnMut(&[f64])) -> Result<(), Error> {
        match self {
            Self::Text(t) => t.each(rows, take),
            Self::Arrays(a) => {
                let mut numbers = Vec::with_capacity(self.dims());
                a.read(rows, |array, row, bytes| {
                    numbers.clear();
                    array.kind.decode(bytes, &mut numbers);
                    array.check_finite(row, &numbers)?;
                    take(&numbers);
                    Ok(())
                })
            }
            Self::Pictures(_) => Ok(()),
            Self::InMemory { .. } => Err(points_lost()),
        }
    }

    /// Returns the origins of the given points, which must ascend.
    ///
    /// # Errors
    /// If a line of a text file does not contain its origin.
    pub fn origins(&self, rows: &[u64]) -> Result<Vec<PointOrigin>, Error> {
        match self {
            Self::Pictures(p) => Ok(p.origins(rows)),
            Self::Text(t) => t.origins(rows),
            Self::Arrays(a) => {
                let place = |&row: &u64| {
                    let (array, row) = a.find(row);
                    PointOrigin { file: a.list[array].path.display().to_string(), row, column: 0 }
                };
                Ok(rows.iter().map(place).collect())
            }
            Self::InMemory { .. } => {
                Ok(rows.iter().map(|&row| PointOrigin { file: String::new(), row, column: 0 }).collect())
            }
        }
    }
}

/// The error for points in memory, because they cannot be read again.
fn points_lost() -> Error {
    Error::Input("the points of a lost rank are no longer available; pass them again".into())
}

impl ArrayFiles {
    fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        let list = paths.iter().map(|path| ArrayFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        if let Some(other) = list.iter().find(|array| array.dims != list[0].dims) {
            let problem = format!(
                "has rows of {} elements, but {} has rows of {}; all points must have equally many",
                other.dims,
                list[0].path.display(),
                list[0].dims
            );
            return Err(Error::Content { path: other.path.clone(), problem });
        }
        let mut rows = 0;
        let ends = list.iter().map(|array| {
            rows += array.rows;
            rows
        });
        Ok(Self { ends: ends.collect(), list })
    }

    /// Returns the array that contains a row, and the row's number in it.
    fn find(&self, row: u64) -> (usize, u64) {
        let array = self.ends.partition_point(|&end| end <= row);
        (array, row - array.checked_sub(1).map_or(0, |before| self.ends[before]))
    }

    /// Passes the given rows to `take`, with their array and their number in it. The rows must
    /// ascend.
    fn read(
        &self,
        rows: &[u64],
        mut take: impl FnMut(&ArrayFile, u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut rest = rows;
        while let Some(&row) = rest.first() {
            let (number, within) = self.find(row);
            let (here, behind) = rest.split_at(rest.partition_point(|&row| row < self.ends[number]));
            let array = &self.list[number];
            array.read(here.iter().map(|r| r - row + within), |row, bytes| take(array, row, bytes))?;
            rest = behind;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::npy;
    use std::path::Path;

    fn open(paths: &[PathBuf]) -> Result<PointSource, Error> {
        let cut = PatchLayout::new(5, 40, 40).expect("a cut");
        let input = InputOptions { paths: paths.to_vec(), cut, sampling: None, dims: None, skip_bad: false };
        PointSource::open(&PeerRanks::alone(), &input, 1)
    }

    fn array(values: &[f64], dims: usize) -> tempfile::NamedTempFile {
        let f = tempfile::Builder::new().suffix(".npy").tempfile().expect("a file");
        npy::write(f.path(), values, dims).expect("written");
        f
    }

    #[test]
    fn forms_cannot_be_mixed_and_nothing_is_an_error() {
        let message = open(&["a.npy", "b.txt"].map(PathBuf::from)).expect_err("mixed").to_string();
        assert!(message.contains("a.npy and b.txt"), "{message}");
        let message = open(&["a.csv.gz".into()]).expect_err("packed").to_string();
        assert!(message.contains("unpack it first"), "{message}");
        assert!(open(&[]).is_err());
    }

    #[test]
    fn arrays_follow_one_another_and_unlike_ones_are_named() {
        let (a, b, c) = (array(&[1., 2., 3., 4.], 2), array(&[5., 6.], 2), array(&[7., 8., 9.], 3));
        let [a, b, c] = [a.path(), b.path(), c.path()].map(Path::to_owned);
        let source = open(&[a.clone(), b.clone()]).expect("opened");
        let mut values = Vec::new();
        source.each(&[1, 2], |row| values.extend_from_slice(row)).expect("read");
        assert_eq!((source.rows(), values), (3, vec![3., 4., 5., 6.]));
        assert_eq!(
            source.origins(&[2]).expect("a place")[0],
            PointOrigin { file: b.display().to_string(), row: 0, column: 0 }
        );
        let message = open(&[a, c.clone()]).expect_err("refused").to_string();
        assert!(message.starts_with(&c.display().to_string()) && message.contains("3 elements"), "{message}");
    }

    #[test]
    fn a_number_that_is_not_finite_is_named_by_row_and_column() {
        let file = array(&[1.0, 2.0, 3.0, f64::INFINITY], 2);
        let source = open(&[file.path().to_owned()]).expect("opened");
        let message = source.each(&[0, 1], |_| ()).expect_err("refused").to_string();
        assert!(message.contains("row 1, column 1 is inf"), "{message}");
    }
}
