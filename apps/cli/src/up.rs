//! `cool up`, `cool join` and `cool down`: a cluster of machines without root, packages or
//! configuration files.

mod open_node;
mod options;

use crate::client;
use crate::error::Error;
use crate::on_runtime;
use crate::signals::Signals;
use cool_deploy::join_channel::{self, NodeAdmission};
use cool_deploy::join_server::{self, CERTIFICATE_DAYS};
use cool_deploy::unit_file::AGENT;
use cool_deploy::{
    DataInterface, DeployError, DeploymentDir, ExitWatch, JoinSecret, JoinToken, LockedFile, NodeSettings,
    NodeUnits, invitation,
};
use cool_proto::control::{Node, TopologyRequest};
use cool_tls::make::{self, CertificateRequest};
use open_node::{OpenNode, agent_launch, controller_launch, join_launch};
use options::LifetimeOptions;
pub(crate) use options::{DownOptions, JoinOptions, UpOptions};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{sleep, timeout};

/// Time for which the first machine waits for other nodes to leave, at the end of `--until-exit`.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which it requests the nodes from the controller.
const LEAVE_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which a machine tries to reach the join server with `--wait`.
const SERVER_INTERVAL: Duration = Duration::from_millis(250);

/// Environment variable with the key by which machines join without a token. Other users do not see
/// the variables of a process.
const JOIN_KEY: &str = "COOL_JOIN_KEY";

/// The node that `cool up` or `cool join` has started.
#[derive(Debug, serde::Serialize)]
struct StartedNode<'a> {
    node: &'a str,
    controller: SocketAddr,
    certs: &'a Path,
    socket: PathBuf,
    /// Its units of systemd, and the commands that the user must execute so that they start with
    /// the machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    units: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    commands: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// Executes `cool up`.
pub(crate) async fn up(options: &UpOptions) -> Result<(), Error> {
    let lifetime = Lifetime::start(&options.lifetime)?;
    let node = OpenNode::open(&options.node, Some(&options.lifetime))?;
    let directory = &node.directory;
    let lock = directory.lock()?;
    directory.check_own_cluster()?;
    let request = CertificateRequest { holders: Vec::new(), days: CERTIFICATE_DAYS, renew: false };
    make::make(&directory.certs(), &request)?;
    let interface = DataInterface::find(options.interface.as_deref())?;
    let (controller, joins) = addresses(&node, options, &interface)?;

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
    let secret = invitation::invite(directory, (SystemTime::now(), valid_for), options.uses, key)?;
    let token = JoinToken { server: joins, secret };
    let mut launches =
        vec![controller_launch(directory, options, controller), join_launch(directory, joins, controller)?];
    if !options.no_agent {
        launches.push(agent_launch(&node, &settings)?);
    }
    node.start_missing(&launches).await?;
    directory.keep_tool_options(controller)?;

    if options.lifetime.json {
        print_json(&node, &settings, Some(&token))?;
    } else {
        print_invitation(&node, controller, (&token, options.valid_minutes))?;
        print_units(&node)?;
    }
    drop(lock);
    let Some(lifetime) = lifetime else { return Ok(()) };
    let others = async {
        agent_has_ended(directory).await?;
        others_have_left(directory, &settings).await;
        Ok(())
    };
    let unlocked = lifetime.wait(others).await?;
    end_and_remove(node, unlocked)
}

/// Returns the key by which machines join without a token.
fn join_key() -> Option<String> {
    std::env::var(JOIN_KEY).ok().filter(|key| !key.is_empty())
}

fn print_json(node: &OpenNode, settings: &NodeSettings, token: Option<&JoinToken>) -> Result<(), Error> {
    let units = node.units.as_ref();
    let started = StartedNode {
        node: node.directory.node(),
        controller: settings.controller,
        certs: &settings.certs,
        socket: node.agent_socket()?,
        units: units.map(NodeUnits::installed_units).unwrap_or_default(),
        commands: units.map(NodeUnits::remaining_commands).unwrap_or_default(),
        token: token.map(JoinToken::to_string),
    };
    Ok(writeln!(std::io::stdout(), "{}", serde_json::json!(started))?)
}

/// Prints how other machines join, and how `cool` finds the controller.
fn print_invitation(
    OpenNode { directory, .. }: &OpenNode,
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

/// Prints the units of a node, and what remains to be done so that they start with the machine.
fn print_units(node: &OpenNode) -> Result<(), Error> {
    let Some(units) = &node.units else { return Ok(()) };
    let mut out = std::io::stdout().lock();
    writeln!(out, "units: {} (logs: {})", units.installed_units().join(", "), units.log_command())?;
    let commands = units.remaining_commands();
    if !commands.is_empty() {
        writeln!(out, "for these units to start with the machine, execute:")?;
    }
    for command in commands {
        writeln!(out, "  {command}")?;
    }
    Ok(())
}

/// Executes `cool join`.
pub(crate) async fn join(options: &JoinOptions) -> Result<(), Error> {
    let lifetime = Lifetime::start(&options.lifetime)?;
    let node = OpenNode::open(&options.node, Some(&options.lifetime))?;
    let directory = &node.directory;
    let lock = directory.lock()?;
    if node.running()?.iter().any(|program| program == AGENT) {
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
                certs: join_server::keep_admission(directory, &admission)?,
                agent_options: options.agent_options.clone(),
            }
        }
    };
    directory.keep_settings(&settings)?;
    node.start_missing(&[agent_launch(&node, &settings)?]).await?;
    if options.lifetime.json {
        print_json(&node, &settings, None)?;
    } else {
        let (name, state) = (directory.node(), directory.path().display());
        let controller = settings.controller;
        writeln!(
            std::io::stdout(),
            "node {name} has joined the controller at {controller}; state and logs: {state}"
        )?;
        print_units(&node)?;
    }
    drop(lock);
    let Some(lifetime) = lifetime else { return Ok(()) };
    let unlocked = lifetime.wait(agent_has_ended(directory)).await?;
    end_and_remove(node, unlocked)
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
    let node = OpenNode::open(&options.node, None)?;
    let lock = node.directory.lock()?;
    let ended = node.end_programs()?;
    let name = node.directory.node().to_owned();
    if options.purge {
        node.remove()?;
    }
    drop(lock);
    let mut out = std::io::stdout().lock();
    match ended.is_empty() {
        true => writeln!(out, "nothing was running for node {name}")?,
        false => writeln!(out, "node {name}: ended {}", ended.join(", "))?,
    }
    Ok(())
}

/// Ends the programs of a deployment, and removes its directory and the file of `--until-unlocked`.
fn end_and_remove(node: OpenNode, unlocked: Option<LockedFile>) -> Result<(), Error> {
    let _lock = node.directory.lock()?;
    node.end_programs()?;
    let state = node.directory.path().parent().map(Path::to_owned);
    node.remove()?;
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
    node: &OpenNode,
    options: &UpOptions,
    interface: &DataInterface,
) -> Result<(SocketAddr, SocketAddr), DeployError> {
    let kept = if node.running()?.is_empty() { None } else { node.directory.settings()? };
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
