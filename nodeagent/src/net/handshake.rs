//! The [handshake] of two agents over a connection that was just made, before the engine hears of it.

use cool_transport::unicast::AgentId;
use cool_transport::unicast::handshake::{self, HELLO_HEAD, Initiator, NONCE, REPLY, Responder};
use cool_types::{Key, NODE_NAME_MAX, TAG};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long the other side may take for it. Longer than TCP needs to send again what was lost a few times.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a connection is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("it has said nothing for {PATIENCE:?}")]
    Silent,
    #[error("it has not the key that it should have")]
    Unproven,
}

/// Proves to the agent with `key`, at the other end, that this is the agent `me`; it proves that it has the key.
pub(super) async fn initiate(stream: &mut TcpStream, me: &AgentId, key: &Key) -> Result<(), HandshakeError> {
    let initiator = Initiator::new(me, key.clone(), nonce()?);
    let said = async {
        stream.write_all(initiator.hello()).await?;
        let mut reply = [0; REPLY];
        stream.read_exact(&mut reply).await?;
        let proof = initiator.proof(&reply).ok_or(HandshakeError::Unproven)?;
        Ok(stream.write_all(&proof).await?)
    };
    timeout(PATIENCE, said).await.unwrap_or(Err(HandshakeError::Silent))
}

/// Lets who has connected prove that it knows the `key` of this agent: who it is. `None` of one that begins with frames.
pub(super) async fn respond(stream: &mut TcpStream, key: &Key) -> Result<Option<AgentId>, HandshakeError> {
    timeout(PATIENCE, proven(stream, key)).await.unwrap_or(Err(HandshakeError::Silent))
}

async fn proven(stream: &mut TcpStream, key: &Key) -> Result<Option<AgentId>, HandshakeError> {
    let mut first = [0; 1];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    if !handshake::begins_with_hello(first[0]) {
        return Ok(None);
    }
    let mut hello = [0; HELLO_HEAD + NODE_NAME_MAX];
    let (head, name) = hello.split_first_chunk_mut::<HELLO_HEAD>().ok_or(HandshakeError::Unproven)?;
    stream.read_exact(head).await?;
    let len = Responder::name_len(head).ok_or(HandshakeError::Unproven)?;
    stream.read_exact(&mut name[..len]).await?;
    let responder = Responder::new(key.clone(), &hello[..HELLO_HEAD + len], nonce()?);
    let responder = responder.ok_or(HandshakeError::Unproven)?;
    stream.write_all(&responder.reply()).await?;
    let mut proof = [0; TAG];
    stream.read_exact(&mut proof).await?;
    responder.proven(&proof).map(Some).ok_or(HandshakeError::Unproven)
}

fn nonce() -> io::Result<[u8; NONCE]> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(nonce)
}
