//! Pages of a standby controller.

use crate::leadership::LeadershipState;
use axum::Router;
use axum::routing::get;
use cool_daemon::web;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// Name and help text of the metric that shows whether a controller leads.
pub const LEADS: (&str, &str) =
    ("cool_controller_leads", "Whether this controller leads: 1, or 0 while it stands by");

/// Returns the pages `/` and `/metrics`.
pub fn router(state: watch::Receiver<LeadershipState>) -> Router {
    let text = move || async move {
        match &*state.borrow() {
            LeadershipState::Standby(Some(leader)) => format!("standing by: {leader} leads\n"),
            _ => "standing by: the leader is not known\n".to_owned(),
        }
    };
    let metrics = || async {
        let mut registry = Registry::default();
        registry.register(LEADS.0, LEADS.1, Gauge::<i64>::default());
        web::metrics(&registry)
    };
    Router::new().route("/", get(text)).route("/metrics", get(metrics))
}
