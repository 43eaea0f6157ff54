//! The keys by which members of a swarm recognize each other.

use crate::channel::PATTERN;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::SocketAddr;

const KEY_BYTES: usize = 32;

/// The key that all members of a swarm share. No other node may know it.
pub type SwarmKey = [u8; KEY_BYTES];

/// The public key of a member.
pub type PublicKey = [u8; KEY_BYTES];

/// The address at which a member listens, and the key by which others recognize it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// The address.
    pub address: SocketAddr,
    /// The public part of the member's [`KeyPair`].
    pub key: PublicKey,
}

/// The keys of one member. The shared key proves that a node belongs to the swarm, and this one
/// which member it is.
#[derive(Clone)]
pub struct KeyPair {
    private: [u8; KEY_BYTES],
    public: PublicKey,
}

impl KeyPair {
    /// Generates a key pair. A member must not use that of another one.
    ///
    /// # Errors
    /// If the system cannot provide random bytes.
    pub fn generate() -> io::Result<KeyPair> {
        let pattern = PATTERN.parse().map_err(io::Error::other)?;
        let generated = snow::Builder::new(pattern).generate_keypair().map_err(io::Error::other)?;
        let fixed = |key: Vec<u8>| -> io::Result<[u8; KEY_BYTES]> {
            key.try_into().map_err(|_| io::Error::other("a key of another length"))
        };
        Ok(KeyPair { private: fixed(generated.private)?, public: fixed(generated.public)? })
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn private(&self) -> &[u8; KEY_BYTES] {
        &self.private
    }
}

/// Hides the private key, so that no log contains it.
impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("public", &self.public).finish_non_exhaustive()
    }
}

/// All keys that a member needs to open and accept channels.
#[derive(Clone, Debug)]
pub(crate) struct ChannelKeys {
    pub(crate) swarm: SwarmKey,
    pub(crate) own: KeyPair,
}
