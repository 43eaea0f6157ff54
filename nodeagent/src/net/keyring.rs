//! The keys of groups that are made without the keys of their agents. An agent that connects may
//! prove its identity with such a key.

use cool_types::Key;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of released groups with keys that remain valid, because other agents may not have been
/// informed of the release yet.
const RELEASED_MAX: usize = 64;

/// The keys by the groups' numbers and epochs. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Keyring(Arc<Mutex<KeyringState>>);

#[derive(Debug, Default)]
struct KeyringState {
    keys: BTreeMap<(u64, u32), Key>,
    /// The released groups with keys that remain valid, oldest first.
    released: VecDeque<(u64, u32)>,
}

impl Keyring {
    pub(super) fn insert(&self, group: (u64, u32), key: Key) {
        let mut state = self.lock();
        state.released.retain(|released| *released != group);
        state.keys.insert(group, key);
    }

    /// Records that a group was released.
    pub(super) fn release(&self, group: u64) {
        let mut state = self.lock();
        let KeyringState { keys, released } = &mut *state;
        let of_group = keys.keys().filter(|(id, _)| *id == group).filter(|known| !released.contains(known));
        let of_group: Vec<(u64, u32)> = of_group.copied().collect();
        released.extend(of_group);
        while released.len() > RELEASED_MAX
            && let Some(oldest) = released.pop_front()
        {
            keys.remove(&oldest);
        }
    }

    pub(super) fn get(&self, group: (u64, u32)) -> Option<Key> {
        self.lock().keys.get(&group).cloned()
    }

    // A panic elsewhere leaves the keys consistent, because no operation on them panics.
    fn lock(&self) -> MutexGuard<'_, KeyringState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_good_a_while_longer_than_its_group() {
        let keys = Keyring::default();
        let known =
            |keys: &Keyring| (0..=RELEASED_MAX as u64).filter(|id| keys.get((*id, 1)).is_some()).count();
        (0..=RELEASED_MAX as u64).for_each(|id| keys.insert((id, 1), [7; 32].into()));
        (0..RELEASED_MAX as u64).for_each(|id| keys.release(id));
        keys.release(0);
        keys.insert((0, 1), [8; 32].into());
        keys.release(RELEASED_MAX as u64);
        assert_eq!(known(&keys), RELEASED_MAX + 1, "the first is there again");
        keys.release(0);
        assert_eq!((known(&keys), keys.get((1, 1))), (RELEASED_MAX, None));
    }
}
