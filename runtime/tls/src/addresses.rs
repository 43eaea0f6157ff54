//! Alternative addresses of a service. One of them serves requests, but it is not known in advance
//! which.

use http::Uri;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long to wait for an address before the next one is tried in parallel (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Alternative addresses. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    uris: Arc<[Uri]>,
    /// Index of the address to try first next time. It advances after each attempt, because an
    /// address may accept connections without serving requests.
    first: Arc<AtomicUsize>,
}

impl Addresses {
    pub(crate) fn new(uris: Vec<Uri>) -> Addresses {
        Addresses { uris: uris.into(), first: Arc::default() }
    }

    /// Connects to the first address that accepts the connection. An address that does not respond
    /// delays the next attempt by `ATTEMPT_DELAY` only.
    pub(crate) async fn connect<S, F>(&self, connect: impl Fn(Uri) -> F) -> io::Result<S>
    where
        S: Send + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        let first = self.first.fetch_add(1, Ordering::Relaxed) % self.uris.len().max(1);
        let (later, earlier) = self.uris.split_at(first);
        let mut waiting = earlier.iter().chain(later);
        let mut tries = JoinSet::new();
        let mut failures = Vec::new();
        loop {
            let next = waiting.next();
            if let Some(uri) = next.cloned() {
                let connecting = connect(uri.clone());
                tries.spawn(async move { connecting.await.map_err(|error| (uri, error)) });
            }
            tokio::select! {
                Some(tried) = tries.join_next() => match tried.map_err(io::Error::other)? {
                    Ok(stream) => return Ok(stream),
                    Err(failure) => failures.push(failure),
                },
                () = sleep(ATTEMPT_DELAY), if next.is_some() => {}
                else => return Err(none_of(failures)),
            }
        }
    }
}

/// Parses a URL. Returns `None` unless it has a host and a port.
pub(crate) fn parse(url: &str) -> Option<Uri> {
    let uri: Uri = url.parse().ok()?;
    let whole = uri.port().is_some() && uri.host().is_some_and(|host| !host.is_empty());
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    (whole && known).then_some(uri)
}

/// Returns the host and the port of an address. An IPv6 host is returned without its brackets.
pub(crate) fn host_and_port(uri: &Uri) -> io::Result<(&str, u16)> {
    let host = uri.host().unwrap_or_default();
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let port = uri.port_u16().ok_or_else(|| io::Error::other("the address has no port"))?;
    Ok((host, port))
}

/// Combines the errors of all addresses into one.
fn none_of(mut failures: Vec<(Uri, io::Error)>) -> io::Error {
    if failures.len() == 1 {
        return failures.remove(0).1;
    }
    let name = |uri: &Uri| uri.to_string().trim_end_matches('/').to_owned();
    let text: Vec<String> = failures.iter().map(|(uri, error)| format!("{}: {error}", name(uri))).collect();
    io::Error::other(text.join("; "))
}
