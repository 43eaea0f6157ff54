//! Encodes and decodes frames between a rank and its agent: a 32-bit big-endian length, followed by
//! a [`local::Frame`]. [`crate::socket`] transfers the bytes.

use crate::local::{self, frame::Body};
use prost::Message as _;

/// Maximum length of a frame from a rank, in bytes. All of these frames are small.
pub const MAX_TO_AGENT: usize = 4 << 10;

/// Maximum length of a frame from an agent, in bytes. `Attached` contains the place of every rank.
pub const MAX_TO_RANK: usize = 16 << 20;

/// Maximum length of the text of a plan, in bytes, so that a call with a plan fits
/// [`MAX_TO_AGENT`].
pub const MAX_PLAN: usize = 1 << 10;

/// Size of the length field, in bytes.
const HEADER_BYTES: usize = 4;

/// The reasons why bytes are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is longer than this side accepts.
    #[error("a frame of {len} bytes; at most {limit} are accepted")]
    TooLong {
        /// Length in the header.
        len: usize,
        /// Maximum length that is accepted.
        limit: usize,
    },
    /// The bytes are not a protobuf message of the contract.
    #[error("not a frame of COOL's local protocol: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// The frame has no body, or one that this version does not know.
    #[error("unknown kind of frame; install the same release of libcool and agent")]
    Unknown,
}

/// Returns the bytes of a frame.
///
/// # Errors
/// Returns an error if the frame is longer than `limit`, which must be the limit of the receiver.
pub fn encode(body: Body, limit: usize) -> Result<Vec<u8>, FrameError> {
    let frame = local::Frame { body: Some(body) };
    let len = frame.encoded_len();
    match u32::try_from(len) {
        Ok(header) if len <= limit => {
            let mut bytes = Vec::with_capacity(HEADER_BYTES + len);
            bytes.extend_from_slice(&header.to_be_bytes());
            bytes.extend_from_slice(&frame.encode_to_vec());
            Ok(bytes)
        }
        _ => Err(FrameError::TooLong { len, limit }),
    }
}

/// Splits a stream of bytes into frames.
///
/// Holds at most one incomplete frame and the bytes that were pushed since frames were last taken.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    limit: usize,
}

impl Decoder {
    /// Returns a decoder for frames of at most `limit` bytes.
    pub fn new(limit: usize) -> Decoder {
        Decoder { buffer: Vec::new(), limit }
    }

    /// Adds received bytes. The caller must then call [`Decoder::take`] until it returns `None`.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame, or `None` if it is incomplete.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a frame. The stream is unusable then.
    pub fn take(&mut self) -> Result<Option<Body>, FrameError> {
        let Some((header, rest)) = self.buffer.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let len = u32::from_be_bytes(*header) as usize;
        if len > self.limit {
            return Err(FrameError::TooLong { len, limit: self.limit });
        }
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        let body = local::Frame::decode(frame)?.body.ok_or(FrameError::Unknown)?;
        self.buffer.drain(..HEADER_BYTES + len);
        Ok(Some(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{Attach, Refused, Unmap};
    use proptest::prelude::*;

    fn attach(rank: u32) -> Body {
        Body::Attach(Attach {
            version: crate::VERSION,
            group: 7,
            rank,
            segment: false,
            quick: false,
            long_quick: false,
        })
    }

    #[test]
    fn a_frame_is_whole_only_with_its_last_byte() {
        let bytes = encode(attach(3), MAX_TO_AGENT).unwrap();
        for cut in 0..bytes.len() {
            let mut decoder = Decoder::new(MAX_TO_AGENT);
            decoder.push(&bytes[..cut]);
            assert_eq!(decoder.take(), Ok(None), "{cut} of {} bytes", bytes.len());
            decoder.push(&bytes[cut..]);
            assert_eq!(decoder.take(), Ok(Some(attach(3))));
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_is_refused_by_its_header_alone() {
        let mut decoder = Decoder::new(10);
        decoder.push(&11u32.to_be_bytes());
        assert_eq!(decoder.take(), Err(FrameError::TooLong { len: 11, limit: 10 }));
        let long = Body::Refused(Refused { message: "x".repeat(100) });
        assert!(matches!(encode(long, 10), Err(FrameError::TooLong { limit: 10, .. })));
    }

    #[test]
    fn the_longest_call_is_a_frame_that_agents_accept() {
        let slice = Some(local::Slice { region: u32::MAX, offset: u64::MAX, bytes: u64::MAX });
        let call = local::Call {
            id: u64::MAX,
            group: u64::MAX,
            operation: i32::MIN,
            root: u32::MAX,
            dtype: i32::MIN,
            reduce: i32::MIN,
            count: u64::MAX,
            input: slice,
            output: slice,
            timeout_ms: u64::MAX,
            counts: slice,
            plan: "x".repeat(MAX_PLAN),
            number: Some(u64::MAX),
            watch: true,
            background: true,
        };
        assert!(encode(Body::Call(call), MAX_TO_AGENT).is_ok());
    }

    #[test]
    fn a_frame_of_no_kind_is_refused() {
        let mut decoder = Decoder::new(MAX_TO_AGENT);
        decoder.push(&0u32.to_be_bytes());
        assert_eq!(decoder.take(), Err(FrameError::Unknown));
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting_of_the_stream(
            ranks in proptest::collection::vec(any::<u32>(), 0..20),
            cut in 1usize..50,
        ) {
            let mut stream = Vec::new();
            for rank in &ranks {
                stream.extend(encode(attach(*rank), MAX_TO_AGENT).unwrap());
                stream.extend(encode(Body::Unmap(Unmap { region: *rank }), MAX_TO_AGENT).unwrap());
            }
            let mut decoder = Decoder::new(MAX_TO_AGENT);
            let mut heard = Vec::new();
            for piece in stream.chunks(cut) {
                decoder.push(piece);
                while let Some(body) = decoder.take().unwrap() {
                    heard.push(body);
                }
            }
            let sent: Vec<Body> =
                ranks.iter().flat_map(|r| [attach(*r), Body::Unmap(Unmap { region: *r })]).collect();
            prop_assert_eq!(heard, sent);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic_or_run_for_ever(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut decoder = Decoder::new(MAX_TO_AGENT);
            decoder.push(&bytes);
            let mut frames = 0;
            while let Ok(Some(_)) = decoder.take() {
                frames += 1;
            }
            prop_assert!(frames <= bytes.len() / HEADER_BYTES);
        }
    }
}
