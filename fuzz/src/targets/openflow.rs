//! OpenFlow messages from a switch, or from any host that connects as one: an accepted message must
//! be encoded to the same bytes, regardless of the pieces in which it arrives.

use rs_openflow::{Framer, HEADER_LEN, MAX_LEN, Message, Padding, VERSION};

pub(crate) fn check(bytes: &[u8]) {
    message(bytes);
    // The same bytes behind a valid header, so that the rest is tested too.
    if (HEADER_LEN..=MAX_LEN).contains(&bytes.len()) {
        let mut bytes = bytes.to_vec();
        let [high, low] = (bytes.len() as u16).to_be_bytes();
        (bytes[0], bytes[2], bytes[3]) = (VERSION, high, low);
        message(&bytes);
    }
    stream(bytes);
}

fn message(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(message.encode().as_deref(), Ok(bytes), "{message:?}");
        assert!(!message.to_string().is_empty());
    }
    if let Ok(message) = Message::decode_with(bytes, Padding::Ignore) {
        let clean = message.encode().expect("what was read can be written");
        assert_eq!(clean.len(), bytes.len());
        assert_eq!(Message::decode(&clean), Ok(message));
    }
}

fn stream(bytes: &[u8]) {
    let mut whole = Framer::default();
    whole.push(bytes);
    let messages: Vec<_> = whole.by_ref().collect();
    assert!(whole.pending() <= MAX_LEN);

    let mut pieces = Framer::default();
    let mut again = Vec::new();
    for piece in bytes.chunks(7) {
        pieces.push(piece);
        again.extend(pieces.by_ref());
    }
    assert_eq!(again, messages);
    assert_eq!(pieces.pending(), whole.pending());
}

/// Returns the messages captured from Open vSwitch.
#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../core/openflow/tests/golden");
    let mut seeds = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().ends_with("-switch") {
            let mut framer = Framer::default();
            framer.push(&std::fs::read(path).unwrap());
            // The longest, with 60 kB, would take most of the time.
            seeds.extend(framer.map(|message| message.unwrap().encode().unwrap()).filter(|m| m.len() < 4096));
        }
    }
    seeds.sort();
    seeds.dedup();
    seeds
}

target!();
