//! A TCP connection, with or without TLS on it.

use crate::explain::{explain, explained};
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
            Stream::Tls(stream) => {
                let done = Pin::new(&mut *stream).poll_write(cx, from);
                done.map_err(|error| refused(stream, cx, error))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plaintext(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => {
                let done = Pin::new(&mut *stream).poll_flush(cx);
                done.map_err(|error| refused(stream, cx, error))
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plaintext(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => {
                let done = Pin::new(&mut *stream).poll_shutdown(cx);
                done.map_err(|error| refused(stream, cx, error))
            }
        }
    }
}

/// Why a connection takes nothing any more. Who refuses us says why and hangs up; what we write meanwhile may fail
/// before that was read.
fn refused(stream: &mut TlsStream<TcpStream>, cx: &mut Context<'_>, error: io::Error) -> io::Error {
    let mut room = [0; 256];
    match Pin::new(stream).poll_read(cx, &mut ReadBuf::new(&mut room)) {
        Poll::Ready(Err(said)) if explain(&said).is_some() => explained(said),
        _ => explained(error),
    }
}
