//! `cool-controller`: binds, starts the fabric and the gRPC server, and ends in order on a signal.

use cool_controller::fabric::{FabricHandle, Key};
use cool_controller::listen::Listener;
use cool_controller::options::Options;
use cool_controller::server::{ServerConfig, WebPages, serve};
use cool_daemon::config::Config;
use cool_daemon::log::LogError;
use cool_daemon::web::ListenError;
use cool_daemon::{config, reload, supervision};
use cool_proto::numbers;
use cool_tls::{Acceptor, Credentials, FolderError, Role};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

/// Why the controller ends other than by a signal.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(
        "cannot listen on {address} for {whom}: {error}; is another controller running? Choose another address with {flag}"
    )]
    Listen { address: SocketAddr, whom: &'static str, flag: &'static str, error: std::io::Error },
    #[error(transparent)]
    Certificates(#[from] FolderError),
    #[error("cannot tell where it listens: {0}")]
    Address(std::io::Error),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Pages(#[from] ListenError),
    #[error("cannot watch for signals: {0}")]
    Signals(std::io::Error),
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    #[error("the gRPC server failed: {0}")]
    Serve(#[from] tonic::transport::Error),
}

#[tokio::main]
async fn main() -> ExitCode {
    let (options, config) = config::parse("controller");
    match run(options, config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cool-controller: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options, config: Config) -> Result<(), Error> {
    let log = options.log.start()?;
    let on = |kind| signal(kind).map_err(Error::Signals);
    let (hangup, ended) =
        (on(SignalKind::hangup())?, [on(SignalKind::interrupt())?, on(SignalKind::terminate())?]);
    let credentials = options.tls.credentials(Role::Controller)?;
    let for_switches = Acceptor::new(credentials.clone(), &[Role::Switch]);
    let for_agents = Acceptor::new(credentials.clone(), &[Role::Agent, Role::Tool]);
    let switches = listen(options.openflow, "switches", "--openflow").await?;
    let agents = listen(options.grpc, "agents and tools", "--grpc").await?;
    let (openflow, grpc) =
        (switches.local_addr().map_err(Error::Address)?, agents.local_addr().map_err(Error::Address)?);
    let pages = options.pages.listen().await?;
    info!(%openflow, %grpc, "listening");
    if let Some(pages) = &pages {
        let http = pages.local_addr().map_err(Error::Address)?;
        info!(%http, "serving pages");
    }

    if options.tls.insecure_plaintext {
        warn!("no TLS: whoever reaches these ports can read, forge and start programs");
    }
    let secret = secret()?;
    let generation = numbers::now();
    let fabric = FabricHandle::start(
        options.fabric(generation),
        secret.derive(b"switches"),
        Listener::new(switches, for_switches),
    );
    let (jobs_per_user, limit) = watch::channel(options.jobs_per_user);
    let pages = pages.map(|listener| WebPages { listener, events: log.events() });
    let certified = credentials.clone();
    let apply = move |options: &Options| {
        certified.iter().for_each(Credentials::reload);
        jobs_per_user.send_replace(options.jobs_per_user);
    };
    let reloading =
        reload::on_hangup(hangup, config, log, |options| &options.log, (&["jobs-per-user"], apply));
    let shutdown = {
        let fabric = fabric.clone();
        async move {
            tokio::select! {
                () = terminated(ended) => {}
                never = reloading => match never {},
                never = supervision::watch(|| fabric.answers()) => match never {},
            }
            supervision::stopping();
        }
    };
    supervision::ready();
    let listener = Listener::new(agents, for_agents);
    let config = ServerConfig { credentials, ..options.server(&secret, generation, limit) };
    serve(config, Arc::new(fabric), listener, pages, shutdown).await?;
    info!("bye");
    Ok(())
}

async fn terminated([mut interrupt, mut terminate]: [Signal; 2]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// A secret of this run: what an earlier one signed is worth nothing.
fn secret() -> Result<Key, Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(bytes.into())
}

async fn listen(address: SocketAddr, whom: &'static str, flag: &'static str) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| Error::Listen { address, whom, flag, error })
}
