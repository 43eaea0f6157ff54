//! The gRPC server, from its start to an orderly shutdown.

use crate::agents::AgentRegistry;
use crate::agents::presence::AgentPresence;
use crate::agents::traces::Traces;
use crate::costs::ConfiguredRates;
use crate::costs::prober::Prober;
use crate::flooding::FloodingMonitor;
use crate::graceful_restart::GroupRecovery;
use crate::groups::GroupRegistry;
use crate::groups::group_keys::GroupKeys;
use crate::groups::membership_driver::MembershipDriver;
use crate::groups::queriers::Queriers;
use crate::jobs::JobRegistry;
use crate::jobs::drain_state::DrainState;
use crate::leadership::state_store::StateStore;
use crate::pages;
use crate::pages::doctor::Doctor;
use crate::pages::status::StatusSource;
use crate::request_limits::LimitedController;
use crate::service::{DRAIN_FILE, Service};
use crate::timeouts::Timeouts;
use axum::Router;
use cool_daemon::listen::{ClientConnection, ClientListener};
use cool_daemon::log::EventLog;
use cool_daemon::web;
use cool_fabric::Fabric;
use cool_proto::job_ids;
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

/// Interval of pings on idle connections.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// How long a response to a ping may take before the connection is closed.
const PONG_TIMEOUT: Duration = Duration::from_secs(3);
/// At shutdown, how long agents and callers may take to read their last messages, and connections
/// to close.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of connections waiting to be served.
const MAX_WAITING_CONNECTIONS: usize = 64;

/// Configuration of the server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Interval at which agents announce their nodes by LLDP.
    pub lldp_interval: Duration,
    /// Secret from which the keys of LLDP announcements are derived. It must be new for each run.
    pub lldp_key: Key,
    /// Keys of groups.
    pub keys: GroupKeys,
    /// How long the controller waits for agents, ranks and callers.
    pub timeouts: Timeouts,
    /// Current maximum number of jobs per user.
    pub jobs_per_user: watch::Receiver<u32>,
    /// Link rates configured by the operator.
    pub configured_rates: ConfiguredRates,
    /// Generation of this run. Later runs have larger generations. It is the start time in
    /// nanoseconds since 1970, or for a pair the generation from etcd, which is not smaller.
    pub generation: u64,
    /// Whether to reject agents with certificates that do not name a node.
    pub only_bound_certificates: bool,
    /// The controller's certificates. `None` without TLS.
    pub credentials: Option<Credentials>,
    /// Time without a querier of multicast groups after which a node becomes one. With
    /// [`Duration::MAX`], no node does.
    pub querier_patience: Duration,
    /// Time without a change after which nodes examine whether a network without OpenFlow switches
    /// floods multicasts. `None`: they never do.
    pub flooding_quiet_time: Option<Duration>,
    /// State of earlier and for later runs.
    pub store: StateStore,
}

/// HTTP pages about the server.
#[derive(Debug)]
pub struct WebPages {
    /// The listening socket.
    pub listener: TcpListener,
    /// The log of events.
    pub events: EventLog,
    /// The page for health checks.
    pub health: Router,
}

