//! The connection to the controller.

use crate::error::{Error, innermost};
use cool_proto::control::controller_client::ControllerClient;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How often a silent controller is asked whether it is there, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Connects to the controller at `address`, a URL or HOST:PORT.
pub(crate) async fn connect(address: &str) -> Result<ControllerClient<Channel>, Error> {
    let url = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let endpoint = Endpoint::from_shared(url.clone()).map_err(|_| Error::Address(address.to_owned()))?;
    let channel = endpoint
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY)
        .connect()
        .await
        .map_err(|e| Error::Connect { url, reason: innermost(&e) })?;
    Ok(ControllerClient::new(channel))
}
