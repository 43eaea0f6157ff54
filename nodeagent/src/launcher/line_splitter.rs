//! Splits the output of a process into lines.

/// Maximum length of a line in bytes. Longer lines are forwarded in pieces.
pub(super) const MAX_LINE: usize = 16 << 10;

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

    /// Returns the next line without its newline. At the end of the stream, a last line without a
    /// newline is returned too.
    pub(super) fn take(&mut self, ended: bool) -> Option<Vec<u8>> {
        let rest = &self.bytes[self.consumed..];
        let (line, newline) = match rest.iter().take(MAX_LINE + 1).position(|b| *b == b'\n') {
            Some(end) => (&rest[..end], 1),
            None if rest.len() > MAX_LINE => (&rest[..MAX_LINE], 0),
            None if ended && !rest.is_empty() => (rest, 0),
            None => return None,
        };
        let line = line.to_vec();
        self.consumed += line.len() + newline;
        Some(line)
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
            let (mut lines, mut consumed) = (LineSplitter::default(), Vec::new());
            for piece in stream.chunks(cut) {
                lines.push(piece);
                while let Some(line) = lines.take(false) {
                    consumed.push(line);
                }
            }
            while let Some(line) = lines.take(true) {
                consumed.push(line);
            }
            prop_assert!(consumed.iter().all(|line| line.len() <= MAX_LINE && !line.contains(&b'\n')));
            let without = |bytes: &[u8]| bytes.iter().filter(|b| **b != b'\n').count();
            prop_assert_eq!(consumed.iter().map(Vec::len).sum::<usize>(), without(&stream));
        }
    }
}
