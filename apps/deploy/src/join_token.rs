//! The token that admits machines to a deployment.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use cool_types::Key;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Number of bytes of a secret, which is a key of Noise.
pub(crate) const SECRET_BYTES: usize = 32;

/// The salt by which secrets are extracted from keys (RFC 5869, section 2.2).
const KEY_SALT: &[u8; SECRET_BYTES] = b"cool: join secret of a job's key";

/// The secret of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JoinSecret(pub(crate) [u8; SECRET_BYTES]);

impl JoinSecret {
    /// Returns a random secret.
    ///
    /// # Errors
    /// If the system cannot provide random bytes.
    pub(crate) fn generate() -> std::io::Result<JoinSecret> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret)?;
        Ok(JoinSecret(secret))
    }

    /// Returns the secret of a key that both sides know. An attacker with a record of an exchange
    /// can test guesses of the key, so it should be random.
    #[must_use]
    pub fn of_key(key: &str) -> JoinSecret {
        JoinSecret(Key::from(*KEY_SALT).derive(key.as_bytes()).bytes())
    }

    /// Returns the secret as text of a token.
    pub(crate) fn text(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Parses the text of a secret. Returns `None` if it is not one.
    pub(crate) fn parse(text: &str) -> Option<JoinSecret> {
        BASE64_URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok().map(JoinSecret)
    }
}

/// Hides the secret, so that no log contains it.
impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret")
    }
}

/// The address of a join server and the secret that both sides must know, as text
/// `IP:PORT/SECRET`. Anyone with the text can add machines to the deployment while it is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// The address of the join server.
    pub server: SocketAddr,
    /// The secret.
    pub secret: JoinSecret,
}

/// A text is not a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a token; copy the whole word after `cool join` from the output of `cool up`")]
pub struct TokenError;

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.secret.text())
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<JoinToken, TokenError> {
        let (server, secret) = text.trim().split_once('/').ok_or(TokenError)?;
        let server = server.parse().map_err(|_| TokenError)?;
        Ok(JoinToken { server, secret: JoinSecret::parse(secret).ok_or(TokenError)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_is_its_text() {
        for server in ["10.0.0.1:7402", "[fd00::1]:7402"] {
            let token =
                JoinToken { server: server.parse().unwrap(), secret: JoinSecret::generate().unwrap() };
            assert_eq!(token.to_string().parse(), Ok(token.clone()));
            assert!(!format!("{token:?}").contains(&token.secret.text()), "a log would show the secret");
        }
    }

    proptest! {
        #[test]
        fn other_texts_are_no_tokens(text in "\\PC{0,80}", cut in 0..40_usize) {
            prop_assert_eq!(text.parse::<JoinToken>(), Err(TokenError));
            let token = format!("10.0.0.1:7402/{}", JoinSecret([7; SECRET_BYTES]).text());
            prop_assert_eq!(token[..token.len() - 1 - cut].parse::<JoinToken>(), Err(TokenError));
        }
    }
}
