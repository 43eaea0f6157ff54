//! Channels: each carries what one member says to another, over TCP, sealed by Noise (revision 34, pattern NNpsk0).
//!
//! Noise encrypts and authenticates messages under the swarm's pre-shared key: without it nobody opens a channel, reads a message or
//! changes one unnoticed. A channel has one direction; what the other member answers goes over its own. Only an inquiry, by one that is no
//! member yet, is answered over the same channel.

use crate::wire::{Frame, MESSAGE_BYTES, TAG_BYTES, WireError};
use cool_swarm::Member;
use cool_tcp::{Congestion, LinkEstimate, bound_retransmission_timeout};
use snow::{Builder, HandshakeState, TransportState};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Both ends speak the same version of the same protocol.
const PROLOGUE: &[u8] = b"cool-peer 3";
/// For a connection and its handshake.
const OPENING: Duration = Duration::from_secs(5);
/// Until a connection is given up whose other end acknowledges nothing.
const SILENCE: Duration = Duration::from_secs(4);
/// After how much silence it is looked whether the other end is there.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Until it is given up if the other end takes nothing.
const STUCK: Duration = Duration::from_secs(30);
const LENGTH_BYTES: usize = 2;

/// A key that all members of a swarm have, and nobody else.
pub type SwarmKey = [u8; 32];

