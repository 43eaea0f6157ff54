//! `cool-controller`: binds, starts the fabric and the gRPC server, and ends in order on a signal.

use cool_controller::fabric::FabricHandle;
use cool_controller::fabric::Key;
use cool_controller::listen::Listener;
use cool_controller::options::Options;
use cool_controller::server::{WebPages, serve};
use cool_daemon::config;
use cool_daemon::log::LogError;
use cool_daemon::web::ListenError;
use cool_proto::numbers;
use cool_tls::{FolderError, Role};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
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
    let options = config::parse("controller");
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cool-controller: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Error> {
    let events = options.log.start()?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let for_switches = options.tls.acceptor(&[Role::Switch])?;
    let for_agents = options.tls.acceptor(&[Role::Agent, Role::Tool])?;
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
    let shutdown = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    serve(
        options.server(&secret, generation),
        Arc::new(fabric),
        Listener::new(agents, for_agents),
        pages.map(|listener| WebPages { listener, events }),
        shutdown,
    )
    .await?;
    info!("bye");
    Ok(())
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
