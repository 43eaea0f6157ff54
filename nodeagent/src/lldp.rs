//! Announces the node to its switch by LLDP, so that the controller learns its location.

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

/// Maximum time to wait for room in the interface's queue.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Announces the node called `node` every `period`, with a proof by `key`, until the future is
/// dropped. Sends nothing while `silent` is set. Logs a problem when it begins and when it ends.
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
                    "cannot announce this node by LLDP on {name}: {e}; OpenFlow switches cannot locate it, other networks need no LLDP"
                );
            }
            None if trouble.is_some() => info!("announcing this node by LLDP on {name} again"),
            _ => {}
        }
        trouble = now;
    }
}

/// Sends one frame. The socket must not stay open, because it receives a copy of every packet on
/// the interface.
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
    fn a_vanished_interface_is_named_in_the_error() {
        let e = send("nope0", &[0; 60]).unwrap_err();
        assert!(e.to_string().contains("gone"), "{e}");
    }
}
