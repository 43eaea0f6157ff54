//! Reads big-endian numbers off the front of bytes from outside. Both formats of this crate use it; what fields mean, and
//! that nothing is left over, is theirs to check.

/// The fields that are left.
pub(crate) struct FieldReader<'a> {
    rest: &'a [u8],
    /// Bytes that there were at first.
    len: usize,
}

/// The bytes end within a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TruncatedField {
    /// Bytes that there are.
    pub(crate) len: usize,
    /// Bytes that the fields up to this one need.
    pub(crate) needed: usize,
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader { rest: bytes, len: bytes.len() }
    }

    /// What has not been read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads all that is left.
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
