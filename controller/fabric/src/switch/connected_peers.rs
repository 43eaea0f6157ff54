//! The addresses of connected switches, which show that two switches have the same datapath id.
//!
//! A switch that connects again replaces its older connection. Two switches with one datapath id,
//! such as cloned machines, would replace each other forever. The second one is therefore rejected
//! while the first one, at another address, is connected.

use crate::api::{ConnectionId, NotAdmitted};
use cool_topology::DatapathId;
use core::net::IpAddr;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The current connection of each switch, with the address of its peer.
#[derive(Debug, Default)]
pub(crate) struct ConnectedPeers {
    by_switch: Mutex<BTreeMap<DatapathId, (ConnectionId, IpAddr)>>,
}

impl ConnectedPeers {
    /// Records a connection of a switch. The caller must release it when it has ended.
    ///
    /// # Errors
    /// Returns an error if a switch at another address is connected with this datapath id.
    pub(crate) fn claim(
        &self,
        switch: DatapathId,
        connection: ConnectionId,
        address: IpAddr,
    ) -> Result<(), NotAdmitted> {
        let mut by_switch = self.by_switch.lock();
        match by_switch.get(&switch) {
            Some((_, at)) if *at != address => Err(NotAdmitted::Duplicate { claimed: switch, at: *at }),
            _ => {
                by_switch.insert(switch, (connection, address));
                Ok(())
            }
        }
    }

    /// Removes a connection that has ended, unless a newer one has replaced it.
    pub(crate) fn release(&self, switch: DatapathId, connection: ConnectionId) {
        let mut by_switch = self.by_switch.lock();
        if by_switch.get(&switch).is_some_and(|(current, _)| *current == connection) {
            by_switch.remove(&switch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_switch_with_a_datapath_id_is_rejected() {
        let (peers, switch) = (ConnectedPeers::default(), DatapathId(0x2a));
        let [one, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        assert_eq!(peers.claim(switch, 1, one), Ok(()));
        let refused = peers.claim(switch, 2, other).unwrap_err();
        assert!(refused.to_string().contains("the switch at 10.0.0.1 has its datapath id"), "{refused}");
        assert_eq!(peers.claim(switch, 3, one), Ok(()), "it connects again");
        peers.release(switch, 1);
        assert!(peers.claim(switch, 4, other).is_err());
        peers.release(switch, 3);
        assert_eq!(peers.claim(switch, 5, other), Ok(()));
        assert_eq!(peers.claim(DatapathId(1), 6, one), Ok(()));
    }
}
