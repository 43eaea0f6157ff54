//! The example program on captured streams, complete and damaged.

#[allow(dead_code, unreachable_pub, reason = "a program of its own; here only its inside is run")]
#[path = "../examples/ofp_dump.rs"]
mod ofp_dump;

use std::fs;
use std::io::Read;

const STREAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/dump-flows.from-switch");

/// Returns the output for `input`, and the error if there is one.
fn dump(input: impl Read, reencode: bool) -> (Vec<u8>, Option<String>) {
    let mut output = Vec::new();
    let error = ofp_dump::dump(input, &mut output, reencode).err();
    (output, error.map(|error| error.to_string()))
}

/// A reader that returns one byte per call, like a slow connection.
struct Dripping<'a>(&'a [u8]);

impl Read for Dripping<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let end = self.0.len().min(1);
        self.0.read(&mut buffer[..end])
    }
}

#[test]
fn a_stream_encodes_to_the_same_bytes_however_it_is_divided() {
    let stream = fs::read(STREAM).unwrap();
    assert_eq!(dump(stream.as_slice(), true), (stream.clone(), None));
    assert_eq!(dump(Dripping(&stream), true), (stream.clone(), None));
    assert_eq!(dump(Dripping(&[]), true), (Vec::new(), None));
}

#[test]
fn each_message_is_a_line() {
    let stream = fs::read(STREAM).unwrap();
    let (words, error) = dump(stream.as_slice(), false);
    assert_eq!(error, None);
    let words = String::from_utf8(words).unwrap();
    let starts: Vec<_> = words.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(starts, ["hello", "multipart_reply"]);
}

#[test]
fn a_last_message_cut_short_is_an_error_after_those_before_it() {
    // A hello of 8 bytes, and 3 bytes of the next message.
    let stream = &fs::read(STREAM).unwrap()[..11];
    let (again, error) = dump(stream, true);
    assert_eq!(again, stream[..8]);
    let expected = "message 2 at byte 8 is cut short: the stream ends after 3 bytes of it";
    assert_eq!(error.as_deref(), Some(expected));
}

#[test]
fn the_first_message_that_cannot_be_read_is_named() {
    let good = [4, 20, 0, 8, 0, 0, 0, 1];
    let bad = [4, 20, 0, 9, 0, 0, 0, 2, 0];
    let (again, error) =
        dump([good, good].concat().iter().chain(&bad).copied().collect::<Vec<_>>().as_slice(), true);
    assert_eq!(again, [good, good].concat());
    let expected = "message 3 at byte 16 cannot be read: message has 1 bytes left over at offset 8";
    assert_eq!(error.as_deref(), Some(expected));
}
