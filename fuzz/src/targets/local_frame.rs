//! Frames on an agent's Unix socket, from any process of the node: an accepted frame must be
//! encoded again and decode to the same, and the division of the bytes into pieces must not matter.

use cool_proto::frame::{Decoder, FrameError, MAX_TO_AGENT, encode};
use cool_proto::local::frame::Body;

/// Returns the frames in `bytes`, up to the first error.
fn frames<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Body>, Option<FrameError>) {
    let mut decoder = Decoder::new(MAX_TO_AGENT);
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.take() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

pub(crate) fn check(bytes: &[u8]) {
    let (whole, error) = frames(std::iter::once(bytes));
    assert_eq!(frames(bytes.chunks(3)), (whole.clone(), error));
    for frame in whole {
        // Protobuf allows longer encodings of the same frame than ours.
        let again = encode(frame.clone(), MAX_TO_AGENT).expect("what was read can be made");
        assert_eq!(frames(std::iter::once(again.as_slice())), (vec![frame], None));
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_proto::local::{Attach, Call, Map, Refused, Unmap};

    let bodies = [
        Body::Attach(Attach {
            version: cool_proto::VERSION,
            group: 7,
            rank: 3,
            segment: true,
            quick: true,
            long_quick: true,
        }),
        Body::Map(Map::default()),
        Body::Unmap(Unmap::default()),
        Body::Call(Call { group: 7, count: 1000, ..Call::default() }),
        Body::Refused(Refused { message: "no such group".into() }),
    ];
    bodies.map(|body| encode(body, MAX_TO_AGENT).unwrap()).to_vec()
}

target!();
