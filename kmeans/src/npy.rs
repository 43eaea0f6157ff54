//! NumPy's `.npy` files: two-dimensional, C order, little-endian `u8`, `f32` or `f64`; nothing else is accepted.
//!
//! Rows are read where they stand, so a rank reads its own part of a large file only.

use crate::error::Error;
use crate::grid::MAX_DIMS;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// NumPy's own headers of plain arrays take 118 bytes.
const MAX_HEADER: usize = 4096;

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An unsigned byte.
    U8,
    /// A 32-bit floating-point number.
    F32,
    /// A 64-bit floating-point number.
    F64,
}

impl Kind {
    fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// An array in a file.
#[derive(Debug)]
pub struct Array {
    /// The file.
    pub path: PathBuf,
    /// What its elements are.
    pub kind: Kind,
    /// How many rows it has.
    pub rows: u64,
    /// How many elements a row has.
    pub dims: usize,
    start: u64,
}

impl Array {
    /// Reads a file's header and checks that the file is as long as it says.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_shaped(path, |shape| match shape {
            &[rows, columns] => Ok((rows, columns)),
            _ => {
                Err(format!("has {} dimensions; points are a table of 2: numpy's reshape helps", shape.len()))
            }
        })
    }

    /// The same of an array of single numbers: of one dimension, or of one column.
    pub(crate) fn open_column(path: &Path) -> Result<Self, Error> {
        Self::open_shaped(path, |shape| match shape {
            &[rows] | &[rows, 1] => Ok((rows, 1)),
            _ => Err(format!("has the shape {shape:?}; weights are one number a point")),
        })
    }

    fn open_shaped(
        path: &Path,
        rows_and_columns: impl Fn(&[u64]) -> Result<(u64, u64), String>,
    ) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Array { path: path.to_owned(), problem };
        let mut file = File::open(path).map_err(Error::file(path))?;
        let size = file.metadata().map_err(Error::file(path))?.len();
        let mut head = Vec::new();
        Read::by_ref(&mut file).take(MAX_HEADER as u64).read_to_end(&mut head).map_err(Error::file(path))?;
        let (header, start) = split_header(&head).map_err(|p| wrong(p.into()))?;
        let (kind, shape) = parse_header(header).map_err(wrong)?;
        let (rows, columns) = rows_and_columns(&shape).map_err(wrong)?;
        if columns == 0 || columns > MAX_DIMS as u64 {
            return Err(wrong(format!("has {columns} columns; points have 1 to {MAX_DIMS} coordinates")));
        }
        let needed = rows.checked_mul(columns * kind.bytes()).and_then(|n| n.checked_add(start as u64));
        if needed != Some(size) {
            return Err(wrong(format!(
                "is {size} bytes long, which does not fit its shape ({rows}, {columns}); is it cut short?"
            )));
        }
        Ok(Self { path: path.to_owned(), kind, rows, dims: columns as usize, start: start as u64 })
    }

    /// Hands the bytes of the given rows, which rise, to `take`, one by one.
    pub fn read(
        &self,
        rows: &[u64],
        mut take: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut file = std::io::BufReader::with_capacity(
            1 << 20,
            File::open(&self.path).map_err(Error::file(&self.path))?,
        );
        let width = self.dims as u64 * self.kind.bytes();
        let mut row = vec![0; width as usize];
        let mut at = 0;
        file.seek(SeekFrom::Start(self.start)).map_err(Error::file(&self.path))?;
        for &number in rows {
            let skip = ((number - at) * width) as i64;
            file.seek_relative(skip)
                .and_then(|()| file.read_exact(&mut row))
                .map_err(Error::file(&self.path))?;
            at = number + 1;
            take(number, &row)?;
        }
        Ok(())
    }
}

/// Appends a row's elements as numbers.
pub(crate) fn decode(kind: Kind, bytes: &[u8], values: &mut Vec<f64>) {
    match kind {
        Kind::U8 => values.extend(bytes.iter().map(|&b| f64::from(b))),
        Kind::F32 => values.extend(bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b)))),
        Kind::F64 => values.extend(bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b))),
    }
}

