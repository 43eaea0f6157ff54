//! The controller's pages: one that shows the cluster and keeps itself up to date, what it is made of, and metrics.

use crate::metrics;
use crate::status::Watcher;
use axum::Router;
use axum::extract::State;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use cool_daemon::web;
use std::sync::Arc;
use tracing::warn;

/// The page needs nothing from elsewhere, and gets nothing.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
const PAGE: &str = include_str!("page.html");

/// All pages, of what `watcher` sees.
pub fn router(watcher: Watcher) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/metrics", get(prometheus))
        .route("/status.json", get(status))
        .route("/topology.svg", get(picture))
        .with_state(Arc::new(watcher))
}

async fn page() -> impl IntoResponse {
    ([(CONTENT_SECURITY_POLICY, POLICY)], Html(PAGE))
}

async fn prometheus(State(watcher): State<Arc<Watcher>>) -> Response {
    web::metrics(&metrics::registry(watcher.look().await))
}

async fn status(State(watcher): State<Arc<Watcher>>) -> Response {
    match serde_json::to_string(&watcher.look().await) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            warn!(%error, "the status cannot be written");
            axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn picture(State(watcher): State<Arc<Watcher>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "image/svg+xml")], watcher.draw())
}
