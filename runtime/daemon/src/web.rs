//! Read-only HTTP/1.1 pages for people and for Prometheus.
//!
//! The number and the duration of connections are limited, so that a client with many idle
//! connections cannot block others for long.

use crate::accept::{LimitedListener, Listen};
use crate::process;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tracing::{debug, warn};

/// Time within which a program's core must respond to a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// Content type that Prometheus expects.
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Command-line flag of the HTTP pages.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Serve read-only HTTP pages at this address, including /metrics for Prometheus [default:
    /// none]
    ///
    /// There is no TLS and no authentication: use a loopback or management address.
    #[arg(long, value_name = "IP:PORT")]
    pub http: Option<SocketAddr>,
}

/// Limits for the connections of clients.
#[derive(Clone, Copy, Debug)]
struct ConnectionLimits {
    /// Maximum number of simultaneous connections. A further one ends the oldest.
    number: usize,
    /// Maximum time for a client to send the header of a request.
    header: Duration,
    /// Maximum duration of a connection. Clients may reconnect.
    duration: Duration,
}

const LIMITS: ConnectionLimits =
    ConnectionLimits { number: 64, header: Duration::from_secs(5), duration: Duration::from_secs(30) };

/// The HTTP address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve pages at {address}: {source}; choose another address with --http")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

impl Options {
    /// Binds the address of the pages. Returns `None` if no address is given.
    ///
    /// # Errors
    /// Returns an error if the address cannot be used.
    pub async fn listen(&self) -> Result<Option<TcpListener>, ListenError> {
        let Some(address) = self.http else { return Ok(None) };
        let listener = TcpListener::bind(address).await;
        listener.map(Some).map_err(|source| ListenError { address, source })
    }
}

/// Serves the pages of `router` until the future is dropped.
pub async fn serve(
    listener: impl Listen<Connection = (TcpStream, SocketAddr)>,
    router: Router,
) -> Infallible {
    serve_within(LIMITS, listener, router).await
}

async fn serve_within(
    limits: ConnectionLimits,
    listener: impl Listen<Connection = (TcpStream, SocketAddr)>,
    router: Router,
) -> Infallible {
    let incoming = LimitedListener::new(listener, "HTTP client", limits.number);
    let mut connections = JoinSet::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let ((socket, _), permit) = incoming.next().await;
        while connections.try_join_next().is_some() {}
        open.retain(|connection| !connection.is_finished());
        // A client that keeps many connections open must not keep out others, for example the
        // health checks, without which the program would be ended.
        if open.len() + 1 >= limits.number
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let router = router.clone();
        open.push_back(connections.spawn(async move {
            serve_connection(limits, socket, router).await;
            drop(permit);
        }));
    }
}

async fn serve_connection(limits: ConnectionLimits, socket: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    if let Ok(Err(error)) = timeout(limits.duration, connection).await {
        debug!(%error, "an HTTP client disconnected");
    }
}

/// Returns the page `/healthz`, for health checks. Its status is 200 if `check` completes in time,
/// which must show that the core of the program responds, and 503 otherwise.
pub fn health<F>(check: impl Fn() -> F + Clone + Send + Sync + 'static) -> Router
where
    F: Future<Output = ()> + Send + 'static,
{
    Router::new().route("/healthz", get(move || health_status(check(), HEALTH_TIMEOUT)))
}

async fn health_status(check: impl Future<Output = ()>, limit: Duration) -> (StatusCode, &'static str) {
    match timeout(limit, check).await {
        Ok(()) => (StatusCode::OK, "the program responds\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the core of the program does not respond\n"),
    }
}

/// Returns the metrics page: the metrics in `registry` and those of the process.
pub fn metrics(registry: &Registry) -> Response {
    let mut text = String::new();
    let mut encode = || {
        encode_registry(&mut text, registry)?;
        encode_registry(&mut text, &process::registry())?;
        encode_eof(&mut text)
    };
    match encode() {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS_TYPE)], text).into_response(),
        Err(error) => {
            warn!(%error, "cannot encode the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let mut response = String::new();
        socket.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn metrics_are_in_the_format_of_prometheus() {
        let response = page("GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(response.contains(OPEN_METRICS_TYPE), "{response}");
        assert!(response.contains("# TYPE things counter\nthings_total 1\n"), "{response}");
        assert!(
            response.contains("\nprocess_resident_memory_bytes ") && response.ends_with("\n# EOF\n"),
            "{response}"
        );
    }

    #[tokio::test]
    async fn a_health_check_shows_whether_the_core_responds() {
        let limit = Duration::from_millis(1);
        let healthy = health_status(async {}, Duration::MAX).await;
        let hung = health_status(std::future::pending(), limit).await;
        assert_eq!((healthy.0, hung.0), (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE));
    }

    #[tokio::test]
    async fn a_client_with_all_connections_does_not_keep_out_others() {
        let hour = Duration::from_secs(3600);
        let limits = ConnectionLimits { number: 4, header: hour, duration: hour };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = health(|| async {});
        tokio::spawn(async move { serve_within(limits, listener, router).await });
        let mut idle = Vec::new();
        for _ in 0..8 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut response = String::new();
        socket.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    }

    #[tokio::test]
    async fn malformed_requests_are_refused() {
        for request in ["\0\0\0\0\r\n\r\n", "POST /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"]
        {
            let response = page(request).await;
            assert!(response.starts_with("HTTP/1.1 4"), "{response}");
        }
    }
}
