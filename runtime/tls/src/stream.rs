//! A TCP connection with or without TLS.

use crate::credentials::{CertifiedPeer, Credentials, PeerRegistration, wait_until_revoked};
use crate::expiry::expiry_of;
use crate::explain::explained;
use crate::material::Material;
use crate::role::Identity;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsStream;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// A connection. Written data must be flushed, because TLS buffers it. TLS errors are explained in
/// their message.
#[derive(Debug)]
pub enum MaybeTlsStream {
    /// Without TLS.
    Plaintext(TcpStream),
    /// With TLS.
    Tls(Box<TlsSession>),
}

/// A TLS connection. It fails as soon as the certificate of its peer is revoked.
pub struct TlsSession {
    stream: TlsStream<TcpStream>,
    /// Completes when the peer's certificate is revoked. `None` afterwards.
    revoked: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _registration: Option<PeerRegistration>,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsSession").field(&self.stream).finish()
    }
}

impl TlsSession {
    /// Creates a session with a peer that presented a certificate for `identity`. `updates` must be
    /// the receiver that [`Credentials::current`] returned for the handshake.
    pub(crate) fn new(
        stream: TlsStream<TcpStream>,
        credentials: &Credentials,
        updates: watch::Receiver<Arc<Material>>,
        identity: Option<Identity>,
    ) -> TlsSession {
        let certificate = peer_certificate(&stream);
        let until = certificate.as_ref().and_then(expiry_of);
        let peer = identity.zip(until).map(|(identity, until)| CertifiedPeer { identity, until });
        let revoked = certificate.map(|certificate| Box::pin(wait_until_revoked(updates, certificate)) as _);
        TlsSession { stream, revoked, _registration: peer.map(|peer| credentials.register(peer)) }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let ended = self.revoked.as_mut().is_none_or(|revoked| revoked.as_mut().poll(cx).is_ready());
        if ended {
            self.revoked = None;
            let why = "its certificate has been revoked";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(())
    }
}

/// Returns the peer's certificate.
pub(crate) fn peer_certificate(stream: &TlsStream<TcpStream>) -> Option<CertificateDer<'static>> {
    Some(stream.get_ref().1.peer_certificates()?.first()?.clone().into_owned())
}

impl AsyncRead for MaybeTlsStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            MaybeTlsStream::Plaintext(stream) => Pin::new(stream).poll_read(cx, into),
            MaybeTlsStream::Tls(session) => {
                session.check(cx)?;
                Pin::new(&mut session.stream).poll_read(cx, into).map_err(explained)
            }
        }
    }
}

impl AsyncWrite for MaybeTlsStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            MaybeTlsStream::Plaintext(stream) => Pin::new(stream).poll_write(cx, from),
            MaybeTlsStream::Tls(session) => {
                Pin::new(&mut session.stream).poll_write(cx, from).map_err(explained)
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            MaybeTlsStream::Plaintext(stream) => Pin::new(stream).poll_flush(cx),
            MaybeTlsStream::Tls(session) => Pin::new(&mut session.stream).poll_flush(cx).map_err(explained),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            MaybeTlsStream::Plaintext(stream) => Pin::new(stream).poll_shutdown(cx),
            MaybeTlsStream::Tls(session) => {
                Pin::new(&mut session.stream).poll_shutdown(cx).map_err(explained)
            }
        }
    }
}
