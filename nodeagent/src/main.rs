//! `cool-nodeagent`: reads its options, starts the engine and the interfaces of the agent, and
//! shuts down cleanly on a signal: at once on SIGTERM and SIGINT, and on SIGQUIT when no group of
//! ranks needs the node. Called as `cool-nodeagent supervise`, it is the supervisor of
//! one of its own jobs.

use cool_daemon::config::{self, Config};
use cool_daemon::log::{self, LogError};
use cool_daemon::web::{self, ListenError};
use cool_daemon::{reload, service_notify};
use cool_launcher::job_limits::JobLimits;
use cool_launcher::supervisor::SuperviseError;
use cool_launcher::{Policy, supervise};
use cool_nodeagent::Agent;
use cool_nodeagent::blocking_threads;
use cool_nodeagent::control::{self, AgentRegistration, ControlError};
use cool_nodeagent::cpu_costs;
use cool_nodeagent::engine::{EngineConfig, EngineHandle, StartError};
use cool_nodeagent::interface::{Interface, InterfaceError};
use cool_nodeagent::launcher::{JobLauncher, Supervisors};
use cool_nodeagent::local::{DEFAULT_DIRECTORY, LocalServer, ServeError, UserLimits};
use cool_nodeagent::options::Options;
use cool_nodeagent::probe::Reflector;
use cool_nodeagent::quick_socket::supports_long_quick_calls;
use cool_proto::control::CpuCosts;
use cool_proto::features;
use cool_tls::{CertificateDirError, Credentials, Role};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

/// Number of events that may wait for the controller. If there are more, ranks must wait before
/// they print.
const EVENTS: usize = 256;

/// The reasons why the agent ends, other than a signal.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Certificates(#[from] CertificateDirError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("cannot answer probes on TCP port {port}: {source}; choose another with --probe-port")]
    Probe { port: u16, source: io::Error },
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Pages(#[from] ListenError),
    #[error("cannot use the connection to the agent: {0}")]
    Agent(io::Error),
    #[error(transparent)]
    Supervise(#[from] SuperviseError),
    #[error(
        "this agent runs as root, and needs no more than CAP_NET_RAW: run it as a user of its own (docs/guide/deployment.md), or say \
         --allow-root"
    )]
    Root,
    #[error("cannot start the threads of the agent: {0}")]
    Runtime(io::Error),
    #[error("cannot use CAP_NET_RAW, which the file of this program permits: {0}")]
    Capability(io::Error),
    #[error("cannot watch for signals: {0}")]
    Signals(io::Error),
    #[error(
        "the data engine has failed, and with it the ranks of this node; this is a bug: please report the messages above"
    )]
    Engine,
}

fn main() -> ExitCode {
    let supervises = std::env::args_os().nth(1).is_some_and(|word| word == "supervise");
    let outcome = if supervises { supervise_job() } else { start() };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cool-nodeagent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Supervises one job for the agent at standard input.
fn supervise_job() -> Result<(), Error> {
    log::Options { log: std::env::var("RUST_LOG").ok(), event_log: None }.start()?;
    let agent = std::io::stdin().as_fd().try_clone_to_owned().map_err(Error::Agent)?;
    Ok(supervise(agent, Policy::Own, JobLimits::default())?)
}

/// Makes CAP_NET_RAW effective if the file of the program permits it, as that of the container
/// image does (`setcap cap_net_raw+p`). With `+ep` the system would do so itself, but would refuse
/// to execute the program in containers that do not permit the capability.
fn use_permitted_capability() -> Result<(), Error> {
    let mut sets = capabilities(None).map_err(|e| Error::Capability(e.into()))?;
    let permitted = sets.permitted & CapabilitySet::NET_RAW;
    if sets.effective.contains(permitted) {
        return Ok(());
    }
    sets.effective |= permitted;
    set_capabilities(None, sets).map_err(|e| Error::Capability(e.into()))
}

fn start() -> Result<(), Error> {
    // Threads inherit it, so none may exist yet.
    use_permitted_capability()?;
    let (options, config) = config::parse("agent");
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    blocking_threads::build(&mut Builder::new_multi_thread(), workers)
        .map_err(Error::Runtime)?
        .block_on(run(options, config))
}

/// Returns the features that this agent offers to the controller and to other agents.
fn offered_features(encryption: bool, quick_calls: bool, long_quick_calls: bool) -> u64 {
    let encryption = if encryption { features::ENCRYPTION } else { 0 };
    let unless = |offered: bool, feature: u64| if offered { 0 } else { feature };
    let without = unless(quick_calls, features::QUICK) | unless(long_quick_calls, features::LONG_QUICK_CALLS);
    (features::ALL | encryption) & !without
}

/// Returns the costs of this agent's work, if they can be measured.
async fn measure_costs() -> Option<CpuCosts> {
    let measured = tokio::task::spawn_blocking(cpu_costs::measure).await.map_err(io::Error::other).flatten();
    let failed = |error: &io::Error| {
        warn!(%error, "the costs of messages cannot be measured; plans may be slow on fast networks");
    };
    measured.inspect_err(failed).ok()
}

/// Returns the pages of an agent: metrics, and its health.
fn pages_router(agent: &Agent) -> axum::Router {
    let checked = agent.clone();
    let health = web::health(move || {
        let agent = checked.clone();
        async move { agent.engine_answers().await }
    });
    agent.metrics().router().merge(health)
}

/// The signals that end the agent.
struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
}

