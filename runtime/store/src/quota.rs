//! Chooses the objects to evict so that another one fits: the least recently used (LRU).

use cool_content::Digest;
use std::fmt;
use std::time::SystemTime;

/// An object that may be evicted.
#[derive(Clone, Debug)]
pub(crate) struct EvictionCandidate {
    pub(crate) id: Digest,
    pub(crate) bytes: u64,
    pub(crate) used: SystemTime,
    /// Whether it has no reader or writer.
    pub(crate) free: bool,
}

/// The sizes of a content that does not fit, of the quota, and of the objects that cannot be
/// evicted, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    needed: u64,
    quota: u64,
    in_use: u64,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unfit { needed, quota, in_use } = self;
        write!(f, "{needed} bytes do not fit into the quota of {quota}")?;
        if *in_use > 0 { write!(f, ", of which {in_use} are being read or written") } else { Ok(()) }
    }
}

/// Returns the objects to evict so that `needed` bytes and the remaining objects fit into the
/// quota.
///
/// # Errors
/// Returns an error if they do not fit even without all objects that may be evicted.
pub(crate) fn evictions(
    mut kept: Vec<EvictionCandidate>,
    needed: u64,
    quota: u64,
) -> Result<Vec<Digest>, Unfit> {
    let in_use = kept.iter().filter(|object| !object.free).map(|object| object.bytes).sum::<u64>();
    if in_use.saturating_add(needed) > quota {
        return Err(Unfit { needed, quota, in_use });
    }
    let mut bytes = kept.iter().map(|object| object.bytes).fold(needed, u64::saturating_add);
    kept.sort_by_key(|object| object.used);
    let mut evicted = Vec::new();
    for object in kept.iter().filter(|object| object.free && object.bytes > 0) {
        if bytes <= quota {
            break;
        }
        bytes -= object.bytes;
        evicted.push(object.id);
    }
    Ok(evicted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn kept(objects: &[(u64, u64, bool)]) -> Vec<EvictionCandidate> {
        let object = |(number, (bytes, used, free)): (u8, &(u64, u64, bool))| EvictionCandidate {
            id: Digest::of(&[number]),
            bytes: *bytes,
            used: SystemTime::UNIX_EPOCH + Duration::from_secs(*used),
            free: *free,
        };
        (0..).zip(objects).map(object).collect()
    }

    #[test]
    fn the_least_recently_used_is_evicted_first_and_none_in_use() {
        let objects = kept(&[(10, 3, true), (10, 1, false), (10, 2, true), (10, 4, true)]);
        assert_eq!(evictions(objects.clone(), 5, 100), Ok(vec![]));
        assert_eq!(evictions(objects.clone(), 5, 35), Ok(vec![Digest::of(&[2])]));
        assert_eq!(evictions(objects.clone(), 15, 36), Ok(vec![Digest::of(&[2]), Digest::of(&[0])]));
        let unfit = evictions(objects, 30, 39).unwrap_err().to_string();
        assert_eq!(unfit, "30 bytes do not fit into the quota of 39, of which 10 are being read or written");
    }

    proptest! {
        #[test]
        fn evictions_fit_the_quota_and_are_minimal(
            objects in proptest::collection::vec((0u64..50, 0u64..9, any::<bool>()), 0..8),
            needed in 0u64..80,
            quota in 0u64..300,
        ) {
            let objects = kept(&objects);
            let bytes_without = |gone: &[Digest]| {
                objects.iter().filter(|object| !gone.contains(&object.id)).map(|o| o.bytes).sum::<u64>()
            };
            match evictions(objects.clone(), needed, quota) {
                Ok(gone) => {
                    prop_assert!(bytes_without(&gone) + needed <= quota);
                    if let Some((_, rest)) = gone.split_last() {
                        prop_assert!(bytes_without(rest) + needed > quota, "the last one had to go");
                    }
                    prop_assert!(objects.iter().all(|o| o.free || !gone.contains(&o.id)));
                }
                Err(_) => {
                    let in_use: u64 = objects.iter().filter(|o| !o.free).map(|o| o.bytes).sum();
                    prop_assert!(in_use + needed > quota);
                }
            }
        }
    }
}
