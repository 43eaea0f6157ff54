//! Files with rows of equal size, so that a rank can read only its own rows of a large file:
//! `.npy`, `.fvecs` and `.bvecs` (the data sets of Jégou, Douze and Schmid, in which each row is
//! preceded by the number of its elements, a 32-bit integer), and Parquet.

#[cfg(feature = "parquet")]
use super::columns::{ParquetContents, RowGroups, TableShape};
use super::formats::{ElementKind, ending};
use crate::data::grid::MAX_DIMS;
use crate::data::npy;
use crate::error::Error;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// An array in a file.
#[derive(Debug)]
pub struct ArrayFile {
    /// The file.
    pub path: PathBuf,
    /// Kind of its elements.
    pub kind: ElementKind,
    /// Number of rows.
    pub rows: u64,
    /// Number of elements per row.
    pub dims: usize,
    form: RowLayout,
}

/// How rows are laid out in the file.
#[derive(Debug)]
enum RowLayout {
    /// One after the other.
    Rows {
        /// Bytes before the first row.
        start: u64,
        /// Whether each row is preceded by the number of its elements.
        counted: bool,
    },
    /// Column by column.
    #[cfg(feature = "parquet")]
    Groups(RowGroups),
}

/// Converts a shape to numbers of rows and columns, or returns the problem.
type RowsAndColumns = fn(&[u64]) -> Result<(u64, u64), String>;

impl ArrayFile {
    /// Reads a file's header, and checks that it matches the length of the file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a table of numbers.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_shaped(path, |shape| match shape {
            &[rows, columns] => Ok((rows, columns)),
            _ => Err(format!(
                "has {} dimensions; points need a table of 2 dimensions; use numpy's reshape",
                shape.len()
            )),
        })
    }

    /// Opens an array of single numbers, which must have one dimension or one column.
    pub(crate) fn open_column(path: &Path) -> Result<Self, Error> {
        Self::open_shaped(path, |shape| match shape {
            &[rows] | &[rows, 1] => Ok((rows, 1)),
            _ => Err(format!("has the shape {shape:?}; expected one number per point")),
        })
    }

    fn open_shaped(path: &Path, rows_and_columns: RowsAndColumns) -> Result<Self, Error> {
        let mut file = File::open(path).map_err(Error::file(path))?;
        let size = file.metadata().map_err(Error::file(path))?.len();
        #[cfg(feature = "parquet")]
        if ending(path).as_deref() == Some("parquet") {
            return Self::of_columns(path, file);
        }
        let mut head = Vec::new();
        let most = npy::MAX_HEADER as u64;
        Read::by_ref(&mut file).take(most).read_to_end(&mut head).map_err(Error::file(path))?;
        let array = match ending(path).as_deref() {
            Some("fvecs") => counted(&head, size, ElementKind::F32),
            Some("bvecs") => counted(&head, size, ElementKind::U8),
            _ => plain(&head, size, rows_and_columns),
        };
        array
            .map(|array| Self { path: path.to_owned(), ..array })
            .map_err(|problem| Error::Content { path: path.to_owned(), problem })
    }

    #[cfg(feature = "parquet")]
    fn of_columns(path: &Path, file: File) -> Result<Self, Error> {
        let found = RowGroups::open(file)
            .and_then(|found| Ok(ParquetContents { dims: in_bounds(found.dims as u64)?, ..found }));
        found
            .map(|ParquetContents { groups, kind, rows, dims }| Self {
                path: path.to_owned(),
                kind,
                rows,
                dims,
                form: RowLayout::Groups(groups),
            })
            .map_err(|problem| Error::Content { path: path.to_owned(), problem })
    }

    /// Passes the bytes of the given rows to `take`, one by one. The rows must ascend.
    ///
    /// # Errors
    /// If the rows cannot be read, or differ in size from the first.
    pub fn read(
        &self,
        rows: impl IntoIterator<Item = u64>,
        take: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match &self.form {
            RowLayout::Rows { start, counted } => self.read_rows((*start, *counted), rows, take),
            #[cfg(feature = "parquet")]
            RowLayout::Groups(groups) => {
                groups.read(TableShape { path: &self.path, kind: self.kind, dims: self.dims }, rows, take)
            }
        }
    }

    fn read_rows(
        &self,
        (start, counted): (u64, bool),
        rows: impl IntoIterator<Item = u64>,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let file = File::open(&self.path).map_err(Error::file(&self.path))?;
        let mut file = BufReader::with_capacity(1 << 20, file);
        let lead = if counted { 4 } else { 0 };
        let mut row = vec![0; lead + self.dims * self.kind.bytes()];
        let mut at = 0;
        file.seek(SeekFrom::Start(start)).map_err(Error::file(&self.path))?;
        for number in rows {
            let skip = ((number - at) * row.len() as u64) as i64;
            file.seek_relative(skip)
                .and_then(|()| file.read_exact(&mut row))
                .map_err(Error::file(&self.path))?;
            at = number + 1;
            let (count, row) = row.split_at(lead);
            if counted && count != (self.dims as u32).to_le_bytes() {
                let problem = format!("row {number} does not start with {} like the first row", self.dims);
                return Err(Error::Content { path: self.path.clone(), problem });
            }
            take(number, row)?;
        }
        Ok(())
    }

    /// Returns an error if a number of a row is not finite.
    pub(super) fn check_finite(&self, row: u64, numbers: &[f64]) -> Result<(), Error> {
        let Some(column) = numbers.iter().position(|v| !v.is_finite()) else { return Ok(()) };
        let problem = format!(
            "row {row}, column {column} is {}, not a finite number; use numpy's nan_to_num or isfinite",
            numbers[column]
        );
        Err(Error::Content { path: self.path.clone(), problem })
    }
}