impl EndSignals {
    fn new() -> io::Result<EndSignals> {
        Ok(EndSignals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// Waits for SIGINT or SIGTERM, or for SIGQUIT and then until no group of ranks needs the node.
    async fn wait(mut self, agent: &Agent) {
        let unneeded = async {
            self.quit.recv().await;
            info!("ending as soon as no group of ranks needs this node");
            agent.groups_ended().await;
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = unneeded => {}
        }
    }
}

async fn run(options: Options, config: Config) -> Result<(), Error> {
    let log = options.log.start()?;
    tokio::spawn(log.report_omitted());
    if rustix::process::geteuid().is_root() {
        if !options.allow_root {
            return Err(Error::Root);
        }
        warn!("this agent runs as root: --allow-root is for laboratories");
    }
    let hangup = signal(SignalKind::hangup()).map_err(Error::Signals)?;
    let signals = EndSignals::new().map_err(Error::Signals)?;
    let credentials = options.tls.credentials(Role::Agent)?;
    control::check_address(&options.controller, credentials.as_ref())?;
    let interface = Interface::read(&options.interface, options.ipv6)?;
    let engine = EngineHandle::start(EngineConfig {
        node: options.name.clone(),
        ip: interface.ip,
        udp_port: options.udp_port,
        tcp_port: options.tcp_port,
        peer_timeout: Duration::from_millis(options.peer_timeout_ms.into()),
        encrypt: options.encrypt,
        losses: options.lose,
    })?;
    let (sender, mut events) = mpsc::channel(EVENTS);
    let port = options.probe_port;
    let reflector = Reflector::bind(interface.ip, port).await;
    let reflector = reflector.map_err(|source| Error::Probe { port, source })?;
    let agent = Agent::new(&options.name, engine, sender.clone());
    let pages = options.pages.listen().await?;
    let socket =
        options.socket.unwrap_or_else(|| Path::new(DEFAULT_DIRECTORY).join(format!("{}.sock", options.name)));
    // The path must be absolute, because ranks have other working directories.
    let socket = std::path::absolute(&socket).map_err(|source| ServeError::Bind { path: socket, source })?;
    let limits = UserLimits {
        connections: options.connections_per_user as usize,
        groups: options.groups_per_user as usize,
    };
    let server = LocalServer::bind(&socket, limits)?;
    if let Some(losses) = options.lose {
        warn!(%losses, "datagrams are thrown away as they come: --lose is for tests");
    }
    info!(
        node = options.name, interface = interface.name, ip = %interface.ip, mtu = interface.mtu,
        socket = %socket.display(), "serving ranks; not joined yet"
    );

    let supervisors = match options.launcher {
        Some(socket) => Supervisors::Launcher(socket),
        None => Supervisors::Own(PathBuf::from("/proc/self/exe")),
    };
    let mut launcher = JobLauncher::new(&agent, &socket, supervisors, sender);
    let processors =
        || std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    let slots = options.slots.unwrap_or_else(processors);
    let probe_port = reflector.port();
    let long_quick_calls = supports_long_quick_calls(interface.ip);
    let registration = AgentRegistration {
        controller: options.controller,
        credentials: credentials.clone(),
        interface,
        slots,
        probe_port,
        rack: options.rack.filter(|rack| !rack.is_empty()),
        features: offered_features(options.encrypt, !options.no_quick_calls, long_quick_calls),
        cpu: measure_costs().await,
    };
    let router = pages_router(&agent);
    let pages = async move {
        match pages {
            Some(listener) => web::serve(listener, router).await,
            None => std::future::pending().await,
        }
    };
    let certified = move |_: &Options| credentials.iter().for_each(Credentials::reload);
    let reloading =
        reload::on_hangup(hangup, config, log, |options: &Options| &options.log, (&[], certified));
    let (leave, leaving) = watch::channel(false);
    service_notify::ready();
    let result = {
        let control = control::run(&agent, &registration, &mut launcher, &mut events, leaving);
        tokio::pin!(control);
        let ended = tokio::select! {
            () = server.serve(agent.clone()) => (Ok(()), false),
            never = reflector.serve() => match never {},
            never = pages => match never {},
            never = reloading => match never {},
            never = service_notify::watch(|| agent.engine_answers()) => match never {},
            refused = &mut control => (refused.map_err(Error::from), true),
            () = agent.engine_ended() => (Err(Error::Engine), false),
            () = signals.wait(&agent) => (Ok(()), false),
        };
        service_notify::stopping();
        if !ended.1 {
            leave.send_replace(true);
            // If the controller refuses the agent now, that does not matter, because the agent is
            // leaving.
            let _ = control.await;
        }
        ended.0
    };
    launcher.shutdown(events).await;
    info!("bye");
    result
}
