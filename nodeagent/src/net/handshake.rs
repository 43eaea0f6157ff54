//! The [handshake] of two agents over a new connection, which takes place before the connection is
//! passed to the engine.

use super::keyring::Keyring;
use cool_cipher::AesGcm;
use cool_transport::unicast::AgentId;
use cool_transport::unicast::handshake::{
    self, Ephemeral, EstablishedConnection, HELLO_BYTES_MAX, HELLO_HEADER_BYTES, Initiator, NONCE_BYTES,
    PUBLIC_KEY_BYTES, PeerKey, Responder, StreamPlace, agent_key,
};
use cool_transport::unicast::records::{Opener, Sealer};
use cool_types::{Key, TAG_BYTES};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long the handshake may take. The limit is longer than a few retransmissions by TCP.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reasons why a connection cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("it has sent nothing for {PATIENCE:?}")]
    Silent,
    /// This happens to the slower of two attempts to connect.
    #[error("it was closed before any data was sent")]
    Abandoned,
    #[error("it does not have the expected key")]
    Unproven,
    #[error("it does not encrypt, but this agent requires it (--encrypt)")]
    Plain,
}

/// The requirements for connections to this agent: the other side must know this key, and may have
/// to encrypt.
#[derive(Clone, Debug)]
pub(super) struct LinkSecurity {
    pub(super) me: AgentId,
    pub(super) key: Key,
    /// The keys of groups in which the agent has no key of its own.
    pub(super) groups: Keyring,
    pub(super) encrypt: bool,
}

/// The ciphers of a connection, one for each direction.
pub(super) struct RecordCiphers {
    pub(super) sealer: Sealer<AesGcm>,
    pub(super) opener: Opener<AesGcm>,
}

/// A stream after its handshake, with its ciphers if it is encrypted.
pub(super) struct GreetedStream {
    pub(super) stream: TcpStream,
    pub(super) records: Option<RecordCiphers>,
}

impl RecordCiphers {
    /// Returns the ciphers for the key of sent data and the key of received data.
    fn new([sends, gets]: [&Key; 2]) -> RecordCiphers {
        RecordCiphers { sealer: Sealer::new(sends), opener: Opener::new(gets) }
    }
}

impl LinkSecurity {
    /// Returns the key that the sender of a hello must know: the agent's own key, or the key that
    /// is derived from that of the group which the hello names. Returns `None` if this group does
    /// not exist here.
    fn key_for(&self, hello: &[u8]) -> Option<Key> {
        match Responder::group(hello) {
            None => Some(self.key.clone()),
            Some(group) => self.groups.get(group).map(|key| agent_key(&key, &self.me)),
        }
    }
}

/// Proves to the agent with `key` at the other end that this is the agent `me`. The other agent
/// must prove that it has the key. `place` is the place of the stream, if the connection consists
/// of several. Returns the ciphers of the connection if it is encrypted.
pub(super) async fn initiate(
    stream: &mut TcpStream,
    me: &AgentId,
    key: &PeerKey,
    (encrypt, place): (bool, Option<StreamPlace>),
) -> Result<Option<RecordCiphers>, HandshakeError> {
    let (ephemeral, private_key) = ephemeral(encrypt)?;
    let initiator = Initiator::new(me, key.clone(), &ephemeral, place);
    let exchange = async {
        stream.write_all(initiator.hello()).await?;
        let mut reply = vec![0; initiator.reply_len()];
        stream.read_exact(&mut reply).await?;
        let (proof, established) = initiator.proof(&reply).ok_or(HandshakeError::Unproven)?;
        stream.write_all(&proof).await?;
        let keys = keys(&established, private_key)?;
        Ok(keys.map(|[initiator, responder]| RecordCiphers::new([&initiator, &responder])))
    };
    timeout(PATIENCE, exchange).await.unwrap_or(Err(HandshakeError::Silent))
}

