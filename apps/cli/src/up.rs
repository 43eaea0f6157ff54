//! `cool up`, `cool join` and `cool down`: a cluster of machines without root, configuration files
//! or system services.

use crate::client;
use crate::error::Error;
use crate::on_runtime;
use crate::ranks::JOIN_SERVER;
use crate::signals::Signals;
use cool_deploy::join_channel::{self, NodeAdmission};
use cool_deploy::join_server::{self, CERTIFICATE_DAYS};
use cool_deploy::process::{self, ProcessRecord, ProgramLaunch};
use cool_deploy::{
    DataInterface, DeployError, DeploymentDir, ExitWatch, JoinSecret, JoinServerTask, JoinToken, LockedFile,
    NodeSettings, invitation,
};
use cool_proto::control::{Node, TopologyRequest};
use cool_tls::make::{self, CertificateRequest};
use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{sleep, timeout};

/// The programs of a deployment, in the order in which they start.
const CONTROLLER: &str = "controller";
const JOINS: &str = "joins";
const AGENT: &str = "agent";

/// The notification with which an agent reports that the controller has accepted it.
const JOINED: &str = "STATUS=joined the controller";
const READY: &str = "READY=1";

/// Time for which the first machine waits for other nodes to leave, at the end of `--until-exit`.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which it requests the nodes from the controller.
const LEAVE_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which a machine tries to reach the join server with `--wait`.
const SERVER_INTERVAL: Duration = Duration::from_millis(250);

/// Environment variable with the key by which machines join without a token. Other users do not see
/// the variables of a process.
const JOIN_KEY: &str = "COOL_JOIN_KEY";

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

/// How long the programs run, and how the result is printed.
#[derive(Debug, clap::Args)]
struct LifetimeOptions {
    /// Stay until the processes with these numbers have ended, then end the programs and remove
    /// their files
    ///
    /// For launchers and scripts: nothing remains of the cluster even if the processes are killed.
    #[arg(long, value_name = "PID,..", value_delimiter = ',')]
    until_exit: Vec<i32>,

    /// Stay until no other process has a lock (flock(2)) of this file, then end the programs and
    /// remove their files, and the file
    #[arg(long, value_name = "FILE", conflicts_with = "until_exit")]
    until_unlocked: Option<PathBuf>,

    /// Print one JSON document: the node, its controller, certificates and agent's socket, and the
    /// token
    #[arg(long)]
    json: bool,
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
///
/// With the environment variable COOL_JOIN_KEY, a random text, machines can also join by `cool join
/// --server ADDRESS` with the same variable.
#[derive(Debug, clap::Args)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    node: NodeOptions,

    #[command(flatten)]
    lifetime: LifetimeOptions,

    /// Network interface for data and for other machines, by name or IP address [default: that of
    /// the default route]
    #[arg(long)]
    interface: Option<String>,

    /// TCP port of the controller; 0 chooses a free one
    #[arg(long, value_name = "PORT", default_value_t = 7400)]
    controller_port: u16,

    /// TCP port at which machines join; 0 chooses a free one
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
    /// The word that `cool up` has printed; other users of this machine do not see the variable
    #[arg(env = "COOL_JOIN_TOKEN", hide_env_values = true)]
    token: Option<JoinToken>,

    /// Join by the environment variable COOL_JOIN_KEY instead of a token, at this address of `cool
    /// up --join-port`
    #[arg(long, value_name = "IP:PORT")]
    server: Option<SocketAddr>,

    /// Wait this many seconds for the first machine
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u32,

    #[command(flatten)]
    node: NodeOptions,

    #[command(flatten)]
    lifetime: LifetimeOptions,

