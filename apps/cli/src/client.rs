//! The connection to the controller.

use crate::error::{Error, innermost};
use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
use cool_proto::control::controller_client::ControllerClient;
use cool_tls::{Connector, Credentials, FolderError, Role};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long tools look for the one of several controllers that leads: a standby takes over within half of it (docs/guide/deployment.md).
const LEADER_WITHIN: Duration = Duration::from_secs(10);
const TRY_EVERY: Duration = Duration::from_millis(250);
/// How often a silent controller is asked whether it is there, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(5);

/// How long a certificate and a key that do not match are looked at again: one of them may just be replaced.
const REPLACED_WITHIN: Duration = Duration::from_secs(1);

/// Bytes that may be on their way: what is unread when a connection breaks has to be said again.
const WINDOW: u32 = 256 << 10;

/// Connects to the controller at one of `addresses`, URLs or HOST:PORT with commas between them.
pub(crate) async fn connect(
    addresses: &str,
    tls: &cool_tls::Options,
) -> Result<ControllerClient<Channel>, Error> {
    let credentials = credentials(tls).await?;
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
        .connect_timeout(CONNECT_WITHIN)
        .initial_stream_window_size(WINDOW)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY);
    let began = Instant::now();
    loop {
        match endpoint.connect_with_connector(connector.clone()).await {
            Ok(channel) => {
                return Ok(
                    ControllerClient::new(channel).max_decoding_message_size(CONTROL_MESSAGE_BYTES_MAX)
                );
            }
            // One that leads no more may hang, and the one that will lead takes no connection yet.
            Err(_) if several && began.elapsed() < LEADER_WITHIN => sleep(TRY_EVERY).await,
            Err(e) => return Err(Error::Connect { url, reason: innermost(&e) }),
        }
    }
}

async fn credentials(tls: &cool_tls::Options) -> Result<Option<Credentials>, FolderError> {
    let began = Instant::now();
    loop {
        match tls.credentials(Role::Tool) {
            Err(FolderError::Content { .. }) if began.elapsed() < REPLACED_WITHIN => sleep(TRY_EVERY).await,
            outcome => return outcome,
        }
    }
}
