//! Reading and writing of messages. A reader of a nested part can read only the bytes of this part,
//! and reports an error if some of them remain unread. A writer fills in the length of a part once
//! the part is complete. The other modules define what the bytes mean.

use std::fmt;

use crate::Error;

/// Treatment of padding bytes that are not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Padding {
    /// Refuse them, so that everything that was read can be written back byte for byte.
    #[default]
    Strict,
    /// Read them as zero, because some switches send uninitialized memory as padding.
    Ignore,
}

/// A value with a binary form and a text form.
pub(crate) trait WireFormat: Sized {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error>;
    fn write(&self, w: &mut Writer);
    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// A value of which a list may fill the rest of a part of a message. Reading one must consume at
/// least one byte, because the list would otherwise never end.
pub(crate) trait ListItem: WireFormat {}

/// A tagged union: a type field in front determines the type of the content.
pub(crate) trait TaggedUnion: Sized {
    type Kind: WireFormat;

    fn kind(&self) -> Self::Kind;
    fn read_as(kind: Self::Kind, r: &mut Reader<'_>) -> Result<Self, Error>;
    fn write_content(&self, w: &mut Writer);
    fn display_content(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// The unread bytes of one part of a message.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    what: &'static str,
    offset: usize,
    padding: Padding,
    version: u8,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], padding: Padding) -> Self {
        Self { bytes, what: "message", offset: 0, padding, version: 0 }
    }

    /// Returns the version in the header of the message, or 0 before that is read.
    pub(crate) fn version(&self) -> u8 {
        self.version
    }

    pub(crate) fn set_version(&mut self, version: u8) {
        self.version = version;
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let Some((taken, rest)) = self.bytes.split_at_checked(count) else {
            let (what, offset, left) = (self.what, self.offset, self.bytes.len());
            return Err(Error::Truncated { what, offset, needed: count, left });
        };
        self.bytes = rest;
        self.offset += count;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn get<T: WireFormat>(&mut self) -> Result<T, Error> {
        T::read(self)
    }

    /// Returns all remaining bytes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let rest = self.bytes.to_vec();
        self.offset += rest.len();
        self.bytes = &[];
        rest
    }

    pub(crate) fn pad(&mut self, count: usize) -> Result<(), Error> {
        let (what, offset, padding) = (self.what, self.offset, self.padding);
        match self.take(count)?.iter().position(|&byte| byte != 0) {
            Some(at) if padding == Padding::Strict => Err(Error::Padding { what, offset: offset + at }),
            _ => Ok(()),
        }
    }

    /// Skips the padding that extends a part of `length` bytes to a multiple of eight.
    pub(crate) fn pad_after(&mut self, length: usize) -> Result<(), Error> {
        self.pad(length.next_multiple_of(8) - length)
    }

    /// Reads a value with the name that errors must use.
    pub(crate) fn named<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let outer = std::mem::replace(&mut self.what, what);
        let value = read(self)?;
        self.what = outer;
        Ok(value)
    }

    /// Passes the next `length` bytes to `read`, which must use all of them.
    pub(crate) fn part<T>(
        &mut self,
        what: &'static str,
        length: usize,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut part = Reader { what, ..self.clone() };
        part.bytes = self.named(what, |r| r.take(length))?;
        let value = read(&mut part)?;
        part.finish()?;
        Ok(value)
    }

    /// Reads the 16-bit length of the part that began at offset `start`, and passes the rest of
    /// this part to `read`, which must use all of it.
    pub(crate) fn measured<T>(
        &mut self,
        what: &'static str,
        start: usize,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let length: u16 = self.named(what, |r| r.get())?;
        let header = self.offset - start;
        let Some(left) = usize::from(length).checked_sub(header) else {
            let length = usize::from(length);
            return Err(Error::Length { what, offset: start, length, rule: "at least its own header" });
        };
        self.part(what, left, read)
    }

    /// Does the same as [`measured`](Self::measured) for parts with a length that must be a
    /// multiple of eight.
    pub(crate) fn measured_by_8<T>(
        &mut self,
        what: &'static str,
        start: usize,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let length: u16 = self.clone().get()?;
        if length == 0 || !length.is_multiple_of(8) {
            let length = usize::from(length);
            return Err(Error::Length { what, offset: start, length, rule: "a multiple of 8, not 0" });
        }
        self.measured(what, start, read)
    }

