//! `cool up`, `cool join` and `cool down`: a cluster of machines without root, configuration files
//! or system services.

use crate::error::Error;
use crate::on_runtime;
use crate::ranks::JOIN_SERVER;
use cool_deploy::join_server::{self, CERTIFICATE_DAYS};
use cool_deploy::process::{self, ProcessRecord, ProgramLaunch};
use cool_deploy::{
    DataInterface, DeployError, DeploymentDir, JoinServerTask, JoinToken, NodeSettings, invitation,
    join_channel,
};
use cool_tls::make::{self, CertificateRequest};
use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// The programs of a deployment, in the order in which they start.
const CONTROLLER: &str = "controller";
const JOINS: &str = "joins";
const AGENT: &str = "agent";

/// The notification with which an agent reports that the controller has accepted it.
const JOINED: &str = "STATUS=joined the controller";
const READY: &str = "READY=1";

/// The node of this machine in a deployment.
#[derive(Debug, clap::Args)]
struct NodeOptions {
    /// This node's name, unique in the cluster [default: the machine's name]
    #[arg(long)]
    name: Option<String>,

    /// Directory for certificates, logs and process numbers, with a directory for each node
    /// [default: ~/.local/state/cool]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

impl NodeOptions {
    fn open(&self) -> Result<DeploymentDir, DeployError> {
        DeploymentDir::open(self.state.as_deref(), self.name.as_deref())
    }
}

/// Start a controller and an agent on this machine, and print a token for more machines
///
/// Everything runs in the background under your account, until `cool down`. Run `cool join TOKEN`
/// on the other machines; the token is a secret while it is valid. Repeat `cool up` for another
/// token, or to start again after a reboot: certificates are kept, and nodes return by themselves.
///
/// Only your account can run programs on this cluster. To serve several users, install the packages
/// (docs/guide/deployment.md).
///
/// The controller listens on TCP port 7400 of the data interface, the join server on 7402, and
/// agents on 7420 and 7421.
#[derive(Debug, clap::Args)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    node: NodeOptions,

    /// Network interface for data and for other machines [default: that of the default route]
    #[arg(long)]
    interface: Option<String>,

    /// TCP port of the controller
    #[arg(long, value_name = "PORT", default_value_t = 7400)]
    controller_port: u16,

    /// TCP port at which machines join
    #[arg(long, value_name = "PORT", default_value_t = 7402)]
    join_port: u16,

    /// The kind of network, as for `cool-controller --network`; openflow and auto also listen for
    /// switches
    #[arg(long, value_name = "MODE", default_value = "snooping", value_parser = ["auto", "openflow", "snooping", "plain"])]
    network: String,

    /// Number of minutes for which the token is valid
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    valid_minutes: u32,

    /// Number of machines that may join with the token
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    uses: u32,

    /// Start no agent: this machine runs no ranks
    #[arg(long, conflicts_with = "agent_options")]
    no_agent: bool,

    /// Further options of cool-nodeagent, for example `-- --slots 8`
    #[arg(last = true, value_name = "OPTION")]
    agent_options: Vec<String>,
}

/// Let this machine join the cluster that `cool up` has started on another one
///
/// The token proves to both sides that they belong together. This machine receives a certificate
/// for its node and starts an agent in the background, which runs ranks under your account, until
/// `cool down`. Without TOKEN, an agent that has joined before is started again, for example after
/// a reboot.
#[derive(Debug, clap::Args)]
pub(crate) struct JoinOptions {
    /// The word that `cool up` has printed
    token: Option<JoinToken>,

    #[command(flatten)]
    node: NodeOptions,

    /// Network interface for data [default: the one that reaches the first machine]
    #[arg(long)]
    interface: Option<String>,

    /// Further options of cool-nodeagent, for example `-- --slots 8`
    #[arg(last = true, value_name = "OPTION")]
    agent_options: Vec<String>,
}

/// End the programs that `cool up` or `cool join` has started on this machine
///
/// Jobs of this node fail. Certificates are kept, so `cool up` and `cool join` without a token
/// return to the same cluster. All tokens become invalid.
#[derive(Debug, clap::Args)]
pub(crate) struct DownOptions {
    #[command(flatten)]
    node: NodeOptions,

