//! Accepts connections from switches, agents and tools. Each client must authenticate before it is
//! served, and rejected clients are logged.

use crate::accept::LimitedListener;
use crate::handshakes::PendingHandshakes;
use crate::process;
use crate::rejections::RejectionLog;
use cool_tls::{AcceptedConnection, Acceptor, Identity, MaybeTlsStream};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tonic::transport::server::Connected;
use tracing::warn;

/// Maximum number of connections of one listener, including those in their handshake, if the
/// process may open enough files.
const MAX_CONNECTIONS: usize = 1 << 16;
/// Number of files that are reserved for other purposes: the log, certificates, pages and etcd.
const RESERVED_FILES: usize = 1024;
/// Number of listeners of a process that share its files.
const LISTENERS: usize = 2;

/// Returns the maximum number of connections of one listener, in a process that may open
/// `files_max` files.
fn connections_max(files_max: Option<u64>) -> usize {
    let files = files_max.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    // At most a quarter is reserved.
    ((files - RESERVED_FILES.min(files / 4)) / LISTENERS).clamp(1, MAX_CONNECTIONS)
}

/// A listening socket that authenticates its clients.
#[derive(Debug)]
pub struct ClientListener {
    socket: TcpListener,
    acceptor: Acceptor,
}

/// The client of a connection. Handlers of requests receive it with each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's address.
    pub address: SocketAddr,
    /// Its authenticated identity. `None` without TLS.
    pub identity: Option<Identity>,
}

/// An accepted connection.
#[derive(Debug)]
pub struct ClientConnection {
    /// The client.
    pub client: Client,
    /// The stream to the client.
    pub stream: MaybeTlsStream,
}

impl ClientListener {
    /// Listens on `socket` and authenticates clients with `acceptor`.
    pub fn new(socket: TcpListener, acceptor: Acceptor) -> ClientListener {
        ClientListener { socket, acceptor }
    }

    /// Listens on `socket` without TLS.
    pub fn plaintext(socket: TcpListener) -> ClientListener {
        ClientListener::new(socket, Acceptor::Plaintext)
    }

    /// Serves each connection in its own task, until `closed` completes. `client_kind` names the
    /// expected clients in the log.
    pub async fn run<F>(
        self,
        client_kind: &'static str,
        closed: impl Future<Output = ()>,
        serve: impl Fn(ClientConnection) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        let limit = connections_max(process::files_max());
        let incoming = LimitedListener::new(self.socket, client_kind, limit);
        let (rejections, pending) =
            (Arc::new(RejectionLog::default()), Arc::new(PendingHandshakes::default()));
        tokio::pin!(closed);
        loop {
            let ((socket, address), permit) = tokio::select! {
                accepted = incoming.next() => accepted,
                () = &mut closed => return,
            };
            let (acceptor, serve, rejections) = (self.acceptor.clone(), serve.clone(), rejections.clone());
            let mut handshake = pending.begin(address.ip());
            tokio::spawn(async move {
                if let Err(error) = socket.set_nodelay(true) {
                    warn!(peer = %address, %error, "{client_kind}: cannot disable Nagle's algorithm");
                }
                let accepted = tokio::select! {
                    accepted = acceptor.accept(socket) => accepted.map_err(|why| why.to_string()),
                    () = handshake.replaced() => Err("too many clients have not authenticated".to_owned()),
                };
                drop(handshake);
                match accepted {
                    Ok(AcceptedConnection { stream, identity }) => {
                        serve(ClientConnection { client: Client { address, identity }, stream }).await;
                    }
                    Err(why) => match rejections.record(address.ip(), &why, Instant::now()) {
                        None => {}
                        Some(0) => warn!(peer = %address, "{client_kind} turned away: {why}"),
                        Some(repeated) => {
                            warn!(peer = %address, repeated, "{client_kind} turned away again: {why}");
                        }
                    },
                }
                drop(permit);
            });
        }
    }
}

impl Connected for ClientConnection {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client.clone()
    }
}

impl AsyncRead for ClientConnection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, into)
    }
}

impl AsyncWrite for ClientConnection {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_leave_files_for_other_purposes() {
        let limits = [Some(65_536), Some(1024), Some(4), Some(0), Some(1 << 40), None].map(connections_max);
        assert_eq!(limits, [32_256, 384, 1, 1, MAX_CONNECTIONS, MAX_CONNECTIONS]);
    }
}
