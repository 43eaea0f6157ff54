//! Pieces on their way: broadcasts one behind the other, with some under way at once.
//!
//! At its end each piece tells what comes some pieces later. So receivers begin a broadcast before the source does: nobody has to hear of it
//! first, and no packet of it comes before it is expected.

use super::flight::Flight;
use cool::{Comm, Error};
use std::collections::VecDeque;

/// Pieces that the source sends at once: while one ends, the next has begun.
const SENDING: usize = 2;
/// Pieces that receivers expect at once.
const EXPECTED: usize = SENDING + 1;
/// At the end of a piece: a head, in little-endian words.
const TAIL: usize = 2 * size_of::<u64>();

/// How the bytes of a piece go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    Compressed,
    /// No piece: the source says why it gives up.
    GivesUp,
    /// No piece: the pass ends before all has come, since newcomers wait.
    Admits,
    /// No piece any more.
    End,
}

/// A piece on its way: its form and its bytes.
pub(super) type Packed = (Form, Vec<u8>);

/// What is known of a piece before it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) form: Form,
    pub(super) bytes: usize,
}

impl Head {
    const END: Head = Head { form: Form::End, bytes: 0 };

    fn about(packed: Option<&Packed>) -> Head {
        packed.map_or(Head::END, |(form, bytes)| Head { form: *form, bytes: bytes.len() })
    }

    pub(super) fn words(self) -> [u64; 2] {
        let form = match self.form {
            Form::Plain => 0,
            Form::Compressed => 1,
            Form::GivesUp => 2,
            Form::End => 3,
            Form::Admits => 4,
        };
        [form, self.bytes as u64]
    }

    pub(super) fn of([form, bytes]: [u64; 2]) -> Head {
        let form = match form {
            0 => Form::Plain,
            1 => Form::Compressed,
            2 => Form::GivesUp,
            4 => Form::Admits,
            _ => Form::End,
        };
        Head { form, bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }
    }
}

/// Broadcasts pieces, the last of which may be that the source gives up; the bytes that were sent.
pub(super) fn send(comm: &Comm, root: usize, pieces: &mut dyn Iterator<Item = Packed>) -> Result<u64, Error> {
    let mut ready: VecDeque<Packed> = pieces.take(EXPECTED).collect();
    let mut first: Vec<u64> = (0..EXPECTED).flat_map(|i| Head::about(ready.get(i)).words()).collect();
    comm.bcast(&mut first, root)?;
    let mut flight = Flight::new(comm, root);
    let mut sent = 0;
    while let Some((_, mut bytes)) = ready.pop_front() {
        ready.extend(pieces.next());
        // Behind the pieces that are expected already.
        let later = Head::about(ready.get(EXPECTED - 1)).words();
        bytes.extend(later.iter().flat_map(|word| word.to_le_bytes()));
        sent += bytes.len() as u64;
        flight.start(bytes);
        while flight.len() >= SENDING {
            flight.next().transpose()?;
        }
    }
    while flight.next().transpose()?.is_some() {}
    Ok(sent)
}

/// Receives what [`send`] sends at the root, and gives it to `take`, piece by piece.
pub(super) fn receive(comm: &Comm, root: usize, mut take: impl FnMut(Form, Vec<u8>)) -> Result<(), Error> {
    let mut first = [0; 2 * EXPECTED];
    comm.bcast(&mut first, root)?;
    let mut flight = Flight::new(comm, root);
    let mut heads = VecDeque::new();
    let coming = |head: &Head| head.form != Form::End;
    for head in first.as_chunks::<2>().0.iter().map(|words| Head::of(*words)).filter(coming) {
        flight.start(vec![0; head.bytes.saturating_add(TAIL)]);
        heads.push_back(head);
    }
    while let Some((came, head)) = flight.next().zip(heads.pop_front()) {
        let mut bytes = came?;
        let tail = bytes.split_off(head.bytes);
        let words =
            tail.as_chunks().0.first_chunk().map_or(Head::END.words(), |words| words.map(u64::from_le_bytes));
        if let Some(later) = Some(Head::of(words)).filter(coming) {
            flight.start(vec![0; later.bytes.saturating_add(TAIL)]);
            heads.push_back(later);
        }
        take(head.form, bytes);
    }
    Ok(())
}