/// Why there is no channel (any more).
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error(transparent)]
    System(#[from] io::Error),
    #[error("the other end has another key or another version: {0}")]
    Noise(#[from] snow::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the other end does not say who it is")]
    Stranger,
    #[error("nothing moved for {0:?}")]
    Slow(Duration),
}

/// The end that speaks.
pub(crate) struct Speaker {
    stream: TcpStream,
    noise: TransportState,
    sealed: Vec<u8>,
    /// Of one over which blocks go.
    congestion: Option<Congestion>,
}

/// Who has opened a channel.
pub(crate) enum Caller {
    /// A member, which can be reached there.
    Member { member: Member, contact: SocketAddr, listener: Listener },
    /// One that will be a member, and is to be told what members know.
    Newcomer { member: Member, speaker: Speaker },
}

/// The end that listens.
pub(crate) struct Listener {
    stream: BufReader<TcpStream>,
    noise: TransportState,
    sealed: Vec<u8>,
    plain: Vec<u8>,
}

impl Speaker {
    /// Opens a channel to a member, as the member `me` that can be reached at `contact`; `send_buffer` is the
    /// SO_SNDBUF of its socket in bytes, which Linux doubles for what it keeps beside them, or none for the system's own; `link` is
    /// what this member's channels know of its link.
    pub(crate) async fn open(
        to: SocketAddr,
        key: &SwarmKey,
        (me, contact): (Member, SocketAddr),
        (send_buffer, link): (Option<usize>, &LinkEstimate),
    ) -> Result<Speaker, ChannelError> {
        let mut speaker = Speaker::connect(to, key).await?;
        speaker.congestion = Some(link.choose(&speaker.stream));
        if let Some(bytes) = send_buffer {
            SockRef::from(&speaker.stream).set_send_buffer_size(bytes)?;
        }
        speaker.send(&Frame::Hello { member: me, contact }).await?;
        Ok(speaker)
    }

    /// Opens a channel on which nothing was said.
    pub(crate) async fn connect(to: SocketAddr, key: &SwarmKey) -> Result<Speaker, ChannelError> {
        bounded(OPENING, async {
            let mut stream = cool_tcp::connect(None, to).await?;
            tune(&stream)?;
            let mut noise = builder(key)?.build_initiator()?;
            say(&mut stream, &mut noise).await?;
            hear(&mut stream, &mut noise).await?;
            let noise = noise.into_transport_mode()?;
            Ok(Speaker::on(stream, noise))
        })
        .await
    }

    fn on(stream: TcpStream, noise: TransportState) -> Speaker {
        Speaker { stream, noise, sealed: vec![0; LENGTH_BYTES + MESSAGE_BYTES], congestion: None }
    }

    /// Asks for what members know, as one that will be `me`; the end at which the answer comes.
    pub(crate) async fn inquire(mut self, me: Member) -> Result<Listener, ChannelError> {
        self.send(&Frame::Inquire { member: me }).await?;
        Ok(Listener::on(self.stream, self.noise))
    }

    /// Waits until the other end, which says nothing, has closed the channel or cannot be reached any more.
    pub(crate) async fn closed(&mut self) {
        let mut said = [0; 64];
        while self.stream.read(&mut said).await.is_ok_and(|bytes| bytes > 0) {}
    }

    /// Sends a message, once there is room for it.
    pub(crate) async fn send(&mut self, frame: &Frame<'_>) -> Result<(), ChannelError> {
        let plain = frame.encode()?;
        let bytes = self.noise.write_message(&plain, &mut self.sealed[LENGTH_BYTES..])?;
        // No longer than a message can be.
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

impl Listener {
    fn on(stream: TcpStream, noise: TransportState) -> Listener {
        let stream = BufReader::with_capacity(LENGTH_BYTES + MESSAGE_BYTES, stream);
        let sealed = Vec::with_capacity(MESSAGE_BYTES);
        Listener { stream, noise, sealed, plain: vec![0; MESSAGE_BYTES] }
    }

    /// Takes a connection; who speaks.
    pub(crate) async fn accept(mut stream: TcpStream, key: &SwarmKey) -> Result<Caller, ChannelError> {
        bounded(OPENING, async {
            tune(&stream)?;
            let mut noise = builder(key)?.build_responder()?;
            hear(&mut stream, &mut noise).await?;
            say(&mut stream, &mut noise).await?;
            let noise = noise.into_transport_mode()?;
            let mut listener = Listener::on(stream, noise);
            match listener.next().await? {
                Frame::Hello { member, contact } => Ok(Caller::Member { member, contact, listener }),
                // It says nothing more before it has its answer.
                Frame::Inquire { member } => {
                    let speaker = Speaker::on(listener.stream.into_inner(), listener.noise);
                    Ok(Caller::Newcomer { member, speaker })
                }
                _ => Err(ChannelError::Stranger),
            }
        })
        .await
    }

    /// Says and hears nothing more; the channel is open as long as this is.
    pub(crate) fn hold(self) -> io::Result<std::net::TcpStream> {
        self.stream.into_inner().into_std()
    }

    /// The next message, however long it takes to come.
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

fn builder(key: &SwarmKey) -> Result<Builder<'_>, snow::Error> {
    Builder::new(PATTERN.parse()?).psk(0, key)?.prologue(PROLOGUE)
}

/// Signals are short and wait for nobody; a dead end is noticed.
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

/// A message of the handshake.
async fn say(stream: &mut TcpStream, noise: &mut HandshakeState) -> Result<(), ChannelError> {
    let mut message = [0; 256];
    let bytes = noise.write_message(&[], &mut message)?;
    // A key and a tag.
    stream.write_u16(bytes as u16).await?;
    Ok(stream.write_all(&message[..bytes]).await?)
}

async fn hear(stream: &mut TcpStream, noise: &mut HandshakeState) -> Result<(), ChannelError> {
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
    use tokio::net::TcpListener;

    const ME: Member = Member { rack: 1, slot: 2 };

    fn who(caller: Caller) -> (Member, SocketAddr) {
        match caller {
            Caller::Member { member, contact, .. } => (member, contact),
            Caller::Newcomer { .. } => panic!("it has said hello"),
        }
    }

    fn at() -> SocketAddr {
        "127.0.0.1:9".parse().unwrap()
    }

    /// What an end with that key hears of one that opens a channel with key 7, and what that one gets.
    async fn meeting(key: u8) -> (Result<(Member, SocketAddr), ChannelError>, Result<Speaker, ChannelError>) {
        let socket = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let to = socket.local_addr().unwrap();
        let hearing = async {
            let (stream, _) = socket.accept().await.unwrap();
            Listener::accept(stream, &[key; 32]).await.map(who)
        };
        let link = LinkEstimate::new(true);
        tokio::join!(hearing, Speaker::open(to, &[7; 32], (ME, at()), (None, &link)))
    }

    #[tokio::test]
    async fn who_has_the_key_is_heard_and_who_has_another_is_not() {
        let (heard, opened) = meeting(7).await;
        assert_eq!(heard.unwrap(), (ME, at()));
        assert!(opened.is_ok());
        let (heard, opened) = meeting(8).await;
        assert!(matches!(heard, Err(ChannelError::Noise(_))));
        assert!(opened.is_err());
    }

    #[tokio::test]
    async fn what_was_changed_on_its_way_is_refused() {
        let (near, far) = (TcpListener::bind(("127.0.0.1", 0)), TcpListener::bind(("127.0.0.1", 0)));
        let (near, far) = (near.await.unwrap(), far.await.unwrap());
        let (middle, end) = (near.local_addr().unwrap(), far.local_addr().unwrap());
        // In the middle a bit of the first message behind the handshake is turned.
        let relay = async {
            let (mut from, _) = near.accept().await.unwrap();
            let mut to = TcpStream::connect(end).await.unwrap();
            let mut bytes = [0; 300];
            for (there, and_back) in [(50, 50), (0, 0)] {
                from.read_exact(&mut bytes[..there]).await.unwrap();
                to.write_all(&bytes[..there]).await.unwrap();
                to.read_exact(&mut bytes[..and_back]).await.unwrap();
                from.write_all(&bytes[..and_back]).await.unwrap();
            }
            let count = from.read(&mut bytes).await.unwrap();
            bytes[count - 1] ^= 1;
            to.write_all(&bytes[..count]).await.unwrap();
        };
        let hearing = async {
            let (stream, _) = far.accept().await.unwrap();
            Listener::accept(stream, &[7; 32]).await.map(who)
        };
        let link = LinkEstimate::new(true);
        let speaking = Speaker::open(middle, &[7; 32], (ME, at()), (None, &link));
        let (_, heard, _) = tokio::join!(relay, hearing, speaking);
        assert!(matches!(heard, Err(ChannelError::Noise(_))), "{heard:?}");
    }
}
