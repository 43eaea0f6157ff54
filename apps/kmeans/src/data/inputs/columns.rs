//! Parquet files as tables of rows: columns of numbers, or one column of lists of equal length. A
//! rank reads the row groups that contain its rows, and skips the pages before them.
//!
//! Parquet stores the numbers of a column together, so each column of a row group is read
//! separately, some rows at a time. For wide tables a column of lists is faster. Integers of 64
//! bits and columns of different types are converted to 64-bit floating-point numbers.

use super::formats::ElementKind;
use crate::error::Error;
use half::f16;
use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use std::fs::File;
use std::iter::Peekable;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Bytes of the rows that are read at a time.
const BATCH_BYTES: usize = 1 << 20;

/// How the rows of a file are stored.
#[derive(Debug)]
pub(super) struct RowGroups {
    /// For each group, the number of rows in it and in all previous groups.
    ends: Vec<u64>,
    /// Whether a row is a list, rather than one number of each column.
    lists: bool,
}

/// Description of a file's contents.
pub(super) struct ParquetContents {
    pub(super) groups: RowGroups,
    pub(super) kind: ElementKind,
    pub(super) rows: u64,
    /// Numbers per row.
    pub(super) dims: usize,
}

/// The file and the shape of its rows.
#[derive(Clone, Copy)]
pub(super) struct TableShape<'a> {
    pub(super) path: &'a Path,
    pub(super) kind: ElementKind,
    pub(super) dims: usize,
}

impl RowGroups {
    /// Reads the metadata at the end of a file, or returns the problem.
    pub(super) fn open(file: File) -> Result<ParquetContents, String> {
        guarded(|| Self::read_end(file))
    }

    fn read_end(file: File) -> Result<ParquetContents, String> {
        let reader = SerializedFileReader::new(file).map_err(unreadable)?;
        let columns = reader.metadata().file_metadata().schema_descr().columns();
        let lists = columns.iter().any(|column| column.max_rep_level() > 0);
        if lists && (columns.len() > 1 || columns[0].max_rep_level() > 1) {
            return Err(
                "contains lists next to other columns, or lists of lists; points must be columns of numbers, or one \
                        column of lists of numbers"
                    .into(),
            );
        }
        let kinds = columns.iter().map(|column| kind(column)).collect::<Result<Vec<_>, _>>()?;
        let kind = kinds.first().copied().filter(|first| kinds.iter().all(|kind| kind == first));
        let (mut rows, mut ends) = (0u64, Vec::new());
        for group in reader.metadata().row_groups() {
            let count = u64::try_from(group.num_rows()).ok();
            rows = count
                .and_then(|count| rows.checked_add(count))
                .ok_or("has row groups of impossible sizes")?;
            ends.push(rows);
        }
        let dims = if lists { first_list(&reader, &ends)? } else { columns.len() };
        Ok(ParquetContents {
            groups: Self { ends, lists },
            kind: kind.unwrap_or(ElementKind::F64),
            rows,
            dims,
        })
    }

    /// Passes the bytes of the given rows to `take`, one by one. The rows must ascend.
    pub(super) fn read(
        &self,
        shape: TableShape<'_>,
        rows: impl IntoIterator<Item = u64>,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let wrong = |problem| Error::Content { path: shape.path.to_owned(), problem };
        let file = File::open(shape.path).map_err(Error::file(shape.path))?;
        let reader = SerializedFileReader::new(file).map_err(|e| wrong(unreadable(e)))?;
        let mut rows = rows.into_iter().peekable();
        while let Some(&row) = rows.peek() {
            let number = self.ends.partition_point(|end| *end <= row);
            let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
            let open = || RowGroup::open(&reader, number, self.lists, shape).map_err(unreadable);
            let mut group = guarded(open).map_err(wrong)?;
            group.read(start..self.ends[number], &mut rows, &mut take)?;
        }
        Ok(())
    }
}

/// A row group that is being read.
struct RowGroup<'a> {
    shape: TableShape<'a>,
    columns: Vec<GroupColumn>,
    /// Whether its only column consists of lists.
    lists: bool,
    /// Bytes of the rows that were read last.
    bytes: Vec<u8>,
}

