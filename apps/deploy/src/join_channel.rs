//! The encrypted connection over which a machine joins: one request and one reply, by Noise
//! (revision 34, pattern NNpsk0) over TCP.
//!
//! The pre-shared key is the secret of the token. Without it, neither side completes the handshake,
//! so the machine knows that it talks to the deployment, and the deployment that it talks to a
//! machine with a valid token. Keys are ephemeral: a token that becomes known later does not reveal
//! an earlier exchange.

use crate::error::DeployError;
use crate::join_token::{JoinSecret, JoinToken};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use snow::{Builder, HandshakeState, TransportState};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Name and version of the protocol. It must be the same at both ends.
const PROLOGUE: &[u8] = b"cool-join 1";
const TAG_BYTES: usize = 16;

/// Time within which each side must connect, and send its part of the handshake and the request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which the whole exchange must complete. It is longer, because certificates of
/// several machines are issued one after the other, and written to a disk that may be busy.
pub(crate) const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The request of a machine that joins.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinRequest {
    /// The name of the node.
    pub(crate) node: String,
}

/// The reply to a machine that joins, or the reason why it is refused.
pub(crate) type JoinReply = Result<NodeAdmission, String>;

/// Everything that a machine needs to run an agent.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAdmission {
    /// The port of the controller, which has the address of the join server.
    pub controller_port: u16,
    /// The certificates of the CAs (`ca.pem`).
    pub authorities: String,
    /// The certificate of the node (`agent.pem`).
    pub certificate: String,
    /// Its private key (`agent.key`).
    pub key: String,
}

/// Joins a deployment as the node called `node`. Returns the reply, and the address of this machine
/// from which the join server was reached.
///
/// # Errors
/// If the join server cannot be reached, or does not accept the token, the node or the request.
pub async fn join(token: &JoinToken, node: &str) -> Result<(NodeAdmission, IpAddr), DeployError> {
    let unreachable = |source| DeployError::Unreachable { address: token.server, source };
    let connecting = timeout(REQUEST_TIMEOUT, TcpStream::connect(token.server)).await;
    let mut stream = connecting.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())).map_err(unreachable)?;
    let own = stream.local_addr().map_err(unreachable)?.ip();
    let exchange = async {
        // Both sides learn from the handshake whether the other one has the secret. The server
        // closes the connection if the caller does not.
        let mut noise = handshake(&token.secret, Builder::build_initiator)?;
        write_handshake(&mut stream, &mut noise).await?;
        let rejected = || DeployError::Rejected(token.server);
        let reply = read_message(&mut stream).await.map_err(|_| rejected())?;
        noise.read_message(&reply, &mut []).map_err(|_| rejected())?;
        let mut channel = JoinChannel::new(stream, noise)?;
        channel.send(&JoinRequest { node: node.to_owned() }).await.map_err(DeployError::Lost)?;
        let reply: JoinReply = channel.receive().await.map_err(DeployError::Lost)?;
        reply.map_err(DeployError::Refused)
    };
    let slow = |_| Err(DeployError::Lost(ErrorKind::TimedOut.into()));
    let admission = timeout(EXCHANGE_TIMEOUT, exchange).await.unwrap_or_else(slow)?;
    Ok((admission, own))
}

/// An open connection.
pub(crate) struct JoinChannel {
    stream: TcpStream,
    noise: TransportState,
}

impl JoinChannel {
    fn new(stream: TcpStream, noise: HandshakeState) -> Result<JoinChannel, DeployError> {
        let noise = noise.into_transport_mode().map_err(noise_error)?;
        Ok(JoinChannel { stream, noise })
    }

    /// Accepts a connection from a machine that knows one of the secrets. Returns that secret.
    ///
    /// # Errors
    /// If the machine knows none of them, or the connection ends.
    pub(crate) async fn accept(
        mut stream: TcpStream,
        secrets: &[JoinSecret],
    ) -> Result<(JoinChannel, JoinSecret), DeployError> {
        let opening = read_message(&mut stream).await.map_err(DeployError::Lost)?;
        for secret in secrets {
            let mut noise = handshake(secret, Builder::build_responder)?;
            if noise.read_message(&opening, &mut []).is_ok() {
                write_handshake(&mut stream, &mut noise).await?;
                return Ok((JoinChannel::new(stream, noise)?, *secret));
            }
        }
        Err(DeployError::Lost(io::Error::new(ErrorKind::PermissionDenied, "no valid token")))
    }

    /// Sends a message.
    pub(crate) async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let plain = serde_json::to_vec(message)?;
        let mut sealed = vec![0; plain.len() + TAG_BYTES];
        let bytes = self.noise.write_message(&plain, &mut sealed).map_err(io::Error::other)?;
        write_message(&mut self.stream, &sealed[..bytes]).await
    }

    /// Receives a message.
    pub(crate) async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let sealed = read_message(&mut self.stream).await?;
        let mut plain = vec![0; sealed.len()];
        let bytes = self.noise.read_message(&sealed, &mut plain).map_err(io::Error::other)?;
        Ok(serde_json::from_slice(&plain[..bytes])?)
    }
}

fn handshake<'a>(
    secret: &'a JoinSecret,
    build: impl FnOnce(Builder<'a>) -> Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState, DeployError> {
    let pattern = PATTERN.parse().map_err(noise_error)?;
    let builder = Builder::new(pattern).psk(0, &secret.0).and_then(|builder| builder.prologue(PROLOGUE));
    builder.and_then(build).map_err(noise_error)
}

fn noise_error(error: snow::Error) -> DeployError {
    DeployError::Lost(io::Error::other(error))
}

async fn write_handshake(stream: &mut TcpStream, noise: &mut HandshakeState) -> Result<(), DeployError> {
    let mut message = [0; 128];
    let bytes = noise.write_message(&[], &mut message).map_err(noise_error)?;
    write_message(stream, &message[..bytes]).await.map_err(DeployError::Lost)
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_u16(length).await?;
    stream.write_all(message).await
}

/// Reads a message of at most 65,535 bytes, because its length has two bytes.
async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}
