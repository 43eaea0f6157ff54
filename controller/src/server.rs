//! The gRPC server from its start to an orderly end.

use crate::agents::Agents;
use crate::agents::attendance::Attendance;
use crate::agents::traces::Traces;
use crate::costs::Given;
use crate::costs::prober::Prober;
use cool_fabric::Fabric;
use crate::groups::Groups;
use crate::groups::keys::GroupKeys;
use crate::groups::registrar::Registrar;
use crate::jobs::Jobs;
use crate::jobs::job::Limits;
use cool_daemon::listen::{ClientConnection, ClientListener};
use crate::pages;
use crate::pages::doctor::Doctor;
use crate::pages::status::Watcher;
use crate::restart::Takeover;
use crate::service::Service;
use cool_daemon::log::EventLog;
use cool_daemon::web;
use cool_proto::control::controller_server::ControllerServer;
use cool_proto::{CONTROL_MESSAGE_BYTES_MAX, job_ids};
use cool_tls::Credentials;
use cool_topology::Key;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{info, warn};

/// How often a silent peer is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How long it may take to answer; then its connection is closed.
const PONG_WITHIN: Duration = Duration::from_secs(3);
/// How long agents and callers may take to hear what there is to say when the controller stops, and then connections to end.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Connections that wait to be served.
const CONNECTIONS: usize = 64;

/// How the server is run.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// How often agents announce their nodes by LLDP.
    pub lldp_interval: Duration,
    /// What the keys that prove it are derived from; a secret of this run.
    pub lldp_key: Key,
    /// The keys of groups.
    pub keys: GroupKeys,
    /// How long jobs wait.
    pub limits: Limits,
    /// Jobs that one user may have at once, as it is now.
    pub jobs_per_user: watch::Receiver<u32>,
    /// Rates of links that need not be measured.
    pub given: Given,
    /// Tells this life of the controller from all others, of which later ones have larger generations: when it began,
    /// nanoseconds since 1970, or of a pair what etcd has for its leader, which is no less.
    pub generation: u64,
    /// Whether agents are turned away whose certificates name no node.
    pub only_bound_certificates: bool,
    /// By what it proves who it is; `None` without TLS.
    pub credentials: Option<Credentials>,
}

/// Pages to read, of what the server does.
#[derive(Debug)]
pub struct WebPages {
    /// Where.
    pub listener: TcpListener,
    /// What has happened.
    pub events: EventLog,
}

/// Serves agents and tools on `listener`, and `pages` if there are any, until `shutdown` resolves; then hands over: connections end
/// in order, and jobs, groups and nodes stay as they are for a controller that comes next.
///
/// # Errors
/// If the server fails.
pub async fn serve(
    config: ServerConfig,
    network: Arc<dyn Fabric>,
    listener: ClientListener,
    pages: Option<WebPages>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let interval = u32::try_from(config.lldp_interval.as_millis()).unwrap_or(u32::MAX);
    let last = job_ids::before_first(config.generation);
    let agents = Arc::new(Agents::new(interval, config.lldp_key, config.generation));
    let attendance = Arc::new(Attendance::new(config.limits.agent));
    let prober = Arc::new(Prober::new(network.clone(), agents.clone(), config.given));
    let groups = Arc::new(Groups::new(prober.clone(), config.keys, last));
    let mut probing = JoinSet::new();
    probing.spawn(prober.clone().run(groups.busy()));
    let hearing = attendance.hearing();
    let jobs = Arc::new(Jobs::new(
        network.clone(),
        agents.clone(),
        groups.clone(),
        (config.limits, config.jobs_per_user),
        last,
        hearing,
    ));
    let registrar = Arc::new(Registrar::new(network.clone(), groups.clone(), config.limits));
    let takeover =
        Takeover::new(network.clone(), groups.clone(), jobs.clone(), registrar.clone(), config.limits);
    let mut paging = JoinSet::new();
    if let Some(WebPages { listener, events }) = pages {
        let watcher = Watcher {
            network: network.clone(),
            agents: agents.clone(),
            attendance: attendance.clone(),
            groups: groups.clone(),
            jobs: jobs.clone(),
            credentials: config.credentials.clone(),
            events,
        };
        paging.spawn(web::serve(listener, pages::web::router(watcher)));
    }
    let doctor = Doctor::new(network.clone(), agents.clone(), attendance.clone(), config.credentials);
    let service = Service {
        doctor: Arc::new(doctor),
        only_bound_certificates: config.only_bound_certificates,
        network,
        agents: agents.clone(),
        attendance,
        groups,
        jobs: jobs.clone(),
        registrar: registrar.clone(),
        takeover: Arc::new(takeover),
        prober,
        traces: Arc::new(Traces::new(agents.clone())),
    };

    let (taken, connections) = mpsc::channel(CONNECTIONS);
    tokio::spawn(listen(listener, taken));
    let (stop, stopped) = oneshot::channel::<()>();
    let absences = service.clone().watch();
    let server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PONG_WITHIN))
        .add_service(ControllerServer::new(service).max_decoding_message_size(CONTROL_MESSAGE_BYTES_MAX))
        .serve_with_incoming_shutdown(ReceiverStream::new(connections).map(Ok::<_, Infallible>), async {
            // Also when the sender is dropped, the server is to end.
            let _ = stopped.await;
        });
    tokio::pin!(server);
    tokio::select! {
        failed = &mut server => return failed,
        () = registrar.watch() => {}
        () = absences => {}
        () = shutdown => info!("stopping; jobs and groups go on"),
    }
    probing.abort_all();
    let ending = async {
        let handed_over = async {
            jobs.settle().await;
            agents.stop().await;
            jobs.hand_over().await;
        };
        if timeout(END_WITHIN, handed_over).await.is_err() {
            warn!("some agents or callers did not take what there was to say within {END_WITHIN:?}");
        }
        drop(stop);
    };
    // The server runs on meanwhile, so that they hear it.
    let (served, ()) = tokio::join!(timeout(2 * END_WITHIN, server), ending);
    served.unwrap_or_else(|_| {
        warn!("some connections did not end within {END_WITHIN:?}");
        Ok(())
    })
}

/// Takes connections until the server has ended.
async fn listen(listener: ClientListener, taken: mpsc::Sender<ClientConnection>) {
    let ended = taken.clone();
    let serve = move |connection| {
        let taken = taken.clone();
        async move {
            // If the server has ended, the connection is closed, and so are all.
            let _ = taken.send(connection).await;
        }
    };
    listener.run("agent or tool", async move { ended.closed().await }, serve).await;
}
