//! Cutting a stream of bytes into messages.

use crate::Error;
use crate::codec::Padding;
use crate::message::{HEADER_LEN, Message};

/// Takes the bytes of a stream as they come and gives the messages in them.
///
/// ```
/// use rs_openflow::{Body, Framer, Message};
///
/// let bytes = Message::new(7, Body::BarrierRequest).encode()?;
/// let mut framer = Framer::default();
/// framer.push(&bytes[..5]);
/// assert_eq!(framer.next(), None);
/// framer.push(&bytes[5..]);
/// assert_eq!(framer.next(), Some(Ok(Message::new(7, Body::BarrierRequest))));
/// # Ok::<(), rs_openflow::Error>(())
/// ```
///
/// It keeps what was pushed and not yet taken. Who takes all messages after every push bounds that by
/// one message (65,535 bytes) and one push.
///
/// A message that cannot be read is an error in the place of that message, and the stream goes on
/// behind it. A header whose length is impossible leaves no way to find the next message: that is the
/// last error, nothing comes after it, and what is pushed later is not kept.
#[derive(Debug, Clone, Default)]
pub struct Framer {
    buffer: Vec<u8>,
    start: usize,
    padding: Padding,
    broken: bool,
}

impl Framer {
    /// A framer that treats padding as told.
    #[must_use]
    pub fn new(padding: Padding) -> Self {
        Self { padding, ..Self::default() }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.broken {
            return;
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// How many bytes wait for the rest of their message, or to be taken.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// The bytes of the next message that is complete, whether it can be read or not.
    ///
    /// # Errors
    ///
    /// If its header gives an impossible length; only once, then there is no next message.
    pub fn next_bytes(&mut self) -> Option<Result<&[u8], Error>> {
        let waiting = &self.buffer[self.start..];
        let &[_, _, high, low, ..] = waiting else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length < HEADER_LEN {
            *self = Self { broken: true, ..Self::new(self.padding) };
            let rule = "at least 8, its header; the stream cannot be read further";
            return Some(Err(Error::Length { what: "message", offset: 0, length, rule }));
        }
        let end = self.start + length;
        let bytes = self.buffer.get(self.start..end)?;
        self.start = end;
        Some(Ok(bytes))
    }
}

impl Iterator for Framer {
    type Item = Result<Message, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let padding = self.padding;
        self.next_bytes().map(|bytes| Message::decode_with(bytes?, padding))
    }
}
