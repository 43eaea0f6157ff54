//! The connection to the controller.

use crate::error::{Error, root_cause};
use crate::followed_job;
use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
use cool_proto::control::controller_client::ControllerClient;
use cool_tls::{CertificateDirError, Connector, Credentials, Role};
use std::io::ErrorKind;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

/// Maximum time for connecting to an address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a command looks for the leader of several controllers. A standby takes over
/// within half of this time (docs/guide/deployment.md).
const LEADER_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which an idle connection is checked, and maximum time for the controller's reply.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Time for which a certificate and a key that do not match are read again, because one of them may
/// have been replaced before the other.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Flow-control window of a stream, in bytes. It is small, because unread bytes must be sent again
/// after a connection breaks.
const WINDOW_BYTES: u32 = 256 << 10;

/// Connects to the controller at one of `addresses`, which must be URLs or HOST:PORT, separated by
/// commas.
pub(crate) async fn connect(
    addresses: &str,
    tls: &cool_tls::Options,
) -> Result<ControllerClient<Channel>, Error> {
    let credentials = credentials(tls).await.map_err(with_remedy)?;
    for warning in credentials.iter().flat_map(Credentials::warnings) {
        eprintln!("cool: {warning}");
    }
    let (address, connector) = Connector::to(addresses, credentials)?;
    let several = addresses.contains(',');
    let url = match several {
        true => addresses.to_owned(),
        false => address.to_string().trim_end_matches('/').to_owned(),
    };
    let endpoint = Endpoint::from(address)
        .connect_timeout(CONNECT_TIMEOUT)
        .initial_stream_window_size(WINDOW_BYTES)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    let began = Instant::now();
    loop {
        match endpoint.connect_with_connector(connector.clone()).await {
            Ok(channel) => {
                return Ok(
                    ControllerClient::new(channel).max_decoding_message_size(CONTROL_MESSAGE_BYTES_MAX)
                );
            }
            // A former leader may hang, and the next one does not accept connections yet.
            Err(_) if several && began.elapsed() < LEADER_TIMEOUT => sleep(RETRY_INTERVAL).await,
            Err(e) => {
                let reason = root_cause(&e);
                let unreachable = is_unreachable(&e);
                return Err(if unreachable {
                    Error::Unreachable { url, reason }
                } else {
                    Error::Connect { url, reason }
                });
            }
        }
    }
}

/// Returns whether an error means that no controller runs at the address. Otherwise a program
/// answered, and starting another controller would not help.
fn is_unreachable(error: &(dyn std::error::Error + 'static)) -> bool {
    use ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            let kinds = [AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut];
            if kinds.contains(&error.kind()) {
                return true;
            }
        }
        cause = error.source();
    }
    // For example, an unknown host name, or a timeout of the transport.
    let text = root_cause(error);
    ["lookup", "deadline", "timed out"].iter().any(|word| text.contains(word))
}

async fn credentials(tls: &cool_tls::Options) -> Result<Option<Credentials>, CertificateDirError> {
    let began = Instant::now();
    loop {
        match tls.credentials(Role::Tool) {
            Err(CertificateDirError::Content { .. }) if began.elapsed() < REPLACEMENT_TIMEOUT => {
                sleep(RETRY_INTERVAL).await;
            }
            outcome => return outcome,
        }
    }
}

/// Converts an error about certificates. Some errors have a different remedy for a user than for an
/// operator.
fn with_remedy(error: CertificateDirError) -> Error {
    match &error {
        CertificateDirError::Read { path, reason }
            if path.ends_with("tool.key") && reason.contains("Permission denied") =>
        {
            Error::OperatorKey { path: path.display().to_string(), user: followed_job::user() }
        }
        CertificateDirError::Content { path, reason } if reason.contains("KeyMismatch") => {
            let directory = path.parent().unwrap_or(path).display().to_string();
            Error::KeyMismatch { directory }
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_user_who_cannot_read_the_operators_key_needs_a_certificate() {
        let reason = io::Error::from_raw_os_error(13).to_string();
        let path = "/etc/cool/certs/tool.key".into();
        let text = with_remedy(CertificateDirError::Read { path, reason }).to_string();
        assert!(text.contains("operator's key") && text.contains("--user") && text.contains("COOL_CERTS"));
        assert!(!text.contains("plaintext"), "{text}");
        let path = "/etc/cool/certs/ca.pem".into();
        let missing = CertificateDirError::Read { path, reason: "No such file or directory".to_owned() };
        assert!(with_remedy(missing).to_string().contains("cool certs"));
    }

    #[test]
    fn a_key_of_another_certificate_is_named_by_its_directory() {
        let path = "/c/tool.key".into();
        let reason = "TLS failed: keys may not be consistent: KeyMismatch".to_owned();
        let text = with_remedy(CertificateDirError::Content { path, reason }).to_string();
        assert!(text.contains("in /c do not belong together"), "{text}");
    }

    #[test]
    fn only_an_unreachable_controller_must_be_started() {
        assert!(is_unreachable(&io::Error::from(ErrorKind::ConnectionRefused)));
        assert!(is_unreachable(&io::Error::other("failed to lookup address information")));
        assert!(!is_unreachable(&io::Error::other("its certificate is of another CA")));
    }
}
