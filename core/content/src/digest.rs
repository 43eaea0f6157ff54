//! The hashes that identify blocks and files.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A BLAKE3 hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the hash of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }
}

/// Prints the hash in hexadecimal, as `b3sum` does.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The text is not a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 64 hexadecimal digits")]
pub struct DigestError;

/// Parses the displayed form, in lower case.
impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Digest, DigestError> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let pairs: &[[u8; 2]; 32] =
            text.as_bytes().as_chunks().0.try_into().ok().filter(|_| text.len() == 64).ok_or(DigestError)?;
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low).ok_or(DigestError)?;
        }
        Ok(Digest(bytes))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Computes the hash of bytes that arrive in parts.
#[derive(Clone, Debug, Default)]
pub struct Digester(blake3::Hasher);

impl Digester {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the hash of all bytes added so far.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_blake3() {
        // The hash of no bytes, from the test vectors of BLAKE3.
        let nothing = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(Digest::of(b"").to_string(), nothing);
        assert_eq!(nothing.parse(), Ok(Digest::of(b"")));
        for wrong in ["", &nothing[1..], &nothing.to_uppercase(), &nothing.replace('a', "g")] {
            assert_eq!(wrong.parse::<Digest>(), Err(DigestError), "{wrong}");
        }
        let mut digester = Digester::default();
        digester.update(b"ab");
        digester.update(b"c");
        assert_eq!(digester.digest(), Digest::of(b"abc"));
    }
}
