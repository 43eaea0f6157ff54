//! A channel carries the messages of one member to another over TCP, encrypted by Noise (revision
//! 34, pattern IKpsk0).
//!
//! Noise encrypts and authenticates messages under the pre-shared key of the swarm. Without the key
//! it is not possible to open a channel, to read a message or to change one unnoticed. Both ends
//! prove that they have the private keys of the members that they claim to be. A channel
//! has one direction; replies use the channel of the other member. The exception is an inquiry by a
//! node that is not a member yet: the reply returns over the same channel.

use crate::keys::{ChannelKeys, Contact, PublicKey};
use crate::wire::{Frame, MESSAGE_BYTES, TAG_BYTES, WireError};
use cool_swarm::Member;
use cool_tcp::{Congestion, LinkEstimate, bound_retransmission_timeout};
use snow::{Builder, HandshakeState, TransportState};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The initiator knows the public key of the responder, and sends its own one encrypted.
pub(crate) const PATTERN: &str = "Noise_IKpsk0_25519_ChaChaPoly_SHA256";
/// Name and version of the protocol. It must be the same at both ends.
const PROLOGUE: &[u8] = b"cool-peer 4";
/// Timeout for connecting and for the handshake.
const OPENING: Duration = Duration::from_secs(5);
/// Time without acknowledgements after which a connection is given up.
const SILENCE: Duration = Duration::from_secs(4);
/// Idle time after which the first keepalive probe is sent.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Time after which a connection is given up if its send buffer remains full.
const STUCK: Duration = Duration::from_secs(30);
const LENGTH_BYTES: usize = 2;

