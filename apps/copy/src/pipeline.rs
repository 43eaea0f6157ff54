//! A pipeline of pieces: broadcasts one behind the other, several of them in flight.
//!
//! Every piece ends with the head of a later one. Receivers therefore start the broadcast of a
//! piece before the source does: the source need not announce it, and none of its packets arrives
//! before it is expected.

use crate::in_flight::InFlight;
use cool::{Comm, Error};
use std::collections::VecDeque;

/// Number of broadcasts that the source has in flight. When one ends, the next has already started.
const SENDING: usize = 2;
/// Number of broadcasts that receivers have in flight.
const EXPECTED: usize = SENDING + 1;
/// Length in bytes of the head at the end of a piece, which consists of two little-endian words.
const TAIL_BYTES: usize = 2 * size_of::<u64>();

/// The form of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceForm {
    Plain,
    Compressed,
    /// Not data: the reason why the source cannot be sent.
    SourceFailed,
    /// Not data: the pass ends early, because late ranks wait to be admitted.
    Admission,
    /// Not data: there are no more pieces.
    End,
}

/// A piece as it is sent: its form and its bytes.
pub(crate) type PackedPiece = (PieceForm, Vec<u8>);

/// The properties of a piece that receivers must know before it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceHead {
    pub(crate) form: PieceForm,
    pub(crate) bytes: usize,
}

impl PieceHead {
    const END: PieceHead = PieceHead { form: PieceForm::End, bytes: 0 };

    fn for_piece(packed: Option<&PackedPiece>) -> PieceHead {
        packed.map_or(PieceHead::END, |(form, bytes)| PieceHead { form: *form, bytes: bytes.len() })
    }

    pub(crate) fn to_words(self) -> [u64; 2] {
        let form = match self.form {
            PieceForm::Plain => 0,
            PieceForm::Compressed => 1,
            PieceForm::SourceFailed => 2,
            PieceForm::End => 3,
            PieceForm::Admission => 4,
        };
        [form, self.bytes as u64]
    }

    pub(crate) fn from_words([form, bytes]: [u64; 2]) -> PieceHead {
        let form = match form {
            0 => PieceForm::Plain,
            1 => PieceForm::Compressed,
            2 => PieceForm::SourceFailed,
            4 => PieceForm::Admission,
            _ => PieceForm::End,
        };
        PieceHead { form, bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }
    }
}

/// Broadcasts all pieces, and returns the number of bytes sent. The last piece may have the form
/// [`PieceForm::SourceFailed`] or [`PieceForm::Admission`].
pub(crate) fn send(
    comm: &Comm,
    root: usize,
    pieces: &mut dyn Iterator<Item = PackedPiece>,
) -> Result<u64, Error> {
    let mut ready: VecDeque<PackedPiece> = pieces.take(EXPECTED).collect();
    let mut first: Vec<u64> =
        (0..EXPECTED).flat_map(|i| PieceHead::for_piece(ready.get(i)).to_words()).collect();
    comm.bcast(&mut first, root)?;
    let mut in_flight = InFlight::new(comm, root);
    let mut sent = 0;
    while let Some((_, mut bytes)) = ready.pop_front() {
        ready.extend(pieces.next());
        // The head of the first piece that receivers do not expect yet.
        let later = PieceHead::for_piece(ready.get(EXPECTED - 1)).to_words();
        bytes.extend(later.iter().flat_map(|word| word.to_le_bytes()));
        sent += bytes.len() as u64;
        in_flight.start(bytes);
        while in_flight.len() >= SENDING {
            in_flight.next().transpose()?;
        }
    }
    while in_flight.next().transpose()?.is_some() {}
    Ok(sent)
}

/// Receives the pieces that [`send`] broadcasts at the root, and passes each to `on_piece`.
pub(crate) fn receive(
    comm: &Comm,
    root: usize,
    mut on_piece: impl FnMut(PieceForm, Vec<u8>),
) -> Result<(), Error> {
    let mut first = [0; 2 * EXPECTED];
    comm.bcast(&mut first, root)?;
    let mut in_flight = InFlight::new(comm, root);
    let mut heads = VecDeque::new();
    let is_piece = |head: &PieceHead| head.form != PieceForm::End;
    let expected = first.as_chunks::<2>().0.iter().map(|words| PieceHead::from_words(*words));
    for head in expected.filter(is_piece) {
        in_flight.start(vec![0; head.bytes.saturating_add(TAIL_BYTES)]);
        heads.push_back(head);
    }
    while let Some((received, head)) = in_flight.next().zip(heads.pop_front()) {
        let mut bytes = received?;
        let tail = bytes.split_off(head.bytes);
        let words = tail
            .as_chunks()
            .0
            .first_chunk()
            .map_or(PieceHead::END.to_words(), |words| words.map(u64::from_le_bytes));
        if let Some(later) = Some(PieceHead::from_words(words)).filter(is_piece) {
            in_flight.start(vec![0; later.bytes.saturating_add(TAIL_BYTES)]);
            heads.push_back(later);
        }
        on_piece(head.form, bytes);
    }
    Ok(())
}