/// Serves agents and tools on `listener`, and `pages` if given, until `shutdown` completes. Then it
/// hands over to the next controller: connections are closed, and jobs, groups and nodes stay as
/// they are.
///
/// # Errors
/// Returns an error if the server fails.
pub async fn serve(
    config: ServerConfig,
    network: Arc<dyn Fabric>,
    listener: ClientListener,
    pages: Option<WebPages>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let service = assemble(&config, network).await;
    let (agents, jobs) = (service.agents.clone(), service.jobs.clone());
    let membership_driver = service.membership_driver.clone();
    let mut probing = JoinSet::new();
    probing.spawn(service.prober.clone().run(service.groups.busy()));
    let (network_of_queriers, groups) = (service.network.clone(), service.groups.clone());
    let queriers = service.queriers.clone().run(network_of_queriers, groups, service.flooding.clone());
    probing.spawn(queriers);
    probing.spawn(service.flooding.clone().run());
    probing.spawn(service.groups.clone().repeat_proofs());
    let mut paging = JoinSet::new();
    if let Some(WebPages { listener, events, health }) = pages {
        let watcher = StatusSource {
            network: service.network.clone(),
            agents: agents.clone(),
            presence: service.presence.clone(),
            groups: service.groups.clone(),
            flooding: service.flooding.clone(),
            jobs: jobs.clone(),
            credentials: config.credentials,
            events,
        };
        paging.spawn(web::serve(listener, pages::web::router(watcher).merge(health)));
    }

    let (accepted, connections) = mpsc::channel(MAX_WAITING_CONNECTIONS);
    tokio::spawn(listen(listener, accepted));
    let (stop, stopped) = oneshot::channel::<()>();
    let lost_nodes = service.clone().watch();
    let server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PONG_TIMEOUT))
        .add_service(LimitedController::new(service))
        .serve_with_incoming_shutdown(ReceiverStream::new(connections).map(Ok::<_, Infallible>), async {
            // The server also ends if the sender is dropped.
            let _ = stopped.await;
        });
    tokio::pin!(server);
    tokio::select! {
        failed = &mut server => return failed,
        () = membership_driver.watch() => {}
        () = lost_nodes => {}
        () = shutdown => info!("shutting down; jobs and groups keep running"),
    }
    probing.abort_all();
    let ending = async {
        let handed_over = async {
            jobs.settle().await;
            agents.stop().await;
            jobs.hand_over().await;
        };
        if timeout(HANDOVER_TIMEOUT, handed_over).await.is_err() {
            warn!("some agents or callers did not read their last messages within {HANDOVER_TIMEOUT:?}");
        }
        drop(stop);
    };
    // The server continues meanwhile, so that the last messages are delivered.
    let (served, ()) = tokio::join!(timeout(2 * HANDOVER_TIMEOUT, server), ending);
    served.unwrap_or_else(|_| {
        warn!("some connections did not close within {HANDOVER_TIMEOUT:?}");
        Ok(())
    })
}

/// Returns the service for agents and tools. The caller must run its tasks: those of the prober and
/// of the membership driver, and [`Service::watch`].
pub async fn assemble(config: &ServerConfig, network: Arc<dyn Fabric>) -> Service {
    let interval = u32::try_from(config.lldp_interval.as_millis()).unwrap_or(u32::MAX);
    let last = job_ids::before_first(config.generation);
    let agents = Arc::new(AgentRegistry::new(interval, config.lldp_key.clone(), config.generation));
    let presence = Arc::new(AgentPresence::new(config.timeouts.agent));
    let prober = Arc::new(Prober::new(network.clone(), agents.clone(), config.configured_rates));
    let groups = Arc::new(GroupRegistry::new(prober.clone(), config.keys.clone(), last));
    let connected_since = presence.connected_since();
    let jobs = Arc::new(JobRegistry::new(
        network.clone(),
        agents.clone(),
        groups.clone(),
        (config.timeouts, config.jobs_per_user.clone()),
        last,
        connected_since.clone(),
    ));
    if let Some(text) = config.store.load(DRAIN_FILE).await {
        match DrainState::from_text(&text) {
            Ok(drained) => jobs.restore_drain(drained),
            Err(error) => warn!(%error, "cannot read what an earlier run had drained"),
        }
    }
    let membership_driver = Arc::new(MembershipDriver::new(network.clone(), groups.clone(), config.timeouts));
    let group_recovery = GroupRecovery::new(
        network.clone(),
        groups.clone(),
        jobs.clone(),
        membership_driver.clone(),
        config.timeouts,
        connected_since,
    );
    let queriers = Arc::new(Queriers::new(agents.clone(), config.querier_patience));
    let flooding = Arc::new(FloodingMonitor::new(
        network.clone(),
        agents.clone(),
        queriers.clone(),
        (config.keys.secret.derive(b"flooding"), config.generation),
        config.flooding_quiet_time,
    ));
    let doctor = Doctor::new(
        network.clone(),
        agents.clone(),
        presence.clone(),
        (groups.clone(), flooding.clone()),
        config.credentials.clone(),
    );
    Service {
        doctor: Arc::new(doctor),
        only_bound_certificates: config.only_bound_certificates,
        store: config.store.clone(),
        drain_order: Arc::default(),
        network,
        agents: agents.clone(),
        presence,
        groups,
        jobs,
        membership_driver,
        group_recovery: Arc::new(group_recovery),
        prober,
        queriers,
        flooding,
        traces: Arc::new(Traces::new(agents)),
    }
}

/// Accepts connections until the server has ended.
async fn listen(listener: ClientListener, accepted: mpsc::Sender<ClientConnection>) {
    let ended = accepted.clone();
    let serve = move |connection| {
        let accepted = accepted.clone();
        async move {
            // If the server has ended, this closes the connection.
            let _ = accepted.send(connection).await;
        }
    };
    listener.run("agent or tool", async move { ended.closed().await }, serve).await;
}
