//! Splits the output of a process into lines.

/// Maximum length of a line in bytes. Longer lines are forwarded in pieces.
pub(super) const MAX_LINE: usize = 16 << 10;

/// A line, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinePiece {
    /// The bytes without the newline.
    pub(super) bytes: Vec<u8>,
    /// Whether a newline follows in the stream.
    pub(super) is_terminated: bool,
}

/// Splits a stream of bytes into lines of bounded length.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    bytes: Vec<u8>,
    /// The number of bytes that have been returned.
    consumed: usize,
}

impl LineSplitter {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next line without its newline, or a piece of a long line. With `all`, a
    /// beginning of a line is returned too.
    pub(super) fn take(&mut self, all: bool) -> Option<LinePiece> {
        let rest = &self.bytes[self.consumed..];
        let (line, newline) = match rest.iter().take(MAX_LINE + 1).position(|b| *b == b'\n') {
            Some(end) => (&rest[..end], 1),
            None if rest.len() > MAX_LINE => (&rest[..MAX_LINE], 0),
            None if all && !rest.is_empty() => (rest, 0),
            None => return None,
        };
        let piece = LinePiece { bytes: line.to_vec(), is_terminated: newline > 0 };
        self.consumed += piece.bytes.len() + newline;
        Some(piece)
    }

    /// Returns whether there are bytes that have not been returned.
    pub(super) fn has_rest(&self) -> bool {
        self.consumed < self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_are_bounded_and_lose_no_byte(
            stream in proptest::collection::vec(prop_oneof![3 => Just(b'x'), 1 => Just(b'\n')], 0..200),
            long in 0..3usize,
            cut in 1usize..5000,
        ) {
            let stream = [vec![b'y'; long * MAX_LINE + cut], stream].concat();
            let (mut lines, mut taken) = (LineSplitter::default(), Vec::new());
            for (at, chunk) in stream.chunks(cut).enumerate() {
                lines.push(chunk);
                // Sometimes the beginning of a line is taken before its end is known.
                while let Some(line) = lines.take(at % 3 == 2) {
                    taken.push(line);
                }
            }
            while let Some(line) = lines.take(true) {
                taken.push(line);
            }
            prop_assert!(!lines.has_rest());
            prop_assert!(taken.iter().all(|l| l.bytes.len() <= MAX_LINE && !l.bytes.contains(&b'\n')));
            let bytes = taken.into_iter().flat_map(|line| {
                [line.bytes, if line.is_terminated { b"\n".to_vec() } else { Vec::new() }].concat()
            });
            prop_assert_eq!(bytes.collect::<Vec<u8>>(), stream);
        }
    }
}
