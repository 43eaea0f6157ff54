//! The agent's examination of its own node, on request of the controller.

use crate::interface::{self, Interface};
use crate::net::udp;
use cool_proto::control::Examined;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::process::Command;
use tokio::time::timeout;

/// Maximum time for an external program of an examination.
const WITHIN: Duration = Duration::from_secs(1);

/// Returns the result of an examination of the node with this data interface, as it was when the
/// agent started. It contains the `known` faults.
pub(crate) async fn examined(id: u64, interface: Interface, known: Vec<String>) -> Examined {
    let mut faults = Vec::new();
    let now = interface::read_mtu(&interface.name).unwrap_or(interface.mtu);
    faults.extend(changed_mtu(&interface, now));
    faults.extend(udp::granted_room(interface.ip).ok().and_then(small_room));
    faults.extend(known);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let offload_fault = offload_fault(&interface.name).await.unwrap_or_default();
    // The file exists for bonds only.
    let bond = std::fs::read_to_string(format!("/proc/net/bonding/{}", interface.name)).unwrap_or_default();
    let bond_fault = bond_fault(&interface.name, &bond).unwrap_or_default();
    let clock_us = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    Examined { id, clock_us, faults, offload_fault, bond_fault }
}

/// Returns the fault if the interface is a bond that uses several links at once, because an
/// OpenFlow switch accepts a node's packets from one port only: that of its LLDP. `bond` is the
/// system's description of the bond. The controller decides whether it matters.
fn bond_fault(interface: &str, bond: &str) -> Option<String> {
    let mode = bond.lines().find_map(|line| line.strip_prefix("Bonding Mode: "))?.trim();
    (!mode.contains("active-backup")).then(|| {
        format!(
            "{interface} is a bond with the mode \"{mode}\", so packets leave by several links, and its switches drop those \
             that do not arrive at the port of its LLDP; set the mode to active-backup, or use one link as --interface"
        )
    })
}

/// Returns the fault if checksum offload is on although the interface is virtual. The controller
/// decides whether it matters.
async fn offload_fault(interface: &str) -> Option<String> {
    let (driver, features) = tokio::join!(ethtool("-i", interface), ethtool("-k", interface));
    offload(interface, &driver.unwrap_or_default(), &features.unwrap_or_default())
}

/// Returns the fault if the interface has another MTU `now` than when the agent started.
fn changed_mtu(Interface { name, mtu, .. }: &Interface, now: u32) -> Option<String> {
    (now != *mtu).then(|| {
        format!(
            "the MTU of {name} is {now}, but was {mtu} when the agent started, so packets of full size are lost; set it to \
             {mtu}, or restart the agent"
        )
    })
}

/// Returns the fault if sockets get so little `room`, in bytes, that packets are lost.
fn small_room(room: usize) -> Option<String> {
    (room < udp::ROOM_MIN).then(|| {
        format!(
            "UDP sockets get only {room} bytes for received packets, so packets are lost whenever the agent is busy for a \
             few milliseconds; set net.core.rmem_max and net.core.wmem_max to 8388608 with sysctl, then restart the agent"
        )
    })
}

/// Returns the output of ethtool(8), or `None` if it is not installed or fails.
async fn ethtool(option: &str, interface: &str) -> Option<String> {
    let mut command = Command::new("ethtool");
    command.args([option, interface]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = timeout(WITHIN, command.output()).await.ok()?.ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the fault if the interface is virtual and checksum offload is on, because neither a
/// virtual interface nor a switch in user space fills in the checksums.
fn offload(interface: &str, driver: &str, features: &str) -> Option<String> {
    let has_value = |text: &str, key: &str, value: &str| {
        text.lines()
            .any(|line| line.trim().strip_prefix(key).is_some_and(|rest| rest.trim().starts_with(value)))
    };
    let wrong = has_value(driver, "driver:", "veth") && has_value(features, "tx-checksumming:", "on");
    wrong.then(|| {
        format!(
            "checksum offload is on at {interface}, which is virtual: its switch runs in user space and does not fill in \
             checksums, so packets are dropped on arrival; run ethtool -K {interface} tx off"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offload_is_wrong_only_where_no_hardware_does_it() {
        let on = "Features for eth0:\nrx-checksumming: on\ntx-checksumming: on\n\ttx-checksum-ipv4: off\n";
        let off = "Features for eth0:\nrx-checksumming: on\ntx-checksumming: off\n";
        assert!(
            offload("eth0", "driver: veth\nversion: 1.0\n", on).unwrap().contains("ethtool -K eth0 tx off")
        );
        assert_eq!(offload("eth0", "driver: veth\n", off), None);
        assert_eq!(offload("eth0", "driver: ixgbe\n", on), None);
        assert_eq!(offload("eth0", "", ""), None);
    }

    #[test]
    fn a_bond_that_uses_several_links_at_once_is_a_fault() {
        let bond = |mode| {
            format!("Ethernet Channel Bonding Driver: v6.1.0\n\nBonding Mode: {mode}\nMII Status: up\n")
        };
        let fault = bond_fault("bond0", &bond("IEEE 802.3ad Dynamic link aggregation")).unwrap();
        assert!(fault.starts_with("bond0 is a bond with the mode \"IEEE 802.3ad Dynamic"), "{fault}");
        assert_eq!(bond_fault("bond0", &bond("fault-tolerance (active-backup)")), None);
        assert_eq!(bond_fault("eth0", ""), None);
    }

    #[test]
    fn an_mtu_that_changed_while_the_agent_runs_is_a_fault() {
        let interface = Interface::read("lo", false).unwrap();
        let now = interface::read_mtu("lo").unwrap();
        assert_eq!(changed_mtu(&interface, now), None);
        let fault = changed_mtu(&Interface { mtu: now + 1, ..interface }, now).unwrap();
        assert!(fault.contains(&now.to_string()) && fault.contains("restart the agent"), "{fault}");
    }

    #[test]
    fn a_small_receive_buffer_is_a_fault_with_its_size() {
        let fault = small_room(212_992).unwrap();
        assert!(fault.contains("212992") && fault.contains("net.core.rmem_max"), "{fault}");
        assert_eq!(small_room(8 << 20), None);
        assert!(udp::granted_room([127, 0, 0, 1].into()).unwrap() > 0);
    }

    #[tokio::test]
    async fn a_missing_interface_has_no_faults() {
        assert_eq!(offload_fault("nonexistent0").await, None);
    }
}
