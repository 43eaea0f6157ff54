//! The controller's HTTP pages: the live page, its data, and metrics.

use crate::pages::metrics;
use crate::pages::status::{Status, StatusSource};
use axum::Router;
use axum::extract::State;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use cool_daemon::web;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tracing::warn;

/// The page uses no external resources, so the policy forbids them.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
const PAGE: &str = include_str!("page.html");

/// Maximum age of a cached status. It limits the load, because any number of clients may request
/// pages.
const MAX_AGE: Duration = Duration::from_millis(500);

/// State shared by all requests.
struct PageState {
    source: StatusSource,
    /// The last status and its time. Concurrent requests wait for the one that renews it.
    cached: Mutex<Option<(Instant, Arc<Status>)>>,
}

impl PageState {
    async fn status(&self) -> Arc<Status> {
        let mut cached = self.cached.lock().await;
        if let Some((at, status)) = &*cached
            && at.elapsed() < MAX_AGE
        {
            return status.clone();
        }
        let status = Arc::new(self.source.snapshot().await);
        *cached = Some((Instant::now(), status.clone()));
        status
    }
}

/// Returns all pages, with the status from `source`.
pub fn router(source: StatusSource) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/metrics", get(prometheus))
        .route("/status.json", get(status))
        .route("/topology.svg", get(picture))
        .with_state(Arc::new(PageState { source, cached: Mutex::default() }))
}

async fn page() -> impl IntoResponse {
    ([(CONTENT_SECURITY_POLICY, POLICY)], Html(PAGE))
}

async fn prometheus(State(state): State<Arc<PageState>>) -> Response {
    web::metrics(&metrics::registry(state.status().await))
}

async fn status(State(state): State<Arc<PageState>>) -> Response {
    match serde_json::to_string(&*state.status().await) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            warn!(%error, "cannot encode the status");
            axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn picture(State(state): State<Arc<PageState>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "image/svg+xml")], state.source.draw())
}