/// A column of a row group.
struct GroupColumn {
    name: String,
    reader: ColumnReader,
    is_unsigned: bool,
    /// The definition level of numbers that are present.
    present: i16,
    levels: DremelLevels,
    numbers: Vec<f64>,
}

/// Dremel's levels: which numbers are missing, and where lists start.
#[derive(Default)]
struct DremelLevels {
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl<'a> RowGroup<'a> {
    fn open(
        reader: &SerializedFileReader<File>,
        number: usize,
        lists: bool,
        shape: TableShape<'a>,
    ) -> Result<Self, ParquetError> {
        let group = reader.get_row_group(number)?;
        let schema = reader.metadata().file_metadata().schema_descr();
        let column = |(i, column): (usize, &std::sync::Arc<ColumnDescriptor>)| {
            Ok(GroupColumn {
                name: column.path().string(),
                reader: group.get_column_reader(i)?,
                is_unsigned: is_unsigned(column),
                present: column.max_def_level(),
                levels: DremelLevels::default(),
                numbers: Vec::new(),
            })
        };
        let columns = schema.columns().iter().enumerate().map(column).collect::<Result<_, ParquetError>>()?;
        Ok(Self { shape, columns, lists, bytes: Vec::new() })
    }

    /// Passes the requested rows that belong to the group to `take`. `all` must be the range of the
    /// group's rows.
    fn read(
        &mut self,
        all: std::ops::Range<u64>,
        rows: &mut Peekable<impl Iterator<Item = u64>>,
        take: &mut impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let width = self.shape.dims * self.shape.kind.bytes();
        let batch = (BATCH_BYTES / width).max(1) as u64;
        let mut at = all.start;
        while let Some(first) = rows.peek().copied().filter(|row| *row < all.end) {
            let count = batch.min(all.end - first);
            let skip = (first - at) as usize;
            let read = guarded(|| self.skip(skip).and_then(|()| self.fill(first, count as usize)));
            read.map_err(|problem| Error::Content { path: self.shape.path.to_owned(), problem })?;
            at = first + count;
            while let Some(row) = rows.next_if(|row| *row < at) {
                take(row, &self.bytes[(row - first) as usize * width..][..width])?;
            }
        }
        Ok(())
    }

    fn skip(&mut self, rows: usize) -> Result<(), String> {
        if rows == 0 {
            return Ok(());
        }
        for column in &mut self.columns {
            if column.skip(rows).map_err(unreadable)? != rows {
                return Err(column.ends_early());
            }
        }
        Ok(())
    }

    /// Reads the next rows, starting with number `first`.
    fn fill(&mut self, first: u64, count: usize) -> Result<(), String> {
        let TableShape { kind, dims, .. } = self.shape;
        self.bytes.resize(count * dims * kind.bytes(), 0);
        for (i, column) in self.columns.iter_mut().enumerate() {
            if column.read(count).map_err(unreadable)? != count {
                return Err(column.ends_early());
            }
            column.check(first, if self.lists { dims } else { 1 })?;
            if kind == ElementKind::U8 && column.numbers.iter().any(|number| !(0.0..=255.0).contains(number))
            {
                return Err(format!(
                    "column {} contains numbers beyond the range of its type; the file may be damaged",
                    column.name
                ));
            }
            let (begin, step) = if self.lists { (0, 1) } else { (i, dims) };
            let places = self.bytes.chunks_exact_mut(kind.bytes()).skip(begin).step_by(step);
            for (place, number) in places.zip(&column.numbers) {
                kind.encode(*number, place);
            }
        }
        Ok(())
    }
}

impl GroupColumn {
    fn skip(&mut self, rows: usize) -> Result<usize, ParquetError> {
        match &mut self.reader {
            ColumnReader::Int32ColumnReader(reader) => reader.skip_records(rows),
            ColumnReader::Int64ColumnReader(reader) => reader.skip_records(rows),
            ColumnReader::FloatColumnReader(reader) => reader.skip_records(rows),
            ColumnReader::DoubleColumnReader(reader) => reader.skip_records(rows),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => reader.skip_records(rows),
            _ => Err(no_numbers()),
        }
    }

