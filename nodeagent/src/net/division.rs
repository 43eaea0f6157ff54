//! The division of the bytes of a connection among its TCP streams.
//!
//! Both sides count the bytes of each direction. Part `i` of [`PART_BYTES`] bytes travels over
//! stream `i` modulo the number of streams. So neither headers nor sequence numbers are needed, and
//! the receiver reads each part directly to its destination. While it reads one stream, the system
//! keeps the parts that arrive early on the others.

use cool_transport::unicast::handshake::STREAMS_MAX;

/// Number of bytes of a part. A longer part costs fewer system calls. A shorter part spreads short
/// messages over more streams: where the rate of streams is limited, a message of 16 KiB takes 4
/// times as long in one part, 2 times as long in two, and no longer in four.
pub(super) const PART_BYTES: u64 = 4 * 1024;

/// The position of the next byte of one direction of a connection.
#[derive(Debug)]
pub(super) struct StreamCursor {
    streams: usize,
    stream: usize,
    /// The remaining bytes of the current part.
    left: u64,
}

impl StreamCursor {
    /// Returns the beginning of a connection of this many streams.
    ///
    /// # Panics
    /// Panics if there are no streams or too many.
    pub(super) fn new(streams: usize) -> StreamCursor {
        assert!((1..=usize::from(STREAMS_MAX)).contains(&streams), "a connection has 1 to 16 streams");
        StreamCursor { streams, stream: 0, left: StreamCursor::part(streams) }
    }

    /// Returns the number of bytes of a part. A single stream carries all bytes.
    fn part(streams: usize) -> u64 {
        if streams == 1 { u64::MAX } else { PART_BYTES }
    }

    /// Returns the index of the stream that carries the next byte.
    pub(super) fn stream(&self) -> usize {
        self.stream
    }

    /// Returns how many of the next bytes that stream carries, at least one.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Returns how many of the next `bytes` bytes that stream carries.
    pub(super) fn left_of(&self, bytes: usize) -> usize {
        // The result is at most `bytes`.
        self.left.min(bytes as u64) as usize
    }

    /// Moves the position forward, by at most [`StreamCursor::left`] bytes.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.left -= bytes;
        if self.left == 0 {
            self.stream = (self.stream + 1) % self.streams;
            self.left = StreamCursor::part(self.streams);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_single_stream_carries_everything() {
        let mut cursor = StreamCursor::new(1);
        cursor.advance(PART_BYTES);
        cursor.advance(1);
        assert_eq!((cursor.stream(), cursor.left_of(1 << 40)), (0, 1 << 40));
    }

    proptest! {
        #[test]
        fn parts_follow_each_other_however_bytes_are_counted(
            streams in 2..=16usize,
            steps in prop::collection::vec(0..=3 * PART_BYTES, 1..50),
        ) {
            let (mut cursor, mut position) = (StreamCursor::new(streams), 0);
            for mut step in steps {
                while step > 0 {
                    let part = position / PART_BYTES;
                    prop_assert_eq!(cursor.stream() as u64, part % streams as u64);
                    prop_assert_eq!(cursor.left(), PART_BYTES * (part + 1) - position);
                    let bytes = step.min(cursor.left());
                    cursor.advance(bytes);
                    (position, step) = (position + bytes, step - bytes);
                }
            }
        }
    }
}
