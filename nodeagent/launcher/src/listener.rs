//! The socket at which the launcher accepts the connections of the agent.

use crate::account::Account;
use cool_proto::seqpacket;
use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The reasons why the launcher cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum AgentSocketError {
    /// Another launcher listens at this path.
    #[error("{} is another running launcher's socket; stop it or choose another --socket", .0.display())]
    InUse(PathBuf),
    /// The path cannot be used.
    #[error("cannot listen at {}: {source}; choose another --socket", .path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Returns a socket that only the agent's account may open. Replaces a socket that a dead launcher
/// left behind.
///
/// # Errors
/// Returns an error if another launcher listens there, or if the path cannot be used.
pub fn listen(path: &Path, agent: &Account) -> Result<OwnedFd, AgentSocketError> {
    let error = |source| AgentSocketError::System { path: path.to_path_buf(), source };
    match seqpacket::connect(path) {
        Ok(_) => return Err(AgentSocketError::InUse(path.to_path_buf())),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(error)?
        }
        // There is nothing at this path, or something that makes `bind` fail.
        Err(_) => {}
    }
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = seqpacket::listen(path, BACKLOG);
    rustix::process::umask(before);
    // If this process has not made the socket, the path may be a file of another program.
    let listener = listener.map_err(error)?;
    let (owner, links) = (Some(Uid::from_raw(agent.uid)), AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::chownat(CWD, path, owner, None::<Gid>, links).map_err(|e| error(e.into()))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_socket_of_the_launcher_is_given_to_the_agent() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let agent = Account { uid: 4001, ..Account::look_up("root").unwrap() };
        let path = |name: &str| directory.path().join(name);
        let owner = |name: &str| fs::symlink_metadata(path(name)).unwrap().uid();
        // The socket of another program, of another kind, and a link to it.
        let _other = UnixListener::bind(path("other")).unwrap();
        std::os::unix::fs::symlink(path("other"), path("link")).unwrap();
        for name in ["other", "link"] {
            assert!(matches!(listen(&path(name), &agent), Err(AgentSocketError::System { .. })));
        }
        assert_eq!([owner("other"), owner("link")], [0, 0]);
        let _own = listen(&path("own"), &agent).unwrap();
        assert_eq!(owner("own"), 4001);
        assert!(matches!(listen(&path("own"), &agent), Err(AgentSocketError::InUse(_))));
    }
}