    /// Network interface for data, by name or IP address [default: the one that reaches the first
    /// machine]
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

/// The node that `cool up` or `cool join` has started.
#[derive(Debug, serde::Serialize)]
struct StartedNode<'a> {
    node: &'a str,
    controller: SocketAddr,
    certs: &'a Path,
    socket: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// Executes `cool up`.
pub(crate) async fn up(options: &UpOptions) -> Result<(), Error> {
    let lifetime = Lifetime::start(&options.lifetime)?;
    let directory = options.node.open()?;
    let lock = directory.lock()?;
    directory.check_own_cluster()?;
    let request = CertificateRequest { holders: Vec::new(), days: CERTIFICATE_DAYS, renew: false };
    make::make(&directory.certs(), &request)?;
    let interface = DataInterface::find(options.interface.as_deref())?;
    let (controller, joins) = addresses(&directory, options, &interface)?;

    let settings = NodeSettings {
        controller,
        joins: Some(joins),
        interface: interface.name,
        certs: directory.certs(),
        agent_options: options.agent_options.clone(),
    };
    directory.keep_settings(&settings)?;
    // Machines may try to join as soon as the join server runs.
    let valid_for = Duration::from_secs(60 * u64::from(options.valid_minutes));
    let key = join_key().map(|key| JoinSecret::of_key(&key));
    let secret = invitation::invite(&directory, (SystemTime::now(), valid_for), options.uses, key)?;
    let token = JoinToken { server: joins, secret };
    let mut launches =
        vec![controller_launch(&directory, options, controller), join_launch(&directory, joins, controller)?];
    if !options.no_agent {
        launches.push(agent_launch(&directory, &settings)?);
    }
    start_missing(&directory, &launches).await?;
    directory.keep_tool_options(controller)?;

    if options.lifetime.json {
        print_json(&directory, &settings, Some(&token))?;
    } else {
        print_invitation(&directory, controller, (&token, options.valid_minutes))?;
    }
    drop(lock);
    let Some(lifetime) = lifetime else { return Ok(()) };
    let others = async {
        agent_has_ended(&directory).await?;
        others_have_left(&directory, &settings).await;
        Ok(())
    };
    let unlocked = lifetime.wait(others).await?;
    end_and_remove(directory, unlocked)
}

/// Returns the key by which machines join without a token.
fn join_key() -> Option<String> {
    std::env::var(JOIN_KEY).ok().filter(|key| !key.is_empty())
}

fn print_json(
    directory: &DeploymentDir,
    settings: &NodeSettings,
    token: Option<&JoinToken>,
) -> Result<(), Error> {
    let started = StartedNode {
        node: directory.node(),
        controller: settings.controller,
        certs: &settings.certs,
        socket: directory.agent_socket()?,
        token: token.map(JoinToken::to_string),
    };
    Ok(writeln!(std::io::stdout(), "{}", serde_json::json!(started))?)
}

/// Prints how other machines join, and how `cool` finds the controller.
fn print_invitation(
    directory: &DeploymentDir,
    controller: SocketAddr,
    (token, valid_minutes): (&JoinToken, u32),
) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "controller: {controller}, node {}; state and logs: {}",
        directory.node(),
        directory.path().display()
    )?;
    writeln!(out, "on each other machine (within {valid_minutes} minutes; the token is a secret):")?;
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
    let lifetime = Lifetime::start(&options.lifetime)?;
    let directory = options.node.open()?;
    let lock = directory.lock()?;
    if running(&directory)?.iter().any(|process| process.program == AGENT) {
        return Err(DeployError::Joined(directory.node().to_owned()).into());
    }
    let named = options.interface.as_deref().map(|name| DataInterface::find(Some(name))).transpose()?;
    let settings = match token(options)? {
        None => {
            let mut kept = directory.settings()?.ok_or(DeployError::NoDeployment)?;
            if !options.agent_options.is_empty() {
                kept.agent_options.clone_from(&options.agent_options);
            }
            if let Some(interface) = named {
                kept.interface = interface.name;
            }
            kept
        }
        Some(token) => {
            directory.check_other_cluster()?;
            let wait = Duration::from_secs(options.wait.into());
            let (admission, own) = admission(&token, directory.node(), wait).await?;
            let interface = named.map_or_else(|| DataInterface::with_address(own), Ok)?;
            NodeSettings {
                controller: SocketAddr::new(token.server.ip(), admission.controller_port),
                joins: None,
                interface: interface.name,
                certs: join_server::keep_admission(&directory, &admission)?,
                agent_options: options.agent_options.clone(),
            }
        }
    };
    directory.keep_settings(&settings)?;
    start_missing(&directory, &[agent_launch(&directory, &settings)?]).await?;
    if options.lifetime.json {
        print_json(&directory, &settings, None)?;
    } else {
        let (node, state) = (directory.node(), directory.path().display());
        let controller = settings.controller;
        writeln!(
            std::io::stdout(),
            "node {node} has joined the controller at {controller}; state and logs: {state}"
        )?;
    }
    drop(lock);
    let Some(lifetime) = lifetime else { return Ok(()) };
    let unlocked = lifetime.wait(agent_has_ended(&directory)).await?;
    end_and_remove(directory, unlocked)
}

/// Returns the token with which this machine joins, or `None` if it has joined before.
fn token(options: &JoinOptions) -> Result<Option<JoinToken>, Error> {
    let Some(server) = options.server else { return Ok(options.token.clone()) };
    let key = join_key().ok_or(Error::NoJoinKey)?;
    Ok(Some(JoinToken { server, secret: JoinSecret::of_key(&key) }))
}

/// Joins a deployment as [`join_channel::join`] does. Waits for a limited time until the join
/// server can be reached.
async fn admission(
    token: &JoinToken,
    node: &str,
    wait: Duration,
) -> Result<(NodeAdmission, IpAddr), DeployError> {
    let begun = Instant::now();
    loop {
        match join_channel::join(token, node).await {
            Err(DeployError::Unreachable { .. }) if begun.elapsed() < wait => sleep(SERVER_INTERVAL).await,
            joined => return joined,
        }
    }
}

