//! What an agent finds wrong with its own node, when the controller asks.

use cool_proto::control::Examined;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::process::Command;
use tokio::time::timeout;

/// How long a look may take.
const WITHIN: Duration = Duration::from_secs(1);

/// The answer to an examination of the node whose data interface this is.
pub(crate) async fn examined(id: u64, interface: String) -> Examined {
    let faults = faults(&interface).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Examined { id, clock_us: i64::try_from(now.as_micros()).unwrap_or(i64::MAX), faults }
}

/// All that is wrong with the node, in words with a remedy.
async fn faults(interface: &str) -> Vec<String> {
    let (driver, features) = tokio::join!(ethtool("-i", interface), ethtool("-k", interface));
    offload(interface, &driver.unwrap_or_default(), &features.unwrap_or_default()).into_iter().collect()
}

/// What ethtool(8) says; nothing where it is not installed, or cannot tell.
async fn ethtool(option: &str, interface: &str) -> Option<String> {
    let mut command = Command::new("ethtool");
    command.args([option, interface]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = timeout(WITHIN, command.output()).await.ok()?.ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A virtual interface has no hardware that fills in checksums, and a switch in user space does not either.
fn offload(interface: &str, driver: &str, features: &str) -> Option<String> {
    let says = |text: &str, key: &str, value: &str| {
        text.lines()
            .any(|line| line.trim().strip_prefix(key).is_some_and(|rest| rest.trim().starts_with(value)))
    };
    let wrong = says(driver, "driver:", "veth") && says(features, "tx-checksumming:", "on");
    wrong.then(|| {
        format!(
            "checksum offload is on at {interface}, which is virtual: a switch in user space fills in no checksums, and \
             what arrives is dropped; ethtool -K {interface} tx off"
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
    async fn of_an_interface_that_is_not_there_nothing_is_said() {
        assert_eq!(faults("nonexistent0").await, Vec::<String>::new());
    }
}
