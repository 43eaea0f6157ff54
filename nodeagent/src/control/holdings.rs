//! What a node holds, cut into parts that fit a message each: a node may hold more than one message takes.

use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
use cool_proto::control::Held;
use cool_proto::delivery;
use std::collections::VecDeque;

/// Of each message, room for what else a registration says, and for what stands around the parts.
const ELSE: usize = 1 << 20;

/// The parts, in order; none is empty.
pub(super) fn parts(held: Vec<Held>) -> VecDeque<Vec<Held>> {
    cut(held, CONTROL_MESSAGE_BYTES_MAX - ELSE)
}

fn cut(held: Vec<Held>, most: usize) -> VecDeque<Vec<Held>> {
    let mut parts = VecDeque::<Vec<Held>>::new();
    let mut room = 0;
    for held in held {
        // With what says of which kind and how long it is.
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
    fn parts_are_as_few_as_fit_in_the_order_of_what_is_held() {
        let sizes = [10, 900, 100, 500, 5000, 1, 2];
        let parts = cut(sizes.map(held).into(), 1000);
        let told: Vec<Vec<usize>> =
            parts.iter().map(|part| part.iter().map(|held| held.user.len()).collect()).collect();
        // What is longer than a message goes by itself.
        assert_eq!(told, [&[10, 900][..], &[100, 500], &[5000], &[1, 2]]);
        assert!(cut(Vec::new(), 1000).is_empty());
    }
}
