//! Ranges of multicast addresses.

use std::net::IpAddr;

/// Returns whether an address is one of source-specific multicast: of 232.0.0.0/8 or ff3x::/32 (RFC
/// 4607). A receiver joins such an address together with a source, and receives the multicasts of
/// that source only.
pub fn is_source_specific(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.octets()[0] == 232,
        IpAddr::V6(ip) => ip.segments()[0] & 0xfff0 == 0xff30 && ip.segments()[1] == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_rfc_4607_are_source_specific() {
        let is = |text: &str| is_source_specific(text.parse().unwrap());
        assert!(["232.0.0.0", "232.255.255.255", "ff38::c000:1", "ff3e::8000:0"].into_iter().all(is));
        let others =
            ["231.255.255.255", "233.0.0.0", "239.192.0.1", "10.0.0.1", "ff38:1::1", "ff18::1", "fe30::1"];
        assert!(!others.into_iter().any(is));
    }
}
