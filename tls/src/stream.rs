//! A TCP connection, with or without TLS on it.

use crate::explain::explained;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// A connection. What was written must be flushed to leave for certain. Errors of TLS are told in plain words.
#[derive(Debug)]
pub enum Stream {
    /// Without TLS.
    Plaintext(TcpStream),
    /// With.
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plaintext(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, into).map_err(explained),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plaintext(stream) => Pin::new(stream).poll_write(cx, from),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, from).map_err(explained),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plaintext(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx).map_err(explained),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plaintext(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx).map_err(explained),
        }
    }
}