    /// Reads the numbers of the next rows. Returns how many rows there were.
    fn read(&mut self, rows: usize) -> Result<usize, ParquetError> {
        let (to, unsigned) = ((&mut self.levels, &mut self.numbers), self.is_unsigned);
        match &mut self.reader {
            ColumnReader::Int32ColumnReader(reader) => {
                read(reader, rows, to, |x| if unsigned { f64::from(*x as u32) } else { f64::from(*x) })
            }
            ColumnReader::Int64ColumnReader(reader) => {
                read(reader, rows, to, |x| if unsigned { *x as u64 as f64 } else { *x as f64 })
            }
            ColumnReader::FloatColumnReader(reader) => read(reader, rows, to, |x| f64::from(*x)),
            ColumnReader::DoubleColumnReader(reader) => read(reader, rows, to, |x| *x),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                // A value that is not a half becomes NaN, which is refused later.
                read(reader, rows, to, |x| match *x.data() {
                    [low, high] => f16::from_le_bytes([low, high]).to_f64(),
                    _ => f64::NAN,
                })
            }
            _ => Err(no_numbers()),
        }
    }

    /// Checks that each of the rows that were read, starting with number `first`, has `each`
    /// numbers.
    fn check(&self, first: u64, each: usize) -> Result<(), String> {
        let DremelLevels { definition, repetition } = &self.levels;
        let begins = |i: usize| repetition.get(i).is_none_or(|level| *level == 0);
        let row = |i: usize| first + (0..=i).filter(|i| begins(*i)).count() as u64 - 1;
        if let Some(i) = definition.iter().position(|level| *level != self.present) {
            return Err(format!(
                "column {}, row {} has no number; use pandas' dropna or fillna",
                self.name,
                row(i)
            ));
        }
        let levels = self.numbers.len();
        if let Some(i) = (0..levels).find(|i| begins(*i) != i.is_multiple_of(each)) {
            let row = if begins(i) { row(i) - 1 } else { row(i) };
            return Err(format!(
                "column {}, row {row} does not have {each} numbers like the first row",
                self.name
            ));
        }
        if levels.is_multiple_of(each) { Ok(()) } else { Err(self.ends_early()) }
    }

    fn ends_early(&self) -> String {
        format!("column {} has fewer rows than the file declares; the file may be damaged", self.name)
    }
}

/// Reads levels and numbers of a column's next rows. Returns how many rows there were.
fn read<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    (levels, numbers): (&mut DremelLevels, &mut Vec<f64>),
    number: impl Fn(&T::T) -> f64,
) -> Result<usize, ParquetError> {
    let DremelLevels { definition, repetition } = levels;
    definition.clear();
    repetition.clear();
    numbers.clear();
    let mut values = Vec::new();
    let (read, ..) = reader.read_records(rows, Some(definition), Some(repetition), &mut values)?;
    numbers.extend(values.iter().map(number));
    Ok(read)
}

/// Returns the number of elements of the first list.
fn first_list(reader: &SerializedFileReader<File>, ends: &[u64]) -> Result<usize, String> {
    let number = ends.iter().position(|end| *end > 0).ok_or("has no rows")?;
    let shape = TableShape { path: Path::new(""), kind: ElementKind::F64, dims: 1 };
    let mut group = RowGroup::open(reader, number, true, shape).map_err(unreadable)?;
    let column = &mut group.columns[0];
    column.read(1).map_err(unreadable)?;
    Ok(column.numbers.len())
}

/// Returns the kind of a column's numbers.
fn kind(column: &ColumnDescriptor) -> Result<ElementKind, String> {
    let (logical, converted) = (column.logical_type_ref(), column.converted_type());
    let kind = match (column.physical_type(), logical, converted) {
        (Type::FIXED_LEN_BYTE_ARRAY, Some(LogicalType::Float16), _) => Some(ElementKind::F16),
        (physical, None | Some(LogicalType::Integer(_)), converted) => plain(physical, converted),
        _ => None,
    };
    kind.ok_or_else(|| {
        format!(
            "column {} contains other things than numbers; omit it (in pandas, also index=False)",
            column.path()
        )
    })
}

