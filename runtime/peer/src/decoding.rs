//! Work that protects against wrong bytes, executed in other threads: decoding generations, and
//! comparing coded blocks with the right ones.

use crate::memory::{SharedBytes, sum_of_blocks, sum_of_rows};
use cool_swarm::{Member, Origin, Slot};
use std::collections::BTreeMap;

/// Returns all bytes of a generation, with the padding of its last block. `blocks` are the
/// originals that arrived. `recoveries` contains, for each other original, the coded blocks whose
/// sum it is.
pub(crate) fn decode(
    mut blocks: BTreeMap<u16, SharedBytes>,
    recoveries: &[(u16, Vec<(u8, SharedBytes)>)],
    block: usize,
) -> SharedBytes {
    blocks.extend(recoveries.iter().map(|(number, rows)| (*number, sum_of_rows(rows, block))));
    let blocks: Vec<&[u8]> = blocks.values().map(|bytes| &bytes[..]).collect();
    blocks.concat().into()
}

/// Returns whether only zeros follow the bytes of a generation. This must be checked separately,
/// because the hash does not cover the padding of the last block.
pub(crate) fn is_filled_up(padded: &[u8], bytes: usize) -> bool {
    padded.get(bytes..).is_some_and(|behind| behind.iter().all(|byte| *byte == 0))
}

/// Returns the senders of coded blocks that do not match their announcements, and whether each had
/// checked the generation.
pub(crate) fn wrong_rows(
    suspects: &[Origin],
    rows: &BTreeMap<Slot, SharedBytes>,
    right: &[u8],
    block: usize,
) -> Vec<(Member, bool)> {
    let is_wrong = |suspect: &&Origin| {
        rows.get(&suspect.slot)
            .is_some_and(|row| sum_of_blocks(right, &suspect.row.terms(), block)[..] != row[..])
    };
    suspects.iter().filter(is_wrong).map(|suspect| (suspect.from, suspect.checked)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_swarm::CodedBlock;

    #[test]
    fn the_sender_of_a_wrong_block_is_found() {
        let right = [1, 2, 3, 4];
        let sent = [
            (CodedBlock::Original(1), Slot::Block(1), [3, 4]),
            (CodedBlock::Coded([1, 1].into()), Slot::Coded(0), [1 ^ 3, 2 ^ 4]),
            (CodedBlock::Original(0), Slot::Block(0), [1, 9]),
            (CodedBlock::Coded([0, 1].into()), Slot::Coded(1), [0, 4]),
        ];
        let origin = |(slot, (row, at, _)): (u32, &(CodedBlock, Slot, [u8; 2]))| Origin {
            from: Member { rack: 0, slot },
            checked: slot == 3,
            row: row.clone(),
            slot: *at,
        };
        let suspects: Vec<Origin> = (0..).zip(&sent).map(origin).collect();
        let rows = sent.iter().map(|(_, at, bytes)| (*at, SharedBytes::from(*bytes))).collect();
        let found = wrong_rows(&suspects, &rows, &right, 2);
        assert_eq!(found, [(Member { rack: 0, slot: 2 }, false), (Member { rack: 0, slot: 3 }, true)]);
    }
}