/// Executes `cool down`.
pub(crate) fn down(options: &DownOptions) -> Result<(), Error> {
    let directory = options.node.open()?;
    let lock = directory.lock()?;
    let ended = end_programs(&directory)?;
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

/// Ends the programs of a deployment. The caller must hold its lock. Returns the programs that were
/// running.
fn end_programs(directory: &DeploymentDir) -> Result<Vec<String>, Error> {
    invitation::revoke_all(directory)?;
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
    Ok(ended)
}

/// Ends the programs of a deployment, and removes its directory and the file of `--until-unlocked`.
fn end_and_remove(directory: DeploymentDir, unlocked: Option<LockedFile>) -> Result<(), Error> {
    let _lock = directory.lock()?;
    end_programs(&directory)?;
    let state = directory.path().parent().map(Path::to_owned);
    directory.remove()?;
    // Other nodes may have directories in it.
    let _ = state.map(std::fs::remove_dir);
    Ok(unlocked.map_or(Ok(()), LockedFile::remove)?)
}

/// The processes and signals that end a deployment.
struct Lifetime {
    users: ExitWatch,
    signals: Signals,
}

impl Lifetime {
    /// Watches the processes from now on. Returns `None` if there are none, so that the deployment
    /// remains until `cool down`.
    fn start(options: &LifetimeOptions) -> Result<Option<Lifetime>, Error> {
        let users = match &options.until_unlocked {
            Some(path) => ExitWatch::of_lock(path)?,
            None if options.until_exit.is_empty() => return Ok(None),
            None => ExitWatch::start(&options.until_exit)?,
        };
        Ok(Some(Lifetime { users, signals: Signals::new()? }))
    }

    /// Waits until all processes have ended, and then for `others`. A signal ends the wait. Returns
    /// the file of `--until-unlocked`, unless a signal has ended the wait.
    async fn wait(
        mut self,
        others: impl Future<Output = Result<(), Error>>,
    ) -> Result<Option<LockedFile>, Error> {
        let ended = async {
            let unlocked = self.users.all_ended().await;
            others.await.map(|()| unlocked)
        };
        tokio::select! {
            unlocked = ended => unlocked,
            _ = self.signals.ending() => Ok(None),
        }
    }
}

/// Lets the agent of this machine end, and waits for its end. It first delivers the data of ranks
/// that have ended here to those of other machines, which may request it late.
async fn agent_has_ended(directory: &DeploymentDir) -> Result<(), Error> {
    for process in directory.processes()?.iter().filter(|process| process.program == AGENT) {
        process.request_end()?.all_ended().await;
    }
    Ok(())
}

/// Waits until all other nodes have left the controller, but at most for a limited time.
async fn others_have_left(directory: &DeploymentDir, settings: &NodeSettings) {
    let tls = cool_tls::Options { certs: settings.certs.clone(), insecure_plaintext: false };
    let left = async {
        let mut client = client::connect(&settings.controller.to_string(), &tls).await.ok()?;
        let is_other = |node: &Node| node.name != directory.node();
        while client.get_topology(TopologyRequest {}).await.ok()?.into_inner().nodes.iter().any(is_other) {
            sleep(LEAVE_INTERVAL).await;
        }
        Some(())
    };
    // The controller may have ended, or another node may have crashed.
    let _ = timeout(LEAVE_TIMEOUT, left).await;
}

/// Runs as the process of a join server.
pub(crate) fn run_join_server(task: &str) -> Result<(), Error> {
    let task =
        serde_json::from_str(task).map_err(|e| Error::Rank(format!("the argument is not a task: {e}")))?;
    on_runtime(async { Ok(join_server::run(task).await?) })
}

/// Returns the addresses of the controller and of the join server. Those of running programs
/// remain.
fn addresses(
    directory: &DeploymentDir,
    options: &UpOptions,
    interface: &DataInterface,
) -> Result<(SocketAddr, SocketAddr), DeployError> {
    let kept = if running(directory)?.is_empty() { None } else { directory.settings()? };
    let free: [u16; 2] = interface.free_ports()?;
    let address = |program, port, kept: Option<SocketAddr>, free| match (port, kept) {
        (0, Some(kept)) => Ok(kept),
        (0, None) => Ok(SocketAddr::new(interface.ip, free)),
        (port, kept) => {
            let requested = SocketAddr::new(interface.ip, port);
            match kept.filter(|kept| *kept != requested) {
                Some(address) => Err(DeployError::OtherAddress { program, address }),
                None => Ok(requested),
            }
        }
    };
    let kept_controller = kept.as_ref().map(|kept| kept.controller);
    let controller = address("controller", options.controller_port, kept_controller, free[0])?;
    let joins = address("join server", options.join_port, kept.and_then(|kept| kept.joins), free[1])?;
    Ok((controller, joins))
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
    arguments.extend([OsString::from("--socket"), directory.agent_socket()?.into()]);
    arguments.extend(settings.agent_options.iter().map(OsString::from));
    Ok(ProgramLaunch { name: AGENT, path: process::program("cool-nodeagent"), arguments, ready: JOINED })
}
