//! The program `cool-controller`: listens, stands by until it leads, runs the fabric and the gRPC
//! server, and shuts down on a signal.
//!
//! A controller that loses the leadership exits at once, because it must not act while another one
//! leads.

use cool_controller::leadership::{Leadership, LeadershipLost, LeadershipOptionsError};
use cool_controller::options::{ContradictoryOptions, Options};
use cool_controller::pages::standby;
use cool_controller::server::{ServerConfig, WebPages, serve};
use cool_daemon::config::Config;
use cool_daemon::listen::ClientListener;
use cool_daemon::log::LogError;
use cool_daemon::web::{self, ListenError};
use cool_daemon::{config, reload, service_notify};
use cool_fabric::{FabricHandle, Key};
use cool_tls::{Acceptor, CertificateDirError, Credentials, Role};
use rustix::system::uname;
use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

/// Why the controller exits other than by a signal.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(
        "cannot listen on {address} for {audience}: {error}; is another controller running? Choose another address with {flag}"
    )]
    Listen { address: SocketAddr, audience: &'static str, flag: &'static str, error: std::io::Error },
    #[error(transparent)]
    Certificates(#[from] CertificateDirError),
    #[error("cannot determine the listening address: {0}")]
    Address(std::io::Error),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Pages(#[from] ListenError),
    #[error("cannot watch for signals: {0}")]
    Signals(std::io::Error),
    #[error("cannot read random numbers from the system: {0}")]
    Random(getrandom::Error),
    #[error("the gRPC server failed: {0}")]
    Serve(#[from] tonic::transport::Error),
    #[error(transparent)]
    Options(#[from] ContradictoryOptions),
    #[error(transparent)]
    Leadership(#[from] LeadershipOptionsError),
    #[error("leadership lost: {0}; restart this controller to make it a standby")]
    Lost(LeadershipLost),
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

/// The clients of an address, and the flag that sets it.
type Audience = (&'static str, &'static str);

const FOR_SWITCHES: Audience = ("switches", "--openflow");
const FOR_AGENTS: Audience = ("agents and tools", "--grpc");

/// Length of the queue of incoming connections. Linux limits it to 4096 by default.
const BACKLOG: u32 = 4096;

/// Time limit for stopping the remaining tasks.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let (options, config) = config::parse("controller");
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&Error::Runtime(error)),
    };
    let ended = runtime.block_on(run(options, config));
    // This closes all sockets of remaining tasks. The time limit matters because a DNS lookup in
    // progress cannot be canceled, and a controller that lost the leadership must exit soon.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> ExitCode {
    eprintln!("cool-controller: {error}");
    ExitCode::FAILURE
}

async fn run(options: Options, config: Config) -> Result<(), Error> {
    options.check()?;
    let log = options.log.start()?;
    tokio::spawn(log.report_omitted());
    let on = |kind| signal(kind).map_err(Error::Signals);
    let (hangup, ended) =
        (on(SignalKind::hangup())?, [on(SignalKind::interrupt())?, on(SignalKind::terminate())?]);
    let credentials = options.tls.credentials(Role::Controller)?;
    let for_switches = Acceptor::new(credentials.clone(), &[Role::Switch]);
    let for_agents = Acceptor::new(credentials.clone(), &[Role::Agent, Role::Tool]);
    let switches = bind(options.openflow, FOR_SWITCHES)?.listen(BACKLOG);
    let switches = switches.map_err(|error| listen_error(options.openflow, FOR_SWITCHES, error))?;
    // Listening starts when this controller leads. Until then connections are refused, so that
    // agents and tools try the other controller.
    let agents = bind(options.grpc, FOR_AGENTS)?;
    let (openflow, grpc) =
        (switches.local_addr().map_err(Error::Address)?, agents.local_addr().map_err(Error::Address)?);
    let pages = options.pages.listen().await?;
    if let Some(pages) = &pages {
        let http = pages.local_addr().map_err(Error::Address)?;
        info!(%http, "serving HTTP pages");
    }

    if options.tls.insecure_plaintext {
        warn!("no TLS: anyone who can reach these ports can read and forge messages and start programs");
    }
    if options.observe {
        info!("--observe: nothing in any switch is changed; `cool topology` shows what would be installed");
    }
    let secret = secret()?;
    let name = format!("{}:{}", uname().nodename().to_string_lossy(), grpc.port());
    let switches = ClientListener::new(switches, for_switches);
    let fabric = FabricHandle::start(options.fabric(), secret.derive(b"switches"), switches);
    let core = fabric.clone();
    let check = move || {
        let core = core.clone();
        async move { core.answers().await }
    };
    let health = web::health(check.clone());
    let leadership = Leadership::start(&options.leadership, name, check)?;
    let (jobs_per_user, limit) = watch::channel(options.jobs_per_user);
    let events = log.events();
    let (certified, located) = (credentials.clone(), fabric.clone());
    let apply = move |options: &Options| {
        certified.iter().for_each(Credentials::reload);
        jobs_per_user.send_replace(options.jobs_per_user);
        located.set_racks(options.racks.clone().unwrap_or_default());
    };
    let applied = (&["jobs-per-user", "racks"][..], apply);
    let reloading = reload::on_hangup(hangup, config, log, |options| &options.log, applied);
    let shutdown = {
        let fabric = fabric.clone();
        async move {
            tokio::select! {
                () = terminated(ended) => {}
                never = reloading => match never {},
                never = service_notify::watch(|| fabric.answers()) => match never {},
            }
            service_notify::stopping();
        }
    };
    tokio::pin!(shutdown);
    service_notify::ready();
    let won = tokio::select! {
        biased;
        generation = leadership.won() => Some(generation),
        why = leadership.lost() => return Err(Error::Lost(why)),
        never = stand_by(pages.as_ref(), &leadership, &health) => match never {},
        () = &mut shutdown => None,
    };
    if let Some(generation) = won {
        fabric.lead(generation);
        let agents = agents.listen(BACKLOG).map_err(|error| listen_error(options.grpc, FOR_AGENTS, error))?;
        info!(%openflow, %grpc, "listening");
        let agents = ClientListener::new(agents, for_agents);
        let pages = pages.map(|listener| WebPages { listener, events, health });
        let config = ServerConfig {
            credentials,
            store: leadership.store(),
            ..options.server(&secret, generation, limit)
        };
        tokio::select! {
            biased;
            why = leadership.lost() => return Err(Error::Lost(why)),
            served = serve(config, Arc::new(fabric), agents, pages, shutdown) => served?,
        }
    }
    leadership.resign().await;
    info!("bye");
    Ok(())
}

async fn terminated([mut interrupt, mut terminate]: [Signal; 2]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Serves the pages of a standby until the future is dropped.
async fn stand_by(pages: Option<&TcpListener>, leadership: &Leadership, health: &axum::Router) -> Infallible {
    match pages {
        Some(listener) => {
            web::serve(listener, standby::router(leadership.state()).merge(health.clone())).await
        }
        None => pending().await,
    }
}

/// Returns a random secret for this run. Keys of earlier runs become invalid.
fn secret() -> Result<Key, Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(bytes.into())
}

/// Binds an address. Clients cannot connect before the socket listens.
fn bind(address: SocketAddr, audience: Audience) -> Result<TcpSocket, Error> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let bound = socket.and_then(|socket| {
        // Permit binding while connections of an earlier controller are in TIME-WAIT.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    });
    bound.map_err(|error| listen_error(address, audience, error))
}

fn listen_error(address: SocketAddr, (audience, flag): Audience, error: std::io::Error) -> Error {
    Error::Listen { address, audience, flag, error }
}
