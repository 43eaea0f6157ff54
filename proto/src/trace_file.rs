//! Trace files. They contain the records of a run without a controller, which the agents would
//! otherwise send to the controller.

use crate::control::TraceEvent;
use prost::Message as _;

/// First bytes of a trace file.
const MAGIC: &[u8] = b"COOL trace 1\n";

/// The reasons why bytes are not a trace file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceFileError {
    /// The file begins with other bytes.
    #[error("is not a COOL trace, or has an incompatible version")]
    Another,
    /// The file is truncated or damaged.
    #[error("is damaged: {0}")]
    Damaged(#[from] prost::DecodeError),
}

/// Returns the content of a file with these events.
pub fn encode(events: &[TraceEvent]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for event in events {
        bytes.extend(event.encode_length_delimited_to_vec());
    }
    bytes
}

/// Returns the events in the content of a file.
///
/// # Errors
/// Returns an error if the content is not that of a trace file.
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
    fn only_written_events_are_read() {
        let event = |node: &str| TraceEvent { node: node.into(), ..TraceEvent::default() };
        let events = [event("n0"), event("n1")];
        let bytes = encode(&events);
        assert_eq!(decode(&bytes).unwrap(), events);
        assert_eq!(decode(b"{}"), Err(TraceFileError::Another));
        assert!(matches!(decode(&bytes[..bytes.len() - 1]), Err(TraceFileError::Damaged(_))));
    }
}