/// The reasons why a channel cannot be opened, or has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error(transparent)]
    System(#[from] io::Error),
    #[error("the other end has a different key or version: {0}")]
    Noise(#[from] snow::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the other end did not identify itself")]
    Stranger,
    #[error("no progress for {0:?}")]
    Slow(Duration),
}

/// The sending end of a channel.
pub(crate) struct ChannelSender {
    stream: TcpStream,
    noise: TransportState,
    sealed: Vec<u8>,
    /// Congestion control, set for channels that carry blocks.
    congestion: Option<Congestion>,
}

/// The node that opened a channel.
pub(crate) enum Caller {
    /// A node that claims to be a member, with the address at which it listens and its public key.
    Member { member: Member, contact: Contact, receiver: ChannelReceiver },
    /// A node that will become a member and requests the common state.
    Newcomer { member: Member, sender: ChannelSender },
}

/// The receiving end of a channel.
pub(crate) struct ChannelReceiver {
    stream: BufReader<TcpStream>,
    noise: TransportState,
    sealed: Vec<u8>,
    plain: Vec<u8>,
}

impl ChannelSender {
    /// Opens a channel to a member, as the member `me` that listens at `contact`. `send_buffer` is
    /// the SO_SNDBUF of the socket in bytes (Linux allocates twice that), or `None` for the
    /// system's default. `link` is the estimate of this member's link that its channels share.
    pub(crate) async fn open(
        to: Contact,
        keys: &ChannelKeys,
        (me, contact): (Member, SocketAddr),
        (send_buffer, link): (Option<usize>, &LinkEstimate),
    ) -> Result<ChannelSender, ChannelError> {
        // Members recognize each other by these addresses.
        let from = Some(contact.ip()).filter(|ip| ip.is_ipv4() == to.address.is_ipv4());
        let mut sender = ChannelSender::connect(from, to, keys).await?;
        sender.congestion = Some(link.choose(&sender.stream, 1));
        if let Some(bytes) = send_buffer {
            SockRef::from(&sender.stream).set_send_buffer_size(bytes)?;
        }
        sender.send(&Frame::Hello { member: me, contact }).await?;
        Ok(sender)
    }

    /// Opens a channel from an address of this node, but sends no message on it.
    pub(crate) async fn connect(
        from: Option<IpAddr>,
        to: Contact,
        keys: &ChannelKeys,
    ) -> Result<ChannelSender, ChannelError> {
        bounded(OPENING, async {
            let mut stream = cool_tcp::connect(from, to.address).await?;
            tune(&stream)?;
            let mut noise = builder(keys)?.remote_public_key(&to.key)?.build_initiator()?;
            write_handshake(&mut stream, &mut noise).await?;
            read_handshake(&mut stream, &mut noise).await?;
            let noise = noise.into_transport_mode()?;
            Ok(ChannelSender::on(stream, noise))
        })
        .await
    }

    fn on(stream: TcpStream, noise: TransportState) -> ChannelSender {
        ChannelSender { stream, noise, sealed: vec![0; LENGTH_BYTES + MESSAGE_BYTES], congestion: None }
    }

    /// Requests the common state, as a node that will become the member `me`. Returns the end at
    /// which the reply arrives.
    pub(crate) async fn inquire(mut self, me: Member) -> Result<ChannelReceiver, ChannelError> {
        self.send(&Frame::Inquire { member: me }).await?;
        Ok(ChannelReceiver::on(self.stream, self.noise))
    }

    /// Waits until the other end, which sends nothing, has closed the channel or is unreachable.
    pub(crate) async fn closed(&mut self) {
        let mut said = [0; 64];
        while self.stream.read(&mut said).await.is_ok_and(|bytes| bytes > 0) {}
    }

    /// Sends a message, once there is room for it in the send buffer.
    pub(crate) async fn send(&mut self, frame: &Frame<'_>) -> Result<(), ChannelError> {
        let plain = frame.encode()?;
        let bytes = self.noise.write_message(&plain, &mut self.sealed[LENGTH_BYTES..])?;
        // Fits, because a sealed message is at most `MESSAGE_BYTES` long.
        self.sealed[..LENGTH_BYTES].copy_from_slice(&(bytes as u16).to_be_bytes());
        let sealed = &self.sealed[..LENGTH_BYTES + bytes];
        let stream = &mut self.stream;
        bounded(STUCK, async { Ok(stream.write_all(sealed).await?) }).await?;
        if let Some(congestion) = &mut self.congestion {
            congestion.on_write(&self.stream, sealed.len())?;
        }
        Ok(())
    }
}

impl ChannelReceiver {
    fn on(stream: TcpStream, noise: TransportState) -> ChannelReceiver {
        let stream = BufReader::with_capacity(LENGTH_BYTES + MESSAGE_BYTES, stream);
        let sealed = Vec::with_capacity(MESSAGE_BYTES);
        ChannelReceiver { stream, noise, sealed, plain: vec![0; MESSAGE_BYTES] }
    }

    /// Accepts a connection. Returns the node that opened it.
    pub(crate) async fn accept(mut stream: TcpStream, keys: &ChannelKeys) -> Result<Caller, ChannelError> {
        bounded(OPENING, async {
            tune(&stream)?;
            let mut noise = builder(keys)?.build_responder()?;
            read_handshake(&mut stream, &mut noise).await?;
            write_handshake(&mut stream, &mut noise).await?;
            let noise = noise.into_transport_mode()?;
            let key = PublicKey::try_from(noise.get_remote_static().unwrap_or_default());
            let key = key.map_err(|_| ChannelError::Stranger)?;
            let mut receiver = ChannelReceiver::on(stream, noise);
            match receiver.next().await? {
                Frame::Hello { member, contact: address } => {
                    Ok(Caller::Member { member, contact: Contact { address, key }, receiver })
                }
                // No bytes are lost with the read buffer, because a newcomer sends nothing more
                // until it has received the reply.
                Frame::Inquire { member } => {
                    let sender = ChannelSender::on(receiver.stream.into_inner(), receiver.noise);
                    Ok(Caller::Newcomer { member, sender })
                }
                _ => Err(ChannelError::Stranger),
            }
        })
        .await
    }

    /// Stops sending and receiving. The channel remains open as long as the returned stream exists.
    pub(crate) fn hold(self) -> io::Result<std::net::TcpStream> {
        self.stream.into_inner().into_std()
    }

    /// Returns the next message. It waits as long as necessary.
    pub(crate) async fn next(&mut self) -> Result<Frame<'_>, ChannelError> {
        let bytes = usize::from(self.stream.read_u16().await?);
        if bytes < TAG_BYTES {
            return Err(WireError::Decode(postcard::Error::DeserializeUnexpectedEnd).into());
        }
        self.sealed.resize(bytes, 0);
        self.stream.read_exact(&mut self.sealed).await?;
        let plain = self.noise.read_message(&self.sealed, &mut self.plain)?;
        Ok(Frame::decode(&self.plain[..plain])?)
    }
}

fn builder(keys: &ChannelKeys) -> Result<Builder<'_>, snow::Error> {
    let builder = Builder::new(PATTERN.parse()?).psk(0, &keys.swarm)?;
    builder.local_private_key(keys.own.private())?.prologue(PROLOGUE)
}

/// Configures a connection: small messages are sent without delay, because signals are small, and
/// dead connections are detected.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    bound_retransmission_timeout(stream);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
    socket.set_tcp_user_timeout(Some(SILENCE))
}

async fn bounded<T>(
    within: Duration,
    work: impl Future<Output = Result<T, ChannelError>>,
) -> Result<T, ChannelError> {
    timeout(within, work).await.unwrap_or(Err(ChannelError::Slow(within)))
}

