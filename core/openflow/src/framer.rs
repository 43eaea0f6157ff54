//! Splits a stream of bytes into messages.

use crate::Error;
use crate::codec::Padding;
use crate::message::{HEADER_LEN, Message};

/// Returns the messages in a stream of bytes, which may arrive in pieces of any size.
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
/// The framer buffers bytes until it has returned their message. A caller should iterate until
/// `None` after every push, because the framer then never buffers more than one message (65,535
/// bytes) and one push.
///
/// For a message that cannot be read, the framer returns an error, and continues with the next
/// message. After a header with an impossible length the next message cannot be found: the framer
/// returns a last error, and drops all later bytes.
#[derive(Debug, Clone, Default)]
pub struct Framer {
    buffer: Vec<u8>,
    start: usize,
    padding: Padding,
    broken: bool,
}

impl Framer {
    /// Returns a framer that treats padding as `padding` requires.
    #[must_use]
    pub fn new(padding: Padding) -> Self {
        Self { padding, ..Self::default() }
    }

    /// Appends the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.broken {
            return;
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the number of buffered bytes: those of messages that have not been returned yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Returns the bytes of the next complete message, whether it can be read or not.
    ///
    /// # Errors
    ///
    /// Fails if the header contains an impossible length. Afterwards there is no next message.
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
