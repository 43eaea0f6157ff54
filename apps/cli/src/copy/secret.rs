//! What members of a copy's swarm share, and nobody else: the command makes it, and its ranks find it in their environment, which
//! the system shows to their own user only.

use cool_peer::SwarmKey;
use std::str::FromStr;

/// The variable of the ranks' environment that it is in.
pub(super) const SECRET_VARIABLE: &str = "COOL_COPY_SECRET";
const KEY_BYTES: usize = size_of::<SwarmKey>();
const BYTES: usize = KEY_BYTES + size_of::<u64>();

/// The key, and what rings follow from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Secret([u8; BYTES]);

impl Secret {
    /// A new one.
    pub(super) fn new() -> std::io::Result<Secret> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Secret(bytes))
    }

    pub(super) fn key(&self) -> SwarmKey {
        let [key @ .., _, _, _, _, _, _, _, _] = self.0;
        key
    }

    pub(super) fn seed(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// As the variable has it: two digits for each byte.
    pub(super) fn variable(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Not shown anywhere.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl FromStr for Secret {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Secret, &'static str> {
        const WRONG: &str = "it is not one that `cool copy` makes";
        let (digits, []) = text.as_bytes().as_chunks::<2>() else { return Err(WRONG) };
        let byte = |digits: &[u8; 2]| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.iter().map(byte).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Secret).ok_or(WRONG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_in_the_environment_as_it_was_made_and_shown_nowhere_else() {
        let secret = Secret::new().unwrap();
        let variable = secret.variable();
        assert_eq!(variable.parse(), Ok(secret));
        assert_ne!(secret, Secret::new().unwrap());
        assert_eq!(format!("{secret:?}"), "Secret");
        for wrong in ["", "0", &variable[1..], &variable[2..], &format!("{}zz", &variable[2..])] {
            assert!(wrong.parse::<Secret>().is_err(), "{wrong}");
        }
    }
}
