//! Traces in a file: what agents would tell a controller that asks for them, of a run without a controller.

use crate::control::TraceEvent;
use prost::Message as _;

/// How such a file begins.
const MAGIC: &[u8] = b"COOL trace 1\n";

/// Why bytes are not such a file's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceFileError {
    /// It begins otherwise.
    #[error("is no trace of COOL's, or one of another version")]
    Another,
    /// It ends early, or was damaged.
    #[error("is damaged: {0}")]
    Damaged(#[from] prost::DecodeError),
}

/// The bytes of a file with these events.
pub fn encode(events: &[TraceEvent]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for event in events {
        bytes.extend(event.encode_length_delimited_to_vec());
    }
    bytes
}

/// The events of a file with these bytes.
///
/// # Errors
/// If it is no such file.
pub fn decode(bytes: &[u8]) -> Result<Vec<TraceEvent>, TraceFileError> {
    let mut rest = bytes.strip_prefix(MAGIC).ok_or(TraceFileError::Another)?;
    let mut events = Vec::new();
    while !rest.is_empty() {
        events.push(TraceEvent::decode_length_delimited(&mut rest)?);
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let event = |node: &str| TraceEvent { node: node.into(), ..TraceEvent::default() };
        let events = [event("n0"), event("n1")];
        let bytes = encode(&events);
        assert_eq!(decode(&bytes).unwrap(), events);
        assert_eq!(decode(b"{}"), Err(TraceFileError::Another));
        assert!(matches!(decode(&bytes[..bytes.len() - 1]), Err(TraceFileError::Damaged(_))));
    }
}
