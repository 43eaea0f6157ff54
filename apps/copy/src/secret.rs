//! The secret that the ranks of a copy share. The command generates it and passes it to them in the
//! environment, which only their own user can read.

use cool_peer::SwarmKey;
use std::str::FromStr;

/// Environment variable of the ranks that contains the secret.
pub const SECRET_VARIABLE: &str = "COOL_COPY_SECRET";
const KEY_BYTES: usize = size_of::<SwarmKey>();
const BYTES: usize = KEY_BYTES + size_of::<u64>();

/// The key of a swarm, and the seed of its rings. Copies by broadcasts use the seed in the key of
/// their rendezvous with late ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CopySecret([u8; BYTES]);

impl CopySecret {
    /// Generates a secret.
    ///
    /// # Errors
    /// If the system cannot provide random bytes.
    pub fn new() -> std::io::Result<CopySecret> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(CopySecret(bytes))
    }

    pub(crate) fn key(&self) -> SwarmKey {
        let [key @ .., _, _, _, _, _, _, _, _] = self.0;
        key
    }

    pub(crate) fn seed(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Returns the value of [`SECRET_VARIABLE`]: two digits for each byte.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Hides the bytes, so that no log contains them.
impl std::fmt::Debug for CopySecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CopySecret")
    }
}

impl FromStr for CopySecret {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<CopySecret, &'static str> {
        const WRONG: &str = "not a secret that `cool` generates";
        let (digits, []) = text.as_bytes().as_chunks::<2>() else { return Err(WRONG) };
        let byte = |digits: &[u8; 2]| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.iter().map(byte).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).map(CopySecret).ok_or(WRONG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_survives_the_environment_and_is_not_printed() {
        let secret = CopySecret::new().unwrap();
        let variable = secret.to_hex();
        assert_eq!(variable.parse(), Ok(secret));
        assert_ne!(secret, CopySecret::new().unwrap());
        assert_eq!(format!("{secret:?}"), "CopySecret");
        for wrong in ["", "0", &variable[1..], &variable[2..], &format!("{}zz", &variable[2..])] {
            assert!(wrong.parse::<CopySecret>().is_err(), "{wrong}");
        }
    }
}
