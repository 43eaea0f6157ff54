//! Injected losses for reproducible tests: some received datagrams are dropped, and the same ones
//! every time for the same order of arrival.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt;
use std::str::FromStr;

/// The maximum share of dropped datagrams. Beyond it, the guarantees of the transport do not hold.
const MOST: f64 = 0.5;

/// The share of received datagrams to drop, and the seed that chooses them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    share: f64,
    seed: u64,
}

/// The error of a malformed [`Losses`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a loss; give the share of datagrams, from 0 to {MOST}, and optionally a seed, for example 0.05 or 0.05:7"
)]
pub struct LossesError(String);

impl FromStr for Losses {
    type Err = LossesError;

    fn from_str(text: &str) -> Result<Losses, LossesError> {
        let wrong = || LossesError(text.to_owned());
        let (share, seed) = text.split_once(':').unwrap_or((text, "0"));
        let share = share.parse().ok().filter(|share| (0.0..=MOST).contains(share)).ok_or_else(wrong)?;
        Ok(Losses { share, seed: seed.parse().map_err(|_| wrong())? })
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.share, self.seed)
    }
}

/// Chooses the datagrams to drop.
#[derive(Debug)]
pub(crate) struct LossInjector {
    share: f64,
    rng: ChaCha8Rng,
}

impl LossInjector {
    pub(crate) fn new(losses: Losses) -> LossInjector {
        LossInjector { share: losses.share, rng: ChaCha8Rng::seed_from_u64(losses.seed) }
    }

    /// Returns whether the next received datagram must be dropped.
    pub(crate) fn drops_next(&mut self) -> bool {
        self.rng.random_bool(self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(losses: &str) -> Vec<bool> {
        let mut picker = LossInjector::new(losses.parse().unwrap());
        (0..10_000).map(|_| picker.drops_next()).collect()
    }

    #[test]
    fn a_seed_always_chooses_the_same_datagrams() {
        assert_eq!(picked("0.2:7"), picked("0.2:7"));
        assert_ne!(picked("0.2:7"), picked("0.2:8"));
        assert_eq!(picked("0.2"), picked("0.2:0"));
    }

    #[test]
    fn the_share_that_was_given_is_picked() {
        let taken = picked("0.2:7").into_iter().filter(|taken| *taken).count();
        assert!((1_800..2_200).contains(&taken), "{taken}");
        assert!(!picked("0").contains(&true));
    }

    #[test]
    fn malformed_losses_are_refused_with_an_example() {
        for wrong in ["", "x", "-0.1", "0.51", "NaN", "0.1:", "0.1:-1", "0.1:x", "0.1:1:2"] {
            let error = wrong.parse::<Losses>().unwrap_err().to_string();
            assert!(error.contains("from 0 to 0.5") && error.contains(&format!("{wrong:?}")), "{error}");
        }
        assert_eq!("0.05:7".parse::<Losses>().unwrap().to_string(), "0.05:7");
    }
}
