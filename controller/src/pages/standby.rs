//! What there is to see of a controller that stands by.

use crate::leadership::Standing;
use axum::Router;
use axum::routing::get;
use cool_daemon::web;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// The metric that says whether a controller leads, and what that means.
pub const LEADS: (&str, &str) =
    ("cool_controller_leads", "Whether this controller leads: 1, or 0 while it stands by");

/// `/` and `/metrics`.
pub fn router(standing: watch::Receiver<Standing>) -> Router {
    let words = move || async move {
        match &*standing.borrow() {
            Standing::By(Some(leader)) => format!("standing by: {leader} leads\n"),
            _ => "standing by: nobody is known to lead\n".to_owned(),
        }
    };
    let metrics = || async {
        let mut registry = Registry::default();
        registry.register(LEADS.0, LEADS.1, Gauge::<i64>::default());
        web::metrics(&registry)
    };
    Router::new().route("/", get(words)).route("/metrics", get(metrics))
}