/// The header's text and where the data begins.
fn split_header(head: &[u8]) -> Result<(&str, usize), &'static str> {
    const CUT: &str = "ends within its header, or the header is longer than a plain array's";
    let rest = head.strip_prefix(MAGIC).ok_or("is not an .npy file: its first bytes are not \\x93NUMPY")?;
    let (length, at): (usize, usize) = match rest {
        [1, 0, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
        [2 | 3, 0, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
        [1..=3, 0, ..] => return Err(CUT),
        _ => return Err("is of a version of the .npy format other than 1, 2 and 3"),
    };
    let text = at.checked_add(length).and_then(|end| head.get(at..end)).ok_or(CUT)?;
    Ok((std::str::from_utf8(text).map_err(|_| "has a header that is not text")?, at + length))
}

/// The element kind and shape of a header such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse_header(header: &str) -> Result<(Kind, Vec<u64>), String> {
    let odd = || format!("has a header that is not numpy's: {:?}", header.trim_end());
    let mut rest = header.trim().strip_prefix('{').and_then(|h| h.strip_suffix('}')).ok_or_else(odd)?.trim();
    let (mut kind, mut shape, mut c_order) = (None, None, false);
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix('\'').and_then(|r| r.split_once('\'')).ok_or_else(odd)?;
        let after = after.trim_start().strip_prefix(':').ok_or_else(odd)?.trim_start();
        let tail;
        match key {
            "descr" if kind.is_none() => {
                let (value, t) = after
                    .strip_prefix('\'')
                    .and_then(|r| r.split_once('\''))
                    .ok_or_else(|| "holds records; points are plain numbers".to_owned())?;
                kind = Some(parse_kind(value)?);
                tail = t;
            }
            "fortran_order" if !c_order => {
                tail = after
                    .strip_prefix("False")
                    .ok_or("is in Fortran order; save numpy.ascontiguousarray(points) instead".to_owned())?;
                c_order = true;
            }
            "shape" if shape.is_none() => {
                let (value, t) = after.strip_prefix('(').and_then(|r| r.split_once(')')).ok_or_else(odd)?;
                shape = Some(parse_shape(value).ok_or_else(odd)?);
                tail = t;
            }
            _ => return Err(odd()),
        }
        let tail = tail.trim_start();
        rest = if tail.is_empty() { tail } else { tail.strip_prefix(',').ok_or_else(odd)?.trim_start() };
    }
    match (kind, shape, c_order) {
        (Some(kind), Some(shape), true) => Ok((kind, shape)),
        _ => Err(odd()),
    }
}

fn parse_kind(descr: &str) -> Result<Kind, String> {
    match descr {
        "|u1" | "<u1" => Ok(Kind::U8),
        "<f4" => Ok(Kind::F32),
        "<f8" => Ok(Kind::F64),
        other => Err(format!(
            "has elements of type '{other}'; points are '|u1', '<f4' or '<f8': numpy's astype helps"
        )),
    }
}

fn parse_shape(text: &str) -> Option<Vec<u64>> {
    let text = text.trim();
    let text = text.strip_suffix(',').unwrap_or(text);
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|n| n.trim().parse().ok()).collect()
}

/// Writes rows of `f64` as a C-order array.
pub fn write(path: &Path, values: &[f64], dims: usize) -> Result<(), Error> {
    let mut header =
        format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({}, {dims}), }}", values.len() / dims);
    // The data begins at a multiple of 64, after a newline.
    while !(MAGIC.len() + 4 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    File::create(path).and_then(|mut f| f.write_all(&bytes)).map_err(Error::file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut f = tempfile::NamedTempFile::new().expect("a temporary file");
        f.write_all(bytes).expect("written");
        f
    }

    fn array(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[1, 0]);
        bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn refusal(bytes: &[u8]) -> String {
        Array::open(file(bytes).path()).expect_err("must be refused").to_string()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let f = tempfile::NamedTempFile::new().expect("a temporary file");
        let values: Vec<f64> = (0..15).map(|i| f64::from(i) * 0.1).collect();
        write(f.path(), &values, 3).expect("written");
        let a = Array::open(f.path()).expect("read");
        assert_eq!((a.rows, a.dims, a.kind), (5, 3, Kind::F64));
        let mut back = Vec::new();
        a.read(&[1, 4], |_, row| {
            decode(a.kind, row, &mut back);
            Ok(())
        })
        .expect("rows");
        assert_eq!(back, [values[3..6].to_vec(), values[12..].to_vec()].concat());
    }

    #[test]
    fn headers_as_numpy_writes_them_are_understood() {
        let h = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }      \n";
        let f = file(&array(h, &[0; 8]));
        let a = Array::open(f.path()).expect("read");
        assert_eq!((a.rows, a.dims, a.kind), (1, 2, Kind::F32));
    }

    #[test]
    fn what_cannot_be_clustered_is_refused_by_name() {
        let plain = |descr: &str, order: &str, shape: &str| {
            format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")
        };
        let cases = [
            (plain("'<i8'", "False", "(1, 1)"), "'<i8'"),
            (plain("'>f4'", "False", "(1, 1)"), "'>f4'"),
            (plain("[('a', '<f4')]", "False", "(1, 1)"), "records"),
            (plain("'<f8'", "True", "(1, 1)"), "Fortran"),
            (plain("'<f8'", "False", "(1,)"), "1 dimensions"),
            (plain("'<f8'", "False", "(1, 0)"), "0 columns"),
            (plain("'<f8'", "False", "(2, 1)"), "cut short"),
            (plain("'<f8'", "False", "(18446744073709551615, 65536)"), "cut short"),
            (plain("'<f8'", "False", "(-1, 1)"), "not numpy's"),
            ("{'descr': '<f8', 'shape': (1, 1)}".into(), "not numpy's"),
            ("import os".into(), "not numpy's"),
        ];
        for (header, expected) in cases {
            let said = refusal(&array(&header, &[0; 8]));
            assert!(said.contains(expected), "{header}: {said}");
        }
        assert!(refusal(b"").contains("not an .npy file"));
        assert!(refusal(b"\x93NUMPY\x09\x00aaaa").contains("version"));
        assert!(refusal(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{").contains("header"));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut head = MAGIC.to_vec();
            head.extend(bytes);
            let _refused_or_read = split_header(&head).map(|(h, _)| parse_header(h));
        }

        #[test]
        fn hostile_headers_never_panic(text in "[{}'(),: a-z0-9<]{0,80}") {
            let _refused_or_read = parse_header(&text);
        }
    }
}
