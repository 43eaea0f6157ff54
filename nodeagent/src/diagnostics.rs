//! The agent's examination of its own node, on request of the controller.

use cool_proto::control::Examined;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::process::Command;
use tokio::time::timeout;

/// Maximum time for an external program of an examination.
const WITHIN: Duration = Duration::from_secs(1);

/// Returns the result of an examination of the node with this data interface.
pub(crate) async fn examined(id: u64, interface: String) -> Examined {
    let faults = faults(&interface).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Examined { id, clock_us: i64::try_from(now.as_micros()).unwrap_or(i64::MAX), faults }
}

/// Returns the faults of the node, each in words with a remedy.
async fn faults(interface: &str) -> Vec<String> {
    let (driver, features) = tokio::join!(ethtool("-i", interface), ethtool("-k", interface));
    offload(interface, &driver.unwrap_or_default(), &features.unwrap_or_default()).into_iter().collect()
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
            "checksum offload is on at {interface}, which is virtual: a switch in user space does not fill in checksums, so \
             packets are dropped on arrival; run ethtool -K {interface} tx off"
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

    #[tokio::test]
    async fn a_missing_interface_has_no_faults() {
        assert_eq!(faults("nonexistent0").await, Vec::<String>::new());
    }
}
