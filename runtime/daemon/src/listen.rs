//! Takes connections in, from switches as from agents and tools: each is served only once the other side has
//! proved who it is, and one that does not is named in the log.

use crate::accept::Incoming;
use cool_tls::{AcceptedConnection, Acceptor, Identity, MaybeTlsStream};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tonic::transport::server::Connected;
use tracing::warn;

/// Connections of one listener at a time that are served or prove themselves.
const CONNECTIONS: usize = 1 << 16;

/// A socket that listens, and whom it is for.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    acceptor: Acceptor,
}

/// Who calls: told of each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// From where.
    pub address: SocketAddr,
    /// Who it proved to be; `None` without TLS.
    pub identity: Option<Identity>,
}

/// A connection that was taken in.
#[derive(Debug)]
pub struct Connection {
    /// Who is on the other side.
    pub client: Client,
    /// The way to it.
    pub stream: MaybeTlsStream,
}

impl Listener {
    /// Takes connections of `socket` as `acceptor` says.
    pub fn new(socket: TcpListener, acceptor: Acceptor) -> Listener {
        Listener { socket, acceptor }
    }

    /// Without TLS.
    pub fn plaintext(socket: TcpListener) -> Listener {
        Listener::new(socket, Acceptor::Plaintext)
    }

    /// Serves each connection by a task of its own, until `closed`. `whom` says in the log who is awaited.
    pub async fn run<F>(
        self,
        whom: &'static str,
        closed: impl Future<Output = ()>,
        serve: impl Fn(Connection) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        let incoming = Incoming::new(self.socket, whom, CONNECTIONS);
        tokio::pin!(closed);
        loop {
            let ((socket, address), permit) = tokio::select! {
                accepted = incoming.next() => accepted,
                () = &mut closed => return,
            };
            let (acceptor, serve) = (self.acceptor.clone(), serve.clone());
            tokio::spawn(async move {
                if let Err(error) = socket.set_nodelay(true) {
                    warn!(peer = %address, %error, "{whom}: cannot switch off Nagle's algorithm");
                }
                match acceptor.accept(socket).await {
                    Ok(AcceptedConnection { stream, identity }) => {
                        serve(Connection { client: Client { address, identity }, stream }).await;
                    }
                    Err(why) => warn!(peer = %address, "{whom} at {address} turned away: {why}"),
                }
                drop(permit);
            });
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, from)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