/// Returns the array of an `.npy` file, with an empty path, which the caller must replace.
fn plain(head: &[u8], size: u64, rows_and_columns: RowsAndColumns) -> Result<ArrayFile, String> {
    let npy::Header { kind, shape, start } = npy::Header::read(head)?;
    let (rows, columns) = rows_and_columns(&shape)?;
    let dims = in_bounds(columns)?;
    let needed = rows.checked_mul((dims * kind.bytes()) as u64).and_then(|n| n.checked_add(start as u64));
    if needed != Some(size) {
        return Err(format!(
            "is {size} bytes long, which does not match its shape ({rows}, {columns}); it may be truncated"
        ));
    }
    Ok(ArrayFile {
        path: PathBuf::new(),
        kind,
        rows,
        dims,
        form: RowLayout::Rows { start: start as u64, counted: false },
    })
}

/// Returns the array of a file in which each row is preceded by the number of its elements, with an
/// empty path, which the caller must replace.
fn counted(head: &[u8], size: u64, kind: ElementKind) -> Result<ArrayFile, String> {
    let first = head.first_chunk().ok_or("is empty; expected the number of elements of a row")?;
    let dims = in_bounds(u64::from(u32::from_le_bytes(*first)))?;
    let width = 4 + (dims * kind.bytes()) as u64;
    if !size.is_multiple_of(width) {
        return Err(format!(
            "is {size} bytes long, not a multiple of rows of {dims} elements; it may be truncated"
        ));
    }
    Ok(ArrayFile {
        path: PathBuf::new(),
        kind,
        rows: size / width,
        dims,
        form: RowLayout::Rows { start: 0, counted: true },
    })
}

fn in_bounds(columns: u64) -> Result<usize, String> {
    let dims = usize::try_from(columns).ok().filter(|dims| (1..=MAX_DIMS).contains(dims));
    dims.ok_or_else(|| format!("has {columns} columns; points have 1 to {MAX_DIMS} coordinates"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(ending: &str, bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut f = tempfile::Builder::new().suffix(ending).tempfile().expect("a temporary file");
        f.write_all(bytes).expect("written");
        f
    }

    fn array(kind: ElementKind, shape: &[u64], data: &[u8]) -> Vec<u8> {
        [npy::Header::write(kind, shape), data.to_vec()].concat()
    }

    fn numbers(ending: &str, bytes: &[u8]) -> Result<Vec<f64>, Error> {
        let file = file(ending, bytes);
        let array = ArrayFile::open(file.path())?;
        let mut values = Vec::new();
        array.read(0..array.rows, |_, row| {
            array.kind.decode(row, &mut values);
            Ok(())
        })?;
        Ok(values)
    }

    #[test]
    fn every_kind_of_number_is_read() {
        let half = [0x00, 0x3c, 0x00, 0xc0, 0xff, 0x7b];
        assert_eq!(
            numbers(".npy", &array(ElementKind::F16, &[1, 3], &half)).expect("read"),
            [1.0, -2.0, 65504.0]
        );
        assert_eq!(
            numbers(".npy", &array(ElementKind::I8, &[1, 2], &[0xff, 0x7f])).expect("read"),
            [-1.0, 127.0]
        );
        assert_eq!(
            numbers(".npy", &array(ElementKind::U8, &[2, 1], &[0xff, 0x7f])).expect("read"),
            [255.0, 127.0]
        );
        let floats = [1.5f32, -0.25].map(f32::to_le_bytes).concat();
        assert_eq!(numbers(".npy", &array(ElementKind::F32, &[1, 2], &floats)).expect("read"), [1.5, -0.25]);
        let integers = [7i32, -9].map(i32::to_le_bytes).concat();
        assert_eq!(numbers(".npy", &array(ElementKind::I32, &[2, 1], &integers)).expect("read"), [7.0, -9.0]);
    }

    #[test]
    fn length_prefixed_rows_are_read_and_unequal_ones_refused() {
        let row = |count: u32, data: &[u8]| [&count.to_le_bytes(), data].concat();
        let bytes = [row(3, &[1, 2, 3]), row(3, &[4, 5, 6])].concat();
        assert_eq!(numbers(".bvecs", &bytes).expect("read"), [1., 2., 3., 4., 5., 6.]);
        let floats = |x: f32| row(1, &x.to_le_bytes());
        assert_eq!(numbers(".fvecs", &[floats(0.5), floats(-3.0)].concat()).expect("read"), [0.5, -3.0]);

        let refused = |bytes: &[u8]| numbers(".bvecs", bytes).expect_err("refused").to_string();
        assert!(refused(&bytes[..10]).contains("may be truncated"));
        assert!(
            refused(&[row(3, &[1, 2, 3]), row(4, &[4, 5, 6])].concat())
                .contains("row 1 does not start with 3")
        );
        assert!(refused(&row(0, &[])).contains("0 columns") && refused(&[1]).contains("is empty"));
    }

    #[test]
    fn files_without_a_table_are_refused_by_name() {
        let refused = |shape: &[u64], data: &[u8]| {
            numbers(".npy", &array(ElementKind::F64, shape, data)).expect_err("refused")
        };
        for (shape, expected) in [
            (&[1][..], "1 dimensions"),
            (&[1, 0], "0 columns"),
            (&[2, 1], "may be truncated"),
            (&[u64::MAX, 65536], "may be truncated"),
        ] {
            let message = refused(shape, &[0; 8]).to_string();
            assert!(message.contains(expected), "{shape:?}: {message}");
        }
    }
}
