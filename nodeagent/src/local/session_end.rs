//! How the session of a rank's connection ends.

use cool_proto::frame::FrameError;
use std::io;

/// The reasons why a session ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionEnd {
    #[error("its process has left the group")]
    Left,
    #[error("its process closed the connection")]
    Closed,
    #[error("its process broke the protocol: {0}")]
    Refused(String),
    #[error("its connection broke: {0}")]
    Broken(#[from] io::Error),
}

impl From<FrameError> for SessionEnd {
    fn from(e: FrameError) -> SessionEnd {
        SessionEnd::Refused(e.to_string())
    }
}
