//! Splits a node's inventory into parts that each fit into a message, because a node may have more
//! groups and jobs than fit into one.

use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
use cool_proto::control::Held;
use cool_proto::delivery;
use std::collections::VecDeque;

/// Bytes that are reserved in each message for the other fields of a registration and for the
/// encoding of the parts.
const MESSAGE_OVERHEAD_BYTES: usize = 1 << 20;

/// Returns the parts in the order of the inventory. None of them is empty.
pub(super) fn parts(held: Vec<Held>) -> VecDeque<Vec<Held>> {
    cut(held, CONTROL_MESSAGE_BYTES_MAX - MESSAGE_OVERHEAD_BYTES)
}

fn cut(held: Vec<Held>, most: usize) -> VecDeque<Vec<Held>> {
    let mut parts = VecDeque::<Vec<Held>>::new();
    let mut room = 0;
    for held in held {
        // This includes the tag and the length of the entry.
        let bytes = delivery::bytes(&held) + 16;
        match parts.back_mut().filter(|_| bytes <= room) {
            Some(part) => part.push(held),
            None => {
                parts.push_back(vec![held]);
                room = most;
            }
        }
        room = room.saturating_sub(bytes);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(bytes: usize) -> Held {
        Held { user: "u".repeat(bytes), ..Held::default() }
    }

    #[test]
    fn parts_are_as_few_as_fit_and_in_order() {
        let sizes = [10, 900, 100, 500, 5000, 1, 2];
        let parts = cut(sizes.map(held).into(), 1000);
        let part_sizes: Vec<Vec<usize>> =
            parts.iter().map(|part| part.iter().map(|held| held.user.len()).collect()).collect();
        // An entry that is larger than a message is sent alone.
        assert_eq!(part_sizes, [&[10, 900][..], &[100, 500], &[5000], &[1, 2]]);
        assert!(cut(Vec::new(), 1000).is_empty());
    }
}