    pub(crate) fn finish(self) -> Result<(), Error> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(Error::LeftOver { what: self.what, offset: self.offset, left }),
        }
    }
}

/// A message that is being written. The first error is kept until [`finish`](Writer::finish)
/// returns it.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    error: Option<Error>,
}

impl Writer {
    pub(crate) fn put<T: WireFormat>(&mut self, value: &T) {
        value.write(self);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn pad(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    /// Pads the bytes written since `start` to a multiple of eight.
    pub(crate) fn pad_since(&mut self, start: usize) {
        let length = self.bytes.len() - start;
        self.pad(length.next_multiple_of(8) - length);
    }

    pub(crate) fn position(&self) -> usize {
        self.bytes.len()
    }

    /// Writes a 16-bit length, then what `write` writes. The length is the number of bytes since
    /// position `start`, itself included.
    pub(crate) fn measured(&mut self, what: &'static str, start: usize, write: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        self.pad(2);
        write(self);
        let length = self.bytes.len() - start;
        match u16::try_from(length) {
            Ok(short) => self.bytes[at..at + 2].copy_from_slice(&short.to_be_bytes()),
            Err(_) => self.fail(Error::TooLong { what, length, limit: usize::from(u16::MAX) }),
        }
    }

    /// Does the same as [`measured`](Self::measured) for parts with a length that must be a
    /// multiple of eight.
    pub(crate) fn measured_by_8(&mut self, what: &'static str, start: usize, write: impl FnOnce(&mut Self)) {
        self.measured(what, start, write);
        let length = self.bytes.len() - start;
        if !length.is_multiple_of(8) {
            self.fail(Error::Unaligned { what, length });
        }
    }

    /// Writes a length of one byte, then what `write` writes. The length does not count itself.
    pub(crate) fn measured_u8(&mut self, what: &'static str, write: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        self.pad(1);
        write(self);
        let length = self.bytes.len() - at - 1;
        match u8::try_from(length) {
            Ok(short) => self.bytes[at] = short,
            Err(_) => self.fail(Error::TooLong { what, length, limit: usize::from(u8::MAX) }),
        }
    }

    pub(crate) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    pub(crate) fn finish(self) -> Result<Vec<u8>, Error> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.bytes),
        }
    }
}

macro_rules! integers {
    ($($int:ty: $form:literal),*) => { $(
        impl WireFormat for $int {
            fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
                r.array().map(Self::from_be_bytes)
            }
            fn write(&self, w: &mut Writer) {
                w.bytes(&self.to_be_bytes());
            }
            fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $form, self)
            }
        }
    )* };
}

// The 64-bit numbers of OpenFlow are cookies, metadata and identities, which are shown in
// hexadecimal, or counters; see `Counter`.
integers!(u8: "{}", u16: "{}", u32: "{}", u64: "{:#x}");

/// Maximum number of bytes of raw data that are printed: enough for the headers of most packets.
const SHOWN: usize = 64;

/// All bytes up to the end of the part.
impl WireFormat for Vec<u8> {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(r.rest())
    }

    fn write(&self, w: &mut Writer) {
        w.bytes(self);
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())?;
        if !self.is_empty() {
            f.write_str(" ")?;
        }
        self.iter().take(SHOWN).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(if self.len() > SHOWN { "..." } else { "" })
    }
}

impl<T: WireFormat> WireFormat for Box<T> {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        r.get().map(Self::new)
    }

    fn write(&self, w: &mut Writer) {
        w.put(&**self);
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).display(f)
    }
}

/// Items up to the end of the part.
impl<T: ListItem> WireFormat for Vec<T> {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let mut items = Self::new();
        while r.left() > 0 {
            items.push(r.get()?);
        }
        Ok(items)
    }

    fn write(&self, w: &mut Writer) {
        self.iter().for_each(|item| w.put(item));
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, item) in self.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            item.display(f)?;
        }
        f.write_str("]")
    }
}