    /// Also remove the certificates and logs, so that the cluster cannot be continued
    #[arg(long)]
    purge: bool,
}

/// Executes `cool up`.
pub(crate) async fn up(options: &UpOptions) -> Result<(), Error> {
    let directory = options.node.open()?;
    let _lock = directory.lock()?;
    directory.check_own_cluster()?;
    let request = CertificateRequest { holders: Vec::new(), days: CERTIFICATE_DAYS, renew: false };
    make::make(&directory.certs(), &request)?;
    let interface = DataInterface::find(options.interface.as_deref())?;
    let controller = SocketAddr::new(interface.ip, options.controller_port);
    let joins = SocketAddr::new(interface.ip, options.join_port);

    let settings = NodeSettings {
        controller: controller.to_string(),
        interface: interface.name,
        certs: directory.certs(),
        agent_options: options.agent_options.clone(),
    };
    check_address(&directory, &settings)?;
    directory.keep_settings(&settings)?;
    let mut launches =
        vec![controller_launch(&directory, options, controller), join_launch(&directory, joins, controller)?];
    if !options.no_agent {
        launches.push(agent_launch(&directory, &settings)?);
    }
    start_missing(&directory, &launches).await?;
    directory.keep_tool_options(&controller.to_string())?;

    let valid_for = Duration::from_secs(60 * u64::from(options.valid_minutes));
    let secret = invitation::invite(&directory, (SystemTime::now(), valid_for), options.uses)?;
    let token = JoinToken { server: joins, secret };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "controller: {controller}, node {}; state and logs: {}",
        directory.node(),
        directory.path().display()
    )?;
    writeln!(
        out,
        "on each other machine (within {} minutes; the token is a secret):",
        options.valid_minutes
    )?;
    writeln!(out, "  cool join {token}")?;
    if DeploymentDir::default_tool_file().as_deref().and_then(|file| file.parent()) != Some(directory.path())
    {
        writeln!(out, "for `cool` on this machine:")?;
        writeln!(out, "  export COOL_CONTROLLER={controller} COOL_CERTS={}", directory.certs().display())?;
    }
    Ok(())
}

/// Executes `cool join`.
pub(crate) async fn join(options: &JoinOptions) -> Result<(), Error> {
    let directory = options.node.open()?;
    let _lock = directory.lock()?;
    if running(&directory)?.iter().any(|process| process.program == AGENT) {
        return Err(DeployError::Joined(directory.node().to_owned()).into());
    }
    let settings = match &options.token {
        None => {
            let mut kept = directory.settings()?.ok_or(DeployError::NoDeployment)?;
            if !options.agent_options.is_empty() {
                kept.agent_options.clone_from(&options.agent_options);
            }
            if let Some(interface) = &options.interface {
                kept.interface.clone_from(interface);
            }
            kept
        }
        Some(token) => {
            directory.check_other_cluster()?;
            let named =
                options.interface.as_deref().map(|name| DataInterface::find(Some(name))).transpose()?;
            let (admission, own) = join_channel::join(token, directory.node()).await?;
            let interface = named.map_or_else(|| DataInterface::with_address(own), Ok)?;
            NodeSettings {
                controller: SocketAddr::new(token.server.ip(), admission.controller_port).to_string(),
                interface: interface.name,
                certs: join_server::keep_admission(&directory, &admission)?,
                agent_options: options.agent_options.clone(),
            }
        }
    };
    directory.keep_settings(&settings)?;
    start_missing(&directory, &[agent_launch(&directory, &settings)?]).await?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "node {} has joined the controller at {}; state and logs: {}",
        directory.node(),
        settings.controller,
        directory.path().display()
    )?;
    Ok(())
}