/// The identity of the agent that has connected, if it has proved it, with the place of the stream,
/// if the connection consists of several; and the ciphers of the connection, if it is encrypted.
type ProvenPeer = (Option<(AgentId, Option<StreamPlace>)>, Option<RecordCiphers>);

/// Requires the agent that has connected to prove that it knows this agent's key. Returns its
/// identity and the ciphers. The identity is `None` if the agent sends frames without a handshake.
pub(super) async fn respond(
    stream: &mut TcpStream,
    security: &LinkSecurity,
) -> Result<ProvenPeer, HandshakeError> {
    timeout(PATIENCE, proven(stream, security)).await.unwrap_or(Err(HandshakeError::Silent))
}

async fn proven(stream: &mut TcpStream, security: &LinkSecurity) -> Result<ProvenPeer, HandshakeError> {
    let encrypt = security.encrypt;
    let mut first = [0; 1];
    if stream.peek(&mut first).await? == 0 {
        return Err(HandshakeError::Abandoned);
    }
    if !handshake::begins_with_hello(first[0]) {
        return if encrypt { Err(HandshakeError::Plain) } else { Ok((None, None)) };
    }
    let mut hello = [0; HELLO_BYTES_MAX];
    let (head, rest) = hello.split_first_chunk_mut::<HELLO_HEADER_BYTES>().ok_or(HandshakeError::Unproven)?;
    stream.read_exact(head).await?;
    let len = Responder::remaining_len(head).ok_or(HandshakeError::Unproven)?;
    stream.read_exact(&mut rest[..len]).await?;
    let hello = &hello[..HELLO_HEADER_BYTES + len];
    let responder = security.key_for(hello).and_then(|key| Responder::new(key, hello));
    let responder = responder.ok_or(HandshakeError::Unproven)?;
    if encrypt && !responder.encrypts() {
        return Err(HandshakeError::Plain);
    }
    let (ephemeral, private_key) = ephemeral(responder.encrypts())?;
    stream.write_all(&responder.reply(&ephemeral)).await?;
    let mut proof = [0; TAG_BYTES];
    stream.read_exact(&mut proof).await?;
    let place = responder.place();
    let (who, established) = responder.verify(&ephemeral, &proof).ok_or(HandshakeError::Unproven)?;
    let keys = keys(&established, private_key)?;
    Ok((Some((who, place)), keys.map(|[initiator, responder]| RecordCiphers::new([&responder, &initiator]))))
}

/// Returns random bytes.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// Generates this side's values for one connection: a random nonce and, if the connection is to be
/// encrypted, a key pair.
fn ephemeral(encrypt: bool) -> io::Result<(Ephemeral, Option<EphemeralPrivateKey>)> {
    let nonce: [u8; NONCE_BYTES] = random()?;
    if !encrypt {
        return Ok((Ephemeral { nonce, public_key: None }, None));
    }
    let failed = |_| io::Error::other("no key could be made for the connection");
    let private_key = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(failed)?;
    let public_key = private_key.compute_public_key().map_err(failed)?;
    let bytes: [u8; PUBLIC_KEY_BYTES] = public_key.as_ref().try_into().map_err(io::Error::other)?;
    Ok((Ephemeral { nonce, public_key: Some(bytes) }, Some(private_key)))
}

/// Returns the keys for the data of the initiator and of the responder, if the connection is to be
/// encrypted.
fn keys(
    established: &EstablishedConnection,
    private_key: Option<EphemeralPrivateKey>,
) -> Result<Option<[Key; 2]>, HandshakeError> {
    let (Some(peer), Some(private_key)) = (established.peer, private_key) else { return Ok(None) };
    let agreed = agree_ephemeral(private_key, &UnparsedPublicKey::new(&X25519, peer), |shared_secret| {
        established.keys(shared_secret)
    });
    agreed.map(Some).map_err(|_| HandshakeError::Unproven)
}
