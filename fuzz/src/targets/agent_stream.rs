//! The stream between agents, from any host that connects: after a failure a peer must produce no
//! further output, and the division of the bytes into pieces must not matter.

use cool_machine::{Machine, Poll, Time};
use cool_transport::unicast::{AgentId, Input, MessageName, Output, PeerStream, greeting};

const MESSAGE: MessageName = MessageName { group: 1, epoch: 2, call: 3, transfer: 4, from: 5, to: 6 };

/// Returns all outputs of `peer`. Data to send counts as sent at once.
fn drain(peer: &mut PeerStream) -> Vec<Output> {
    std::iter::from_fn(|| match peer.poll(Time::ZERO) {
        Poll::Output(output) => {
            if let Output::Write { head, payload } = &output {
                let bytes = head.len() as u64 + payload.map_or(0, |payload| u64::from(payload.len));
                peer.handle(Time::ZERO, Input::Written(bytes));
            }
            Some(output)
        }
        Poll::Idle(_) => None,
    })
    .collect()
}

fn peer(name: &str, other: &str) -> PeerStream {
    let mut peer = PeerStream::new(&AgentId { node: name.to_owned(), incarnation: 7 }, other);
    peer.handle(Time::ZERO, Input::Open { group: MESSAGE.group, epoch: MESSAGE.epoch });
    peer
}

/// Passes `pieces` to a peer that waits for a message. Returns its outputs, and the number of data
/// bytes.
fn receive<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Output>, usize) {
    let mut peer = peer("h1", "h2");
    peer.handle(Time::ZERO, Input::Accept(MESSAGE));
    let (mut told, mut data) = (Vec::new(), 0);
    for piece in pieces {
        peer.handle(Time::ZERO, Input::Bytes(piece));
        for output in drain(&mut peer) {
            assert!(!matches!(told.last(), Some(Output::Failed(_))), "{output:?} after a failure");
            match output {
                Output::Write { .. } => {}
                Output::Data { within, .. } => {
                    assert!(within.end <= piece.len());
                    data += within.len();
                }
                other => told.push(other),
            }
        }
    }
    (told, data)
}

pub(crate) fn check(bytes: &[u8]) {
    let whole = receive(std::iter::once(bytes));
    assert_eq!(receive(bytes.chunks(5)), whole);
    if let Ok(Some(who)) = greeting(bytes) {
        assert_eq!(whole.0.first(), Some(&Output::Hello(who)));
    }
}

/// Returns the bytes that a peer writes to another peer that accepts everything.
#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_transport::unicast::Notice;

    let (group, epoch) = (MESSAGE.group, MESSAGE.epoch);
    let inputs = [
        Input::Send { message: MESSAGE, digest: 9, bytes: 100, announce: false },
        Input::Send { message: MESSAGE, digest: 9, bytes: 10_000_000, announce: false },
        Input::Notify(Notice::Abort { group, epoch, kind: 1, ranks: vec![1, 2], text: "gone".into() }),
        Input::Notify(Notice::RankLost { group, epoch, call: 3, rank: 4, text: "ended".into() }),
        Input::Notify(Notice::WaitingQuery { group, epoch }),
        Input::Notify(Notice::WaitingRanks { group, epoch, ranks: vec![1, 2], messages: vec![(3, 4)] }),
    ];
    let stream = |input| {
        let mut peer = peer("h2", "h1");
        peer.handle(Time::ZERO, input);
        let mut bytes = Vec::new();
        for output in drain(&mut peer) {
            if let Output::Write { head, payload } = output {
                bytes.extend(head);
                bytes.resize(bytes.len() + payload.map_or(0, |payload| payload.len as usize), 7);
            }
        }
        bytes
    };
    inputs.map(stream).to_vec()
}

target!();