/// Executes `cool down`.
pub(crate) fn down(options: &DownOptions) -> Result<(), Error> {
    let directory = options.node.open()?;
    let lock = directory.lock()?;
    invitation::revoke_all(&directory)?;
    directory.remove_tool_options()?;
    let mut ended = Vec::new();
    // The agent leaves in order while the controller still runs.
    for process in directory.processes()?.iter().rev() {
        if process.end()? {
            ended.push(process.program.clone());
        }
    }
    directory.keep_processes(&[])?;
    directory.remove_socket_dir()?;
    let node = directory.node().to_owned();
    if options.purge {
        directory.remove()?;
    }
    drop(lock);
    let mut out = std::io::stdout().lock();
    match ended.is_empty() {
        true => writeln!(out, "nothing was running for node {node}")?,
        false => writeln!(out, "node {node}: ended {}", ended.join(", "))?,
    }
    Ok(())
}

/// Runs as the process of a join server.
pub(crate) fn run_join_server(task: &str) -> Result<(), Error> {
    let task =
        serde_json::from_str(task).map_err(|e| Error::Rank(format!("the argument is not a task: {e}")))?;
    on_runtime(async { Ok(join_server::run(task).await?) })
}

/// Checks that a running controller has the address that the token will contain.
fn check_address(directory: &DeploymentDir, settings: &NodeSettings) -> Result<(), DeployError> {
    let kept = directory.settings()?.filter(|kept| kept.controller != settings.controller);
    match kept {
        Some(kept) if !running(directory)?.is_empty() => Err(DeployError::OtherAddress(kept.controller)),
        _ => Ok(()),
    }
}

fn running(directory: &DeploymentDir) -> Result<Vec<ProcessRecord>, DeployError> {
    Ok(directory.processes()?.into_iter().filter(ProcessRecord::runs).collect())
}

/// Starts those programs that do not run. If one fails, those that were started are ended.
async fn start_missing(directory: &DeploymentDir, launches: &[ProgramLaunch]) -> Result<(), DeployError> {
    let before = running(directory)?;
    let is_missing = |launch: &&ProgramLaunch| !before.iter().any(|process| process.program == launch.name);
    for launch in launches.iter().filter(is_missing) {
        if let Err(error) = process::start(directory, launch).await {
            let started = running(directory)?.into_iter().filter(|process| !before.contains(process));
            for process in started.collect::<Vec<_>>().iter().rev() {
                process.end()?;
            }
            return Err(error);
        }
    }
    Ok(())
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.into_iter().map(OsString::from).collect()
}

fn controller_launch(directory: &DeploymentDir, options: &UpOptions, listen: SocketAddr) -> ProgramLaunch {
    let mut arguments = words(["--grpc", &listen.to_string(), "--network", &options.network, "--certs"]);
    arguments.push(directory.certs().into());
    arguments.extend([OsString::from("--state"), directory.path().join(CONTROLLER).into()]);
    if matches!(options.network.as_str(), "snooping" | "plain") {
        // No switch connects.
        arguments.extend(words(["--openflow", "127.0.0.1:0"]));
    }
    ProgramLaunch { name: CONTROLLER, path: process::program("cool-controller"), arguments, ready: READY }
}

fn join_launch(
    directory: &DeploymentDir,
    listen: SocketAddr,
    controller: SocketAddr,
) -> Result<ProgramLaunch, Error> {
    let task = JoinServerTask {
        state: directory.path().parent().unwrap_or(directory.path()).to_owned(),
        node: directory.node().to_owned(),
        listen,
        controller_port: controller.port(),
    };
    let path = std::env::current_exe().map_err(|e| Error::Executable(e.to_string()))?;
    let arguments = words([JOIN_SERVER, &serde_json::json!(task).to_string()]);
    Ok(ProgramLaunch { name: JOINS, path, arguments, ready: READY })
}

fn agent_launch(directory: &DeploymentDir, settings: &NodeSettings) -> Result<ProgramLaunch, DeployError> {
    let mut arguments = words(["--name", directory.node(), "--interface", &settings.interface]);
    arguments.extend(words(["--controller", &format!("https://{}", settings.controller), "--certs"]));
    arguments.push(settings.certs.clone().into());
    arguments.extend([OsString::from("--socket"), directory.socket_dir()?.join("agent.sock").into()]);
    arguments.extend(settings.agent_options.iter().map(OsString::from));
    Ok(ProgramLaunch { name: AGENT, path: process::program("cool-nodeagent"), arguments, ready: JOINED })
}
