//! The rate at which this node's connections may send.

use cool_collective::timing::AgentCosts;
use cool_tcp::UNBOUNDED;
use cool_types::wire::{ETHERNET, TCP_IP};

/// Returns the payload that a connection may send per second over a link with this rate, which is
/// in bytes per second on the wire. The rate leaves room for the acknowledgements of an equal flow
/// in the other direction, one for two packets. Returns [`UNBOUNDED`] if the rate is 0, which means
/// unknown.
pub(super) fn pace(bytes_per_second: u64, AgentCosts { mtu, beyond_ipv4, .. }: &AgentCosts) -> u32 {
    let headers = TCP_IP + beyond_ipv4;
    if bytes_per_second == 0 || *mtu <= headers {
        return UNBOUNDED;
    }
    let wire = mtu + ETHERNET + (ETHERNET + headers) / 2;
    let payload = u128::from(bytes_per_second) * u128::from(mtu - headers) / u128::from(wire);
    u32::try_from(payload).unwrap_or(UNBOUNDED).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_leaves_room_for_acknowledgements() {
        let costs = |mtu| AgentCosts { mtu, ..AgentCosts::default() };
        let pace = pace(2_500_000, &costs(1500));
        let packets = u64::from(pace).div_ceil(1448);
        assert!((2_498_000..=2_502_000).contains(&(packets * 1514 + packets / 2 * 66)), "{pace}");
        assert_eq!([super::pace(0, &costs(1500)), super::pace(u64::MAX, &costs(9000))], [UNBOUNDED; 2]);
    }
}