/// Sends a message of the handshake.
async fn write_handshake(stream: &mut TcpStream, noise: &mut HandshakeState) -> Result<(), ChannelError> {
    let mut message = [0; 256];
    let bytes = noise.write_message(&[], &mut message)?;
    // Two keys and two tags are far below 64 KiB.
    stream.write_u16(bytes as u16).await?;
    Ok(stream.write_all(&message[..bytes]).await?)
}

async fn read_handshake(stream: &mut TcpStream, noise: &mut HandshakeState) -> Result<(), ChannelError> {
    let mut message = [0; 256];
    let bytes = usize::from(stream.read_u16().await?);
    let message = message.get_mut(..bytes).ok_or(WireError::Long(bytes))?;
    stream.read_exact(message).await?;
    noise.read_message(message, &mut [])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyPair;
    use tokio::net::TcpListener;

    const ME: Member = Member { rack: 1, slot: 2 };

    fn contact_of(caller: Caller) -> (Member, Contact) {
        match caller {
            Caller::Member { member, contact, .. } => (member, contact),
            Caller::Newcomer { .. } => panic!("it is a newcomer"),
        }
    }

    fn at() -> SocketAddr {
        "127.0.0.1:9".parse().unwrap()
    }

    fn keys(swarm: u8) -> ChannelKeys {
        ChannelKeys { swarm: [swarm; 32], own: KeyPair::generate().unwrap() }
    }

    /// Opens a channel with the swarm key 7 to an end with the given keys, which is expected to
    /// have the public key `expected`. Returns the results of both ends, and the opener's key.
    async fn open_and_accept(
        keys_there: &ChannelKeys,
        expected: PublicKey,
    ) -> (Result<(Member, Contact), ChannelError>, Result<ChannelSender, ChannelError>, PublicKey) {
        let socket = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let to = Contact { address: socket.local_addr().unwrap(), key: expected };
        let accepting = async {
            let (stream, _) = socket.accept().await.unwrap();
            ChannelReceiver::accept(stream, keys_there).await.map(contact_of)
        };
        let (link, keys) = (LinkEstimate::new(true), keys(7));
        let opening = ChannelSender::open(to, &keys, (ME, at()), (None, &link));
        let (accepted, opened) = tokio::join!(accepting, opening);
        (accepted, opened, keys.own.public())
    }

    #[tokio::test]
    async fn only_an_end_with_the_keys_is_accepted() {
        let there = keys(7);
        let (accepted, opened, key) = open_and_accept(&there, there.own.public()).await;
        assert_eq!(accepted.unwrap(), (ME, Contact { address: at(), key }));
        assert!(opened.is_ok());
        let other = keys(8);
        for (there, expected) in [(&other, other.own.public()), (&there, other.own.public())] {
            let (accepted, opened, _) = open_and_accept(there, expected).await;
            assert!(matches!(accepted, Err(ChannelError::Noise(_))));
            assert!(opened.is_err());
        }
    }

    #[tokio::test]
    async fn a_message_changed_in_transit_is_refused() {
        let (near, far) = (TcpListener::bind(("127.0.0.1", 0)), TcpListener::bind(("127.0.0.1", 0)));
        let (near, far) = (near.await.unwrap(), far.await.unwrap());
        let (middle, end) = (near.local_addr().unwrap(), far.local_addr().unwrap());
        // The relay flips a bit of the first message after the handshake.
        let relay = async {
            let (mut from, _) = near.accept().await.unwrap();
            let mut to = TcpStream::connect(end).await.unwrap();
            let mut bytes = [0; 300];
            from.read_exact(&mut bytes[..98]).await.unwrap();
            to.write_all(&bytes[..98]).await.unwrap();
            to.read_exact(&mut bytes[..50]).await.unwrap();
            from.write_all(&bytes[..50]).await.unwrap();
            let count = from.read(&mut bytes).await.unwrap();
            bytes[count - 1] ^= 1;
            to.write_all(&bytes[..count]).await.unwrap();
        };
        let (here, there) = (keys(7), keys(7));
        let accepting = async {
            let (stream, _) = far.accept().await.unwrap();
            ChannelReceiver::accept(stream, &there).await.map(contact_of)
        };
        let (link, to) = (LinkEstimate::new(true), Contact { address: middle, key: there.own.public() });
        let opening = ChannelSender::open(to, &here, (ME, at()), (None, &link));
        let (_, accepted, _) = tokio::join!(relay, accepting, opening);
        assert!(matches!(accepted, Err(ChannelError::Noise(_))), "{accepted:?}");
    }
}
