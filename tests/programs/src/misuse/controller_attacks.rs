//! Attacks of a user on the controller, with the certificate of `COOL_CERTS`, by requests that
//! `cool` would not send.

use clap::Args;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{JobEvent, JobSpec, SignalRequest};
use cool_tls::{Connector, Role};
use rustix::process::Signal;
use serde_json::json;
use std::error::Error;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Maximum time for opening one connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of requests that are open at a time.
const OPEN_REQUESTS: usize = 32;

/// The controller that is attacked, and the certificate of the user.
#[derive(Args)]
struct Target {
    #[arg(long, env = "COOL_CONTROLLER")]
    controller: String,
    #[command(flatten)]
    tls: cool_tls::Options,
}

impl Target {
    async fn connect(&self) -> Result<ControllerClient<Channel>, Box<dyn Error>> {
        let (address, connector) = Connector::to(&self.controller, self.tls.credentials(Role::Tool)?)?;
        let endpoint = Endpoint::from(address).connect_timeout(CONNECT_TIMEOUT);
        Ok(ControllerClient::new(endpoint.connect_with_connector(connector).await?))
    }
}

/// A job with longer arguments than any agent could start.
#[derive(Args)]
pub(crate) struct LongJob {
    #[command(flatten)]
    target: Target,
    /// Length of the only argument
    bytes: usize,
}

impl LongJob {
    /// Submits the job. Prints the status with which the controller refused it, or null.
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        let spec = JobSpec {
            ranks: 1,
            program: "true".to_owned(),
            args: vec!["x".repeat(self.bytes)],
            ..JobSpec::default()
        };
        let status = Runtime::new()?.block_on(async {
            let mut client = self.target.connect().await?;
            match client.run(spec).await {
                Ok(events) => Ok(refusal(events.into_inner()).await),
                Err(status) => Ok::<_, Box<dyn Error>>(Some(status)),
            }
        })?;
        let refused = status.as_ref().map(|status| format!("{:?}", status.code()));
        println!("{}", json!({ "refused": refused, "why": status.as_ref().map(Status::message) }));
        Ok(())
    }
}

/// Returns the status with which a job's events end, or `None` if the job was accepted.
async fn refusal(mut events: tonic::Streaming<JobEvent>) -> Option<Status> {
    events.message().await.err()
}

/// Signals to one job, many more than an agent could handle.
#[derive(Args)]
pub(crate) struct SignalFlood {
    #[command(flatten)]
    target: Target,
    job: u64,
    #[arg(long, default_value = "1")]
    seconds: u64,
}

impl SignalFlood {
    /// Sends a signal that processes ignore, until the time is over. Prints how many requests the
    /// controller accepted and how many it refused.
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        let (accepted, refused) = Runtime::new()?.block_on(self.flood())?;
        println!("{}", json!({ "accepted": accepted, "refused": refused }));
        Ok(())
    }

    async fn flood(&self) -> Result<(u64, u64), Box<dyn Error>> {
        let client = self.target.connect().await?;
        let end = Instant::now() + Duration::from_secs(self.seconds);
        let request = SignalRequest { job: self.job, signal: Signal::URG.as_raw() };
        let requests = (0..OPEN_REQUESTS).map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let (mut accepted, mut refused) = (0, 0);
                while Instant::now() < end {
                    match client.signal(request).await {
                        Ok(_) => accepted += 1,
                        Err(status) if status.code() == Code::Unavailable => break,
                        Err(_) => refused += 1,
                    }
                }
                (accepted, refused)
            })
        });
        let (mut accepted, mut refused) = (0, 0);
        for task in requests.collect::<Vec<_>>() {
            let counts = task.await?;
            accepted += counts.0;
            refused += counts.1;
        }
        Ok((accepted, refused))
    }
}

/// Connections on which no TLS handshake begins.
#[derive(Args)]
pub(crate) struct ConnectionHoarder {
    /// Address of the controller, as HOST:PORT
    address: String,
    #[arg(long, default_value = "2000")]
    connections: usize,
    #[arg(long, default_value = "1")]
    seconds: u64,
}

impl ConnectionHoarder {
    /// Keeps the connections until the time is over. Prints how many could be opened.
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        crate::raise_descriptor_limit()?;
        let open: Vec<TcpStream> =
            (0..self.connections).map_while(|_| TcpStream::connect(&self.address).ok()).collect();
        println!("{}", json!({ "connections": open.len() }));
        thread::sleep(Duration::from_secs(self.seconds));
        Ok(())
    }
}
