//! Headers of NumPy's `.npy` files, read and written. Supported are little-endian arrays of plain
//! numbers in C order.

use crate::data::inputs::formats::ElementKind;
use crate::error::Error;
use cool_map::replace_file;
use std::path::Path;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Maximum length of a header in bytes. NumPy's own headers of plain arrays have 118 bytes.
pub(crate) const MAX_HEADER: usize = 4096;

/// NumPy's names of the elements.
const KINDS: [(&str, ElementKind); 8] = [
    ("|u1", ElementKind::U8),
    ("<u1", ElementKind::U8),
    ("|i1", ElementKind::I8),
    ("<i1", ElementKind::I8),
    ("<i4", ElementKind::I32),
    ("<f2", ElementKind::F16),
    ("<f4", ElementKind::F32),
    ("<f8", ElementKind::F64),
];

/// The part of a file before the elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the elements.
    pub kind: ElementKind,
    /// Number of elements along each dimension.
    pub shape: Vec<u64>,
    /// Bytes before the first element.
    pub start: usize,
}

impl Header {
    /// Parses a header. `head` must contain the first [`MAX_HEADER`] bytes of the file, or all of
    /// them. Returns the problem if there is one.
    pub(crate) fn read(head: &[u8]) -> Result<Self, String> {
        let (text, start) = split_header(head)?;
        let (kind, shape) = parse_header(text)?;
        Ok(Self { kind, shape, start })
    }

    /// Returns the header of a file with such elements.
    pub(crate) fn write(kind: ElementKind, shape: &[u64]) -> Vec<u8> {
        let name = KINDS.iter().find(|(_, k)| *k == kind).map_or("", |(name, _)| name);
        let mut sizes = shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        if shape.len() == 1 {
            sizes.push(',');
        }
        let mut text = format!("{{'descr': '{name}', 'fortran_order': False, 'shape': ({sizes}), }}");
        // The data must start at a multiple of 64, after a newline.
        while !(MAGIC.len() + 4 + text.len() + 1).is_multiple_of(64) {
            text.push(' ');
        }
        text.push('\n');
        [MAGIC, &[1, 0][..], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
    }
}

/// Writes rows of `f64` as a C-order array.
///
/// # Errors
/// If the file cannot be written. In this case, no partial file is left.
pub fn write(path: &Path, values: &[f64], dims: usize) -> Result<(), Error> {
    let head = Header::write(ElementKind::F64, &[(values.len() / dims) as u64, dims as u64]);
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    replace_file(path, &[&head, &bytes]).map_err(Error::file(path))
}

/// Returns the header's text and the offset of the data.
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

/// Returns the element kind and the shape of a header such as `{'descr': '<f4', 'fortran_order':
/// False, 'shape': (3, 4), }`.
fn parse_header(header: &str) -> Result<(ElementKind, Vec<u64>), String> {
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
                    .ok_or_else(|| "contains records; points must be plain numbers".to_owned())?;
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

fn parse_kind(descr: &str) -> Result<ElementKind, String> {
    let known = KINDS.iter().find(|(name, _)| *name == descr);
    known.map(|(_, kind)| *kind).ok_or_else(|| {
        format!(
            "has elements of type '{descr}'; supported are |u1, |i1, <i4, <f2, <f4 and <f8; convert it with numpy's astype"
        )
    })
}

fn parse_shape(text: &str) -> Option<Vec<u64>> {
    let text = text.trim();
    let text = text.strip_suffix(',').unwrap_or(text);
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|n| n.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_written_header_is_read_back() {
        for (kind, shape) in [
            (ElementKind::U8, vec![5, 3]),
            (ElementKind::I32, vec![7]),
            (ElementKind::F64, vec![u64::MAX, 1]),
        ] {
            let bytes = Header::write(kind, &shape);
            assert_eq!(Header::read(&bytes), Ok(Header { kind, shape, start: bytes.len() }));
            assert!(bytes.len().is_multiple_of(64));
        }
    }

    #[test]
    fn headers_as_numpy_writes_them_are_understood() {
        let h = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }      \n";
        assert_eq!(parse_header(h), Ok((ElementKind::F32, vec![1, 2])));
        assert_eq!(
            parse_header("{'descr': '<f2', 'fortran_order': False, 'shape': (), }"),
            Ok((ElementKind::F16, vec![]))
        );
    }

    #[test]
    fn unsupported_arrays_are_refused_with_the_reason() {
        let cases = [
            ("{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1), }", "'<i8'"),
            ("{'descr': '>f4', 'fortran_order': False, 'shape': (1, 1), }", "'>f4'"),
            ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 1), }", "records"),
            ("{'descr': '<f8', 'fortran_order': True, 'shape': (1, 1), }", "Fortran"),
            ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 1), }", "not numpy's"),
            ("{'descr': '<f8', 'shape': (1, 1)}", "not numpy's"),
            ("import os", "not numpy's"),
        ];
        for (header, expected) in cases {
            let message = parse_header(header).expect_err("refused");
            assert!(message.contains(expected), "{header}: {message}");
        }
        let refused = |bytes: &[u8]| Header::read(bytes).expect_err("refused");
        assert!(refused(b"").contains("not an .npy file"));
        assert!(refused(b"\x93NUMPY\x09\x00aaaa").contains("version"));
        assert!(refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{").contains("header"));
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
