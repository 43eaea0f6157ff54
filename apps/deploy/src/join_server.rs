//! The join server: issues a certificate to each machine with a valid token.

use crate::deployment_dir::{DeploymentDir, create_private};
use crate::error::DeployError;
use crate::invitation;
use crate::join_channel::{
    EXCHANGE_TIMEOUT, JoinChannel, JoinReply, JoinRequest, NodeAdmission, REQUEST_TIMEOUT,
};
use crate::join_token::JoinSecret;
use cool_tls::make::{self, CertificateHolder, CertificateRequest};
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use std::fmt::Arguments;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

/// Maximum number of connections at a time.
const CONNECTIONS_MAX: usize = 16;
/// Validity of the certificates of nodes, in days.
pub const CERTIFICATE_DAYS: u16 = 3650;

/// The options of a join server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinServerTask {
    /// The directory for the state of deployments, and the name of this node.
    pub state: PathBuf,
    /// The name of this node.
    pub node: String,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The port of the controller at the same address.
    pub controller_port: u16,
}

/// Runs as the process of a join server: reports to the process that has started it that it is
/// ready, and then each machine on standard error. A signal ends it.
///
/// # Errors
/// If the address cannot be used. Never returns otherwise.
pub async fn run(task: JoinServerTask) -> Result<(), DeployError> {
    let ready = || {
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
            eprintln!("cannot report that the join server is ready: {error}");
        }
    };
    serve(task, ready, |line| eprintln!("{line}")).await
}

/// Admits machines until it fails. Calls `ready` once it listens, and `report` with a line about
/// each machine.
///
/// # Errors
/// If the address cannot be used. Never returns otherwise.
async fn serve(
    task: JoinServerTask,
    ready: impl FnOnce(),
    report: fn(Arguments<'_>),
) -> Result<(), DeployError> {
    let unusable = |source| DeployError::Unreachable { address: task.listen, source };
    let listener = TcpListener::bind(task.listen).await.map_err(unusable)?;
    let directory = DeploymentDir::open(Some(&task.state), Some(&task.node))?;
    let server =
        Arc::new(JoinServer { directory, controller_port: task.controller_port, issuing: Mutex::new(()) });
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    ready();
    loop {
        // The semaphore is never closed, so this returns a permit. Without one, connections wait
        // in the queue of the listener.
        let permit = Arc::clone(&permits).acquire_owned().await.ok();
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            // For example, too many open files: other connections must end first.
            Err(error) => {
                report(format_args!("cannot accept a connection: {error}"));
                continue;
            }
        };
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            match timeout(EXCHANGE_TIMEOUT, server.admit(stream)).await {
                Ok(Ok(line)) => report(format_args!("{from}: {line}")),
                Ok(Err(error)) => report(format_args!("{from}: not admitted: {error}")),
                Err(_) => report(format_args!("{from}: not admitted: no complete exchange in time")),
            }
            drop(permit);
        });
    }
}

struct JoinServer {
    directory: DeploymentDir,
    controller_port: u16,
    /// Held while a certificate is issued, so that no two machines get the same name.
    issuing: Mutex<()>,
}

impl JoinServer {
    /// Handles one connection. Returns a line about the result.
    async fn admit(&self, stream: TcpStream) -> Result<String, DeployError> {
        let secrets = invitation::valid(&self.directory, SystemTime::now())?;
        let request = async {
            let (mut channel, secret) = JoinChannel::accept(stream, &secrets).await?;
            let JoinRequest { node } = channel.receive().await.map_err(DeployError::Lost)?;
            Ok((channel, secret, node))
        };
        let slow = |_| Err(DeployError::Lost(ErrorKind::TimedOut.into()));
        let (mut channel, secret, node) = timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(slow)?;
        let reply = self.reply(&node, &secret).await?;
        let line = match &reply {
            Ok(_) => format!("node {node} has a certificate"),
            Err(reason) => format!("refused: {reason}"),
        };
        channel.send(&reply).await.map_err(DeployError::Lost)?;
        Ok(line)
    }

    async fn reply(&self, node: &str, secret: &JoinSecret) -> Result<JoinReply, DeployError> {
        let _issuing = self.issuing.lock().await;
        let now = SystemTime::now();
        // Other machines may have used the token since this one has proven that it knows it.
        if !invitation::valid(&self.directory, now)?.contains(secret) {
            return Ok(Err("the token is used up; run `cool up` again for a new one".to_owned()));
        }
        let issued = issue(&self.directory, node);
        if issued.is_ok() {
            invitation::count_use(&self.directory, now, secret)?;
        }
        Ok(issued.map(|[authorities, certificate, key]| NodeAdmission {
            controller_port: self.controller_port,
            authorities,
            certificate,
            key,
        }))
    }
}

