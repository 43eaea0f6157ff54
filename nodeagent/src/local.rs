//! The agent's side of `local.proto`: receives frames of local ranks from a Unix socket and passes
//! their requests to the engine. The [`Agent`] decides which ranks may attach, and the engine
//! interprets the calls.
//!
//! The agent trusts a rank only with the rank's own data. A rank that violates the protocol
//! receives the reason and is disconnected, and the other ranks continue. The system identifies the
//! user of each process. No user is trusted more than others, not even root or the agent's own
//! account.

mod peer_process;
mod rank;
mod rank_connection;
mod session;
mod session_end;
mod subordinate_users;
mod user;

use crate::agent::Agent;
use cool_daemon::accept::LimitedListener;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tracing::warn;
pub(crate) use user::RegionPermit;
pub use user::UserLimits;
use user::{ConnectionPermit, User, UserTable};

/// The directory of agents' sockets, unless --socket names another one.
pub const DEFAULT_DIRECTORY: &str = "/run/cool";

/// Maximum number of connections if the system's limits permit more. Further ones wait in the
/// system's queue.
const CONNECTIONS_MAX: u64 = 1 << 16;

/// Number of further connections, of users that have the maximum and receive the reason why they
/// may not have another.
const REFUSED_CONNECTIONS_MAX: usize = 64;

/// The reasons why ranks cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another agent serves this socket.
    #[error("{} is another running agent's socket; stop it or choose another --socket", .0.display())]
    InUse(PathBuf),
    /// The socket cannot be made.
    #[error("cannot make the socket {}: {source}; create its directory, or choose another --socket", .path.display())]
    Bind {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The agent's Unix socket. Dropping it removes the socket from the file system.
#[derive(Debug)]
pub struct LocalServer {
    listener: UnixListener,
    path: PathBuf,
    limits: UserLimits,
}

impl LocalServer {
    /// Makes the socket, and its directory if that is the default directory. Replaces a socket that
    /// a dead agent left behind.
    ///
    /// # Errors
    /// Returns an error if another agent serves the socket, or if the path cannot be used.
    pub fn bind(path: &Path, limits: UserLimits) -> Result<LocalServer, ServeError> {
        let error = |source| ServeError::Bind { path: path.to_path_buf(), source };
        if let Some(directory) = path.parent() {
            make_default_directory(directory).map_err(error)?;
        }
        match UnixStream::connect(path) {
            Ok(_) => return Err(ServeError::InUse(path.to_path_buf())),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(error)?;
            }
            // There is nothing at this path, or something that makes `bind` fail.
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(error)?;
        let server = LocalServer { listener, path: path.to_path_buf(), limits };
        // All users may connect, because each process can only be a rank of its own user's groups.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(error)?;
        Ok(server)
    }

    /// Serves the ranks of `agent` until the future is dropped.
    pub async fn serve(self, agent: Agent) {
        let (users, mut sessions) = (UserTable::new(self.limits), JoinSet::new());
        let connections = users.connections_max().min(CONNECTIONS_MAX) as usize;
        let incoming = LimitedListener::new(&self.listener, "rank", connections + REFUSED_CONNECTIONS_MAX);
        loop {
            tokio::select! {
                Some(ended) = sessions.join_next() => {
                    if let Err(e) = ended {
                        warn!("a rank's session failed: {e}");
                    }
                }
                (stream, place) = incoming.next() => match accepted(stream, &users) {
                    Ok((stream, user, permit)) => {
                        let session = session::serve(stream, user, permit, agent.clone());
                        sessions.spawn_on(async move {
                            session.await;
                            drop(place);
                        }, agent.runtime());
                    }
                    Err(e) => warn!("cannot serve a rank's connection: {e}"),
                },
            }
        }
    }
}

/// Creates the directory of a socket if it is the default directory. Any other directory must
/// exist, so that a mistyped path is reported instead of creating directories.
fn make_default_directory(directory: &Path) -> io::Result<()> {
    if directory == Path::new(DEFAULT_DIRECTORY) {
        return std::fs::create_dir_all(directory);
    }
    if !directory.as_os_str().is_empty() && !directory.exists() {
        let text = format!("there is no directory {}", directory.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(())
}

/// Returns the user of a connected process, and the permit that counts this connection as the
/// user's, or the reason why the user may not have another.
fn accepted(
    stream: tokio::net::UnixStream,
    users: &UserTable,
) -> io::Result<(UnixStream, User, Result<ConnectionPermit, String>)> {
    let stream = stream.into_std()?;
    let user = User::from_peer(&stream)?;
    let permit = users.permit(user);
    Ok((stream, user, permit))
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_file(&self.path) {
            warn!("cannot remove the socket {}: {e}", self.path.display());
        }
    }
}
