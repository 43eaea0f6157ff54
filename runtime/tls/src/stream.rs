//! A TCP connection, with or without TLS on it.

use crate::credentials::{CertifiedPeer, Credentials, Seat, revoked};
use crate::expiry::end;
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

/// A connection. What was written must be flushed to leave for certain. Errors of TLS are told in plain words.
#[derive(Debug)]
pub enum Stream {
    /// Without TLS.
    Plaintext(TcpStream),
    /// With.
    Tls(Box<TlsSession>),
}

/// A connection with TLS, which fails as soon as the certificate of its other side is revoked.
pub struct TlsSession {
    stream: TlsStream<TcpStream>,
    /// Resolves when the other side is revoked; `None` once it is.
    revoked: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _seat: Option<Seat>,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsSession").field(&self.stream).finish()
    }
}

impl TlsSession {
    /// A session with whoever has shown this certificate, `identity`. It began by the first of what is `following`.
    pub(crate) fn new(
        stream: TlsStream<TcpStream>,
        credentials: &Credentials,
        following: watch::Receiver<Arc<Material>>,
        identity: Option<Identity>,
    ) -> TlsSession {
        let certificate = peer_certificate(&stream);
        let until = certificate.as_ref().and_then(end);
        let peer = identity.zip(until).map(|(identity, until)| CertifiedPeer { identity, until });
        let revoked = certificate.map(|certificate| Box::pin(revoked(following, certificate)) as _);
        TlsSession { stream, revoked, _seat: peer.map(|peer| credentials.seat(peer)) }
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

/// The certificate of the other side.
pub(crate) fn peer_certificate(stream: &TlsStream<TcpStream>) -> Option<CertificateDer<'static>> {
    Some(stream.get_ref().1.peer_certificates()?.first()?.clone().into_owned())
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plaintext(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Tls(session) => {
                session.check(cx)?;
                Pin::new(&mut session.stream).poll_read(cx, into).map_err(explained)
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plaintext(stream) => Pin::new(stream).poll_write(cx, from),
            Stream::Tls(session) => Pin::new(&mut session.stream).poll_write(cx, from).map_err(explained),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plaintext(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(session) => Pin::new(&mut session.stream).poll_flush(cx).map_err(explained),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plaintext(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(session) => Pin::new(&mut session.stream).poll_shutdown(cx).map_err(explained),
        }
    }
}