fn plain(physical: Type, converted: ConvertedType) -> Option<ElementKind> {
    use ConvertedType as Is;
    match (physical, converted) {
        (Type::INT32, Is::UINT_8) => Some(ElementKind::U8),
        (Type::INT32, Is::NONE | Is::INT_8 | Is::INT_16 | Is::INT_32 | Is::UINT_16) => Some(ElementKind::I32),
        (Type::FLOAT, Is::NONE) => Some(ElementKind::F32),
        (Type::INT32, Is::UINT_32) | (Type::INT64, Is::NONE | Is::INT_64 | Is::UINT_64) => {
            Some(ElementKind::F64)
        }
        (Type::DOUBLE, Is::NONE) => Some(ElementKind::F64),
        _ => None,
    }
}

fn is_unsigned(column: &ColumnDescriptor) -> bool {
    matches!(column.converted_type(), ConvertedType::UINT_32 | ConvertedType::UINT_64)
}

/// Catches panics of the `parquet` crate, because it panics on some damaged files.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err("is not a readable Parquet file: its page metadata is contradictory; the file may be damaged"
            .into())
    })
}

fn no_numbers() -> ParquetError {
    ParquetError::General("a column's type changed while it was being read".into())
}

/// Returns the error in one line.
fn unreadable(error: ParquetError) -> String {
    let message = error.to_string();
    format!("is not a readable Parquet file: {}", message.lines().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use crate::data::inputs::array::ArrayFile;
    use crate::data::inputs::formats::ElementKind;
    use crate::error::Error;
    use std::path::{Path, PathBuf};

    /// A file written by pyarrow 26. Row i contains the numbers 3i, 3i + 1 and 3i + 2.
    fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
    }

    fn numbers(name: &str, rows: impl IntoIterator<Item = u64>) -> Result<(ElementKind, Vec<f64>), Error> {
        let array = ArrayFile::open(&file(name))?;
        let mut values = Vec::new();
        array.read(rows, |_, row| {
            array.kind.decode(row, &mut values);
            Ok(())
        })?;
        Ok((array.kind, values))
    }

    #[test]
    fn rows_of_every_kind_coding_and_codec_are_read_from_anywhere() {
        let cases = [
            ("bytes-snappy.parquet", ElementKind::U8),
            ("floats-zstd.parquet", ElementKind::F32),
            ("integers-gzip.parquet", ElementKind::F64),
            ("unlike-none.parquet", ElementKind::F64),
            ("halves-lists.parquet", ElementKind::F16),
            ("lists.parquet", ElementKind::F64),
        ];
        for (name, kind) in cases {
            let array = ArrayFile::open(&file(name)).expect("opened");
            assert_eq!((array.rows, array.dims), (40, 3), "{name}");
            for rows in [(0..40).collect(), vec![0, 1, 17, 39], vec![5, 6, 7], vec![38], vec![]] {
                let expected: Vec<f64> =
                    rows.iter().flat_map(|i| [3 * i, 3 * i + 1, 3 * i + 2]).map(|x| x as f64).collect();
                assert_eq!(numbers(name, rows).expect("read"), (kind, expected), "{name}");
            }
        }
    }

    #[test]
    fn files_without_numbers_are_refused_by_name() {
        let refused = |name| numbers(name, 0..2).expect_err("refused").to_string();
        for (name, expected) in [
            ("missing.parquet", "column a, row 1 has no number"),
            ("ragged.parquet", "row 1 does not have 2 numbers like the first row"),
            ("names.parquet", "column \"name\" contains other things than numbers"),
            ("times.parquet", "column \"when\" contains other things than numbers"),
        ] {
            let message = refused(name);
            assert!(
                message.starts_with(&file(name).display().to_string()) && message.contains(expected),
                "{message}"
            );
        }
    }

    #[test]
    fn a_file_that_was_cut_short_is_refused_in_one_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("cut.parquet");
        let whole = std::fs::read(file("lists.parquet")).expect("read");
        for length in [0, 3, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).expect("written");
            let message = ArrayFile::open(&path).expect_err("refused").to_string();
            assert!(
                message.contains("cut.parquet: is not a readable Parquet file")
                    && message.lines().count() == 1,
                "{message}"
            );
        }
    }
}
