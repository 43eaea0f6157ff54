//! The controller's pages: one that shows the cluster and keeps itself up to date, what it is made of, and metrics.

use crate::pages::metrics;
use crate::pages::status::{Status, Watcher};
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

/// The page needs nothing from elsewhere, and gets nothing.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
const PAGE: &str = include_str!("page.html");

/// However many look, and however often: the controller is asked no more often than this.
const FRESH: Duration = Duration::from_millis(500);

/// What is shown, to all who look.
struct Shown {
    watcher: Watcher,
    /// The last look, and when it was. Who comes meanwhile waits for it.
    seen: Mutex<Option<(Instant, Arc<Status>)>>,
}

impl Shown {
    async fn look(&self) -> Arc<Status> {
        let mut seen = self.seen.lock().await;
        if let Some((at, status)) = &*seen
            && at.elapsed() < FRESH
        {
            return status.clone();
        }
        let status = Arc::new(self.watcher.look().await);
        *seen = Some((Instant::now(), status.clone()));
        status
    }
}

/// All pages, of what `watcher` sees.
pub fn router(watcher: Watcher) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/metrics", get(prometheus))
        .route("/status.json", get(status))
        .route("/topology.svg", get(picture))
        .with_state(Arc::new(Shown { watcher, seen: Mutex::default() }))
}

async fn page() -> impl IntoResponse {
    ([(CONTENT_SECURITY_POLICY, POLICY)], Html(PAGE))
}

async fn prometheus(State(shown): State<Arc<Shown>>) -> Response {
    web::metrics(&metrics::registry(shown.look().await))
}

async fn status(State(shown): State<Arc<Shown>>) -> Response {
    match serde_json::to_string(&*shown.look().await) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            warn!(%error, "the status cannot be written");
            axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn picture(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "image/svg+xml")], shown.watcher.draw())
}
