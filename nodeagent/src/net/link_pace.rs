//! How fast this node's connections may send.

use cool_collective::timing::AgentCosts;
use cool_tcp::UNBOUNDED;
use cool_types::wire::{ETHERNET, TCP_IP};

/// What a connection may send of payload per second over a link of such a rate, in bytes on the wire: as much as leaves the
/// acknowledgements of an equal flow the other way, one for two packets, room beside it. Unbounded if the rate is not known,
/// which 0 says.
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
    fn what_a_link_carries_is_shared_with_the_acknowledgements_of_as_much_the_other_way() {
        let costs = |mtu| AgentCosts { mtu, ..AgentCosts::default() };
        let pace = pace(2_500_000, &costs(1500));
        let packets = u64::from(pace).div_ceil(1448);
        assert!((2_498_000..=2_502_000).contains(&(packets * 1514 + packets / 2 * 66)), "{pace}");
        assert_eq!([super::pace(0, &costs(1500)), super::pace(u64::MAX, &costs(9000))], [UNBOUNDED; 2]);
    }
}