/// Issues a certificate for a node that has none yet. Returns the certificates of the CAs, and the
/// node's certificate and key, as PEM.
///
/// # Errors
/// Returns the reason for the machine that joins.
fn issue(directory: &DeploymentDir, node: &str) -> Result<[String; 3], String> {
    let certs = directory.certs();
    cool_types::check_node_name(node).map_err(|e| format!("{e}; choose another name with --name"))?;
    // Two machines with the same key could take each other's place.
    if node == directory.node() || certs.join(node).exists() {
        return Err(format!(
            "there is a node {node} already; choose another name with --name, or repeat `cool join` without a token on \
             that node; if the node is lost, remove {} on the first machine",
            certs.join(node).display()
        ));
    }
    let holders = vec![CertificateHolder::node(node, Vec::new())];
    let request = CertificateRequest { holders, days: CERTIFICATE_DAYS, renew: false };
    make::make(&certs, &request).map_err(|e| e.to_string())?;
    let read = |path: PathBuf| fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()));
    let of_node = certs.join(node);
    Ok([read(certs.join("ca.pem"))?, read(of_node.join("agent.pem"))?, read(of_node.join("agent.key"))?])
}

/// Writes the files of an admission to a directory that only this user may enter.
///
/// # Errors
/// If a file cannot be written.
pub fn keep_admission(directory: &DeploymentDir, admission: &NodeAdmission) -> Result<PathBuf, DeployError> {
    let certs = directory.certs();
    create_private(&certs)?;
    let files = [
        ("ca.pem", &admission.authorities),
        ("agent.pem", &admission.certificate),
        ("agent.key", &admission.key),
    ];
    for (name, content) in files {
        directory.replace(&Path::new("certs").join(name), content.as_bytes())?;
    }
    Ok(certs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join_channel::join;
    use crate::join_token::JoinToken;
    use std::net::Ipv4Addr;
    use std::time::Duration;
    use tokio::sync::oneshot;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Starts a join server. Returns its deployment, and its address.
    async fn server(state: &Path) -> (DeploymentDir, SocketAddr) {
        let directory = DeploymentDir::open(Some(state), Some("h1")).unwrap();
        make::make(
            &directory.certs(),
            &CertificateRequest { holders: Vec::new(), days: CERTIFICATE_DAYS, renew: false },
        )
        .unwrap();
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
        let task = JoinServerTask {
            state: state.to_owned(),
            node: "h1".to_owned(),
            listen: free,
            controller_port: 7400,
        };
        let (sender, ready) = oneshot::channel();
        tokio::spawn(serve(task, move || sender.send(()).unwrap(), |line| println!("{line}")));
        ready.await.unwrap();
        (directory, free)
    }

    #[tokio::test]
    async fn each_machine_with_a_token_gets_a_certificate_of_its_own() {
        let state = tempfile::tempdir().unwrap();
        let (directory, server) = server(state.path()).await;
        let secret = invitation::invite(&directory, (SystemTime::now(), HOUR), 2, None).unwrap();
        let token = JoinToken { server, secret };
        let (first, from) = join(&token, "h2").await.unwrap();
        assert!(first.key.contains("PRIVATE KEY") && from.is_loopback() && first.controller_port == 7400);
        // Refused requests do not use up the token.
        for (node, part) in
            [("h2", "a node h2 already"), ("h1", "a node h1 already"), ("../x", "--name"), ("ca", "ca")]
        {
            let error = join(&token, node).await.err().unwrap().to_string();
            assert!(error.contains(part) && error.contains("refuses"), "{error}");
        }
        let (second, _) = join(&token, "h3").await.unwrap();
        assert!(second.key != first.key && second.certificate != first.certificate);
        assert!(matches!(join(&token, "h4").await, Err(DeployError::Rejected(_))));

        let kept = DeploymentDir::open(Some(state.path()), Some("h2")).unwrap();
        let certs = keep_admission(&kept, &first).unwrap();
        assert_eq!(fs::read_to_string(certs.join("agent.key")).unwrap(), first.key);
    }

    #[tokio::test]
    async fn without_a_valid_token_nothing_is_sent() {
        let state = tempfile::tempdir().unwrap();
        let (directory, server) = server(state.path()).await;
        let expired = invitation::invite(&directory, (SystemTime::now() - 2 * HOUR, HOUR), 2, None).unwrap();
        for secret in [expired, JoinSecret::generate().unwrap()] {
            let outcome = join(&JoinToken { server, secret }, "h2").await;
            assert!(matches!(outcome, Err(DeployError::Rejected(_))));
        }
        assert!(!directory.certs().join("h2").exists());
        let closed = JoinToken { server: "127.0.0.1:1".parse().unwrap(), secret: expired };
        assert!(matches!(join(&closed, "h2").await, Err(DeployError::Unreachable { .. })));
    }
}
