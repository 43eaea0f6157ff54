//! `cool-nodeagent`: reads its options, starts the engine and the edges, and ends in order on a signal.

use clap::Parser;
use cool_daemon::config;
use cool_daemon::log::LogError;
use cool_daemon::web::{self, ListenError};
use cool_nodeagent::Agent;
use cool_nodeagent::control::{self, ControlError, Registration};
use cool_nodeagent::engine::{EngineConfig, EngineHandle, StartError};
use cool_nodeagent::fault_injection::Losses;
use cool_nodeagent::interface::{Interface, InterfaceError};
use cool_nodeagent::launcher::Launcher;
use cool_nodeagent::local::{LocalServer, ServeError};
use cool_nodeagent::probe::Reflector;
use cool_types::{NodeNameError, check_node_name};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

/// Events that wait to be told to the controller; ranks that print more wait.
const EVENTS: usize = 256;

/// Runs on every node of a COOL cluster: starts the node's ranks and moves their data.
///
/// It joins the controller, which tells it which groups to be part of and which programs to run, and
/// serves the ranks of its node on a unix socket. It waits for a controller that is not there yet, and
/// for one that went away. Needs the right to send LLDP frames (root, or CAP_NET_RAW). How much it logs
/// is set by RUST_LOG (error, warn, info, debug).
///
/// Example: cool-nodeagent --name h1 --interface eth1 --controller https://10.255.0.1:7400
#[derive(Debug, Parser)]
#[command(name = "cool-nodeagent", version)]
struct Options {
    /// The node's name, unlike any other node's: letters, digits, dot, dash, underscore
    #[arg(long, value_parser = node_name)]
    name: String,
    /// The network interface that carries the data; it needs an IPv4 address
    #[arg(long)]
    interface: String,
    /// Where the controller is
    #[arg(long, env = "COOL_CONTROLLER", value_name = "https://HOST:7400")]
    controller: String,
    #[command(flatten)]
    tls: cool_tls::Options,
    #[command(flatten)]
    pages: web::Options,
    #[command(flatten)]
    log: cool_daemon::log::Options,
    /// The unix socket on which to serve the node's ranks [default: /run/cool/NAME.sock]
    #[arg(long)]
    socket: Option<PathBuf>,
    /// How many ranks the node takes at once [default: its processors]
    #[arg(long)]
    slots: Option<u32>,
    /// UDP port of the data interface, for multicast and repair; 0 takes a free one
    #[arg(long, default_value_t = 7420)]
    udp_port: u16,
    /// TCP port of the data interface, for unicast steps; 0 takes a free one
    #[arg(long, default_value_t = 7420)]
    tcp_port: u16,
    /// TCP port of the data interface, where other agents measure the network; 0 takes a free one
    #[arg(long, default_value_t = 7421)]
    probe_port: u16,
    /// How long another node may be silent while calls wait for something, milliseconds; then it is gone.
    ///
    /// Longer than the controller takes to lead paths round a lost link, which is four of its --lldp-interval-ms.
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(100..=600_000))]
    peer_timeout_ms: u32,
    /// For tests: throw away this share of the datagrams that come (0 to 0.5), picked by the seed (default 0)
    #[arg(long, value_name = "SHARE[:SEED]")]
    lose: Option<Losses>,
}

fn node_name(text: &str) -> Result<String, NodeNameError> {
    check_node_name(text).map(|()| text.to_owned())
}

/// Why the agent ends other than by a signal.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("cannot answer probes on TCP port {port}: {source}; choose another with --probe-port")]
    Probe { port: u16, source: std::io::Error },
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Pages(#[from] ListenError),
    #[error("cannot watch for signals: {0}")]
    Signals(std::io::Error),
    #[error(
        "the data engine has failed, and with it the ranks of this node; that is a defect: please report what it said"
    )]
    Engine,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = config::parse("agent");
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cool-nodeagent: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Error> {
    options.log.start()?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let interface = Interface::read(&options.interface)?;
    let engine = EngineHandle::start(EngineConfig {
        node: options.name.clone(),
        ip: interface.ip,
        udp_port: options.udp_port,
        tcp_port: options.tcp_port,
        peer_timeout: Duration::from_millis(options.peer_timeout_ms.into()),
        losses: options.lose,
    })?;
    let (sender, mut events) = mpsc::channel(EVENTS);
    let port = options.probe_port;
    let reflector = Reflector::bind(interface.ip, port).await;
    let reflector = reflector.map_err(|source| Error::Probe { port, source })?;
    let agent = Agent::new(&options.name, engine, sender.clone());
    let pages = options.pages.listen().await?;
    let socket = options.socket.unwrap_or_else(|| PathBuf::from(format!("/run/cool/{}.sock", options.name)));
    // Ranks look for it from directories of their own.
    let socket = std::path::absolute(&socket).map_err(|source| ServeError::Bind { path: socket, source })?;
    let server = LocalServer::bind(&socket)?;
    if let Some(losses) = options.lose {
        warn!(%losses, "datagrams are thrown away as they come: --lose is for tests");
    }
    info!(
        node = options.name, interface = interface.name, ip = %interface.ip, mtu = interface.mtu,
        socket = %socket.display(), "ready"
    );

    let mut launcher = Launcher::new(&options.name, &socket, sender);
    let processors =
        || std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    let slots = options.slots.unwrap_or_else(processors);
    let probe_port = reflector.port();
    let registration =
        Registration { controller: options.controller, tls: options.tls, interface, slots, probe_port };
    let router = agent.metrics().router();
    let pages = async move {
        match pages {
            Some(listener) => web::serve(listener, router).await,
            None => std::future::pending().await,
        }
    };
    let (leave, leaving) = watch::channel(false);
    let result = {
        let control = control::run(&agent, &registration, &mut launcher, &mut events, leaving);
        tokio::pin!(control);
        let ended = tokio::select! {
            () = server.serve(agent.clone()) => (Ok(()), false),
            never = reflector.serve() => match never {},
            never = pages => match never {},
            refused = &mut control => (refused.map_err(Error::from), true),
            () = agent.engine_ended() => (Err(Error::Engine), false),
            _ = interrupt.recv() => (Ok(()), false),
            _ = terminate.recv() => (Ok(()), false),
        };
        if !ended.1 {
            leave.send_replace(true);
            // Whoever refuses it now need not know that it leaves.
            let _ = control.await;
        }
        ended.0
    };
    launcher.shutdown(events).await;
    info!("bye");
    result
}
