//! Reads big-endian numbers from the front of untrusted bytes. The decoders of both wire formats of
//! this crate use it. They must check the values of the fields, and that no bytes are left over.

/// A cursor over the fields that are left.
pub(crate) struct FieldReader<'a> {
    rest: &'a [u8],
    /// Length of the bytes at the start.
    len: usize,
}

/// The bytes end within a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TruncatedField {
    /// Length of the bytes.
    pub(crate) len: usize,
    /// Length that the fields up to this one need.
    pub(crate) needed: usize,
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader { rest: bytes, len: bytes.len() }
    }

    /// Returns the bytes that have not been read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads and returns all bytes that are left.
    pub(crate) fn take_rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], TruncatedField> {
        let Some((field, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(TruncatedField { len: self.len, needed: self.len - self.rest.len() + N });
        };
        self.rest = rest;
        Ok(*field)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, TruncatedField> {
        self.take().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, TruncatedField> {
        self.take().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, TruncatedField> {
        self.take().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, TruncatedField> {
        self.take().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_field_reports_the_bytes_it_needs() {
        let mut reader = FieldReader::new(&[1, 2, 3, 4, 5]);
        assert_eq!((reader.u8(), reader.u16()), (Ok(1), Ok(0x0203)));
        assert_eq!(reader.u32(), Err(TruncatedField { len: 5, needed: 7 }));
        assert_eq!((reader.rest(), reader.take_rest(), reader.rest()), (&[4, 5][..], &[4, 5][..], &[][..]));
    }
}
