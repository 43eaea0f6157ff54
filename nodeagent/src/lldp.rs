//! Announces the node to its switch by LLDP, so that the controller learns where it is.

use crate::interface::Interface;
use cool_topology::Key;
use cool_topology::lldp::Announcement;
use pnet::datalink::{self, Channel, Config};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

/// The remedy if the agent may not send raw frames.
const NO_PERMISSION: &str = "no permission to send Ethernet frames; give the agent CAP_NET_RAW (its systemd unit \
                             does so with AmbientCapabilities; by hand: setcap cap_net_raw+ep PROGRAM)";

/// The longest a send may wait for room in the interface's queue.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Announces the node called `node` every `period`, proved by `key`, until dropped, but not while `silent`. What stands in
/// the way is logged once, and so is its end.
pub(crate) async fn announce(
    node: String,
    interface: Interface,
    key: Key,
    period: Duration,
    mut silent: watch::Receiver<bool>,
) {
    let announcement = Announcement::Node { name: node, mac: interface.mac };
    let name: Arc<str> = interface.name.into();
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut trouble = None;
    for number in 1.. {
        ticks.tick().await;
        if silent.wait_for(|silent| !silent).await.is_err() {
            return;
        }
        let frame = match announcement.encode(interface.mac, &key, number) {
            Ok(frame) => frame,
            Err(e) => return warn!("cannot announce this node by LLDP: {e}; choose another --name"),
        };
        let name = name.clone();
        let on = name.clone();
        let sent = tokio::task::spawn_blocking(move || send(&on, &frame))
            .await
            .unwrap_or_else(|e| Err(io::Error::other(e)));
        let now = sent.err().map(|e| e.to_string());
        match &now {
            Some(e) if now != trouble => {
                warn!(
                    "cannot announce this node by LLDP on {name}: {e}; the controller cannot place it in a rack"
                );
            }
            None if trouble.is_some() => info!("announcing this node by LLDP on {name} again"),
            _ => {}
        }
        trouble = now;
    }
}

/// Sends one frame. The socket does not stay: while it is open, it gets a copy of every packet that
/// passes the interface.
fn send(interface: &str, frame: &[u8]) -> io::Result<()> {
    let found = datalink::interfaces()
        .into_iter()
        .find(|i| i.name == interface)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the interface is gone"))?;
    let config = Config { promiscuous: false, write_timeout: Some(SEND_TIMEOUT), ..Config::default() };
    let channel = datalink::channel(&found, config).map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => io::Error::new(e.kind(), NO_PERMISSION),
        _ => e,
    })?;
    let Channel::Ethernet(mut sender, _) = channel else {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "not an Ethernet interface"));
    };
    sender.send_to(frame, None).unwrap_or_else(|| Err(io::Error::other("the frame is too long")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_vanished_is_an_error_that_says_so() {
        let e = send("nope0", &[0; 60]).unwrap_err();
        assert!(e.to_string().contains("gone"), "{e}");
    }
}
