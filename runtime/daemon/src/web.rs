//! Pages over HTTP/1.1, for people and for Prometheus, to be read only. Connections are few and short, so whoever holds
//! many or sends nothing keeps nobody else away for long.

use crate::accept::{Incoming, Listen};
use crate::process;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

/// Connections at a time; more wait in the system's queue.
const CONNECTIONS: usize = 64;
/// How long a request may take to come.
const HEADER_WITHIN: Duration = Duration::from_secs(5);
/// How long a connection may last: who wants more connects again.
const LASTS: Duration = Duration::from_secs(30);
/// What Prometheus expects.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The flag by which pages are served.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Serve pages to read at this address, among them /metrics for Prometheus [default: none]
    ///
    /// Without TLS and for everybody who reaches it: a loopback or management address.
    #[arg(long, value_name = "IP:PORT")]
    pub http: Option<SocketAddr>,
}

/// The address cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve pages at {address}: {source}; choose another address with --http")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

impl Options {
    /// Takes the address, if one is given.
    ///
    /// # Errors
    /// If it cannot be had.
    pub async fn listen(&self) -> Result<Option<TcpListener>, ListenError> {
        let Some(address) = self.http else { return Ok(None) };
        let listener = TcpListener::bind(address).await;
        listener.map(Some).map_err(|source| ListenError { address, source })
    }
}

/// Serves the pages of `router` until dropped.
pub async fn serve(
    listener: impl Listen<Connection = (TcpStream, SocketAddr)>,
    router: Router,
) -> Infallible {
    let incoming = Incoming::new(listener, "reader of pages", CONNECTIONS);
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let ((socket, _), place) = incoming.next().await;
        let router = router.clone();
        connections.spawn(async move {
            converse(socket, router).await;
            drop(place);
        });
    }
}

async fn converse(socket: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_WITHIN)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    if let Ok(Err(error)) = timeout(LASTS, connection).await {
        debug!(%error, "a reader of pages went away");
    }
}

/// The page of metrics: these, and what is told of every process.
pub fn metrics(registry: &Registry) -> Response {
    let mut text = String::new();
    let mut encode = || {
        encode_registry(&mut text, registry)?;
        encode_registry(&mut text, &process::registry())?;
        encode_eof(&mut text)
    };
    match encode() {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            warn!(%error, "metrics cannot be written");
            axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use prometheus_client::metrics::counter::Counter;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn page(request: &str) -> String {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        registry.register("things", "What there is", counter.clone());
        counter.inc();
        let registry = Arc::new(registry);
        let router = Router::new().route("/metrics", get(move || async move { metrics(&registry) }));
        let options = Options { http: Some(([127, 0, 0, 1], 0).into()) };
        let listener = options.listen().await.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, router));
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_are_what_prometheus_reads() {
        let answer = page("GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains(OPEN_METRICS), "{answer}");
        assert!(answer.contains("# TYPE things counter\nthings_total 1\n"), "{answer}");
        assert!(
            answer.contains("\nprocess_resident_memory_bytes ") && answer.ends_with("\n# EOF\n"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn garbage_is_refused() {
        for request in ["\0\0\0\0\r\n\r\n", "POST /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"]
        {
            let answer = page(request).await;
            assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
    }
}
