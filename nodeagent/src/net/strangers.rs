//! Sockets of other users at a UDP port, by the system's table (proc_net(5)).

use std::net::Ipv4Addr;

/// A socket of another user.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "user {user} has a socket at {address}:{port}, and would hear or send in the agent's place; end that process"
)]
pub(super) struct Stranger {
    user: u32,
    address: Ipv4Addr,
    port: u16,
}

/// The first socket at `port` in a `table` (of `/proc/net/udp`) that is not of user `own`.
pub(super) fn at_port(table: &str, port: u16, own: u32) -> Option<Stranger> {
    // The first line has the headings.
    table.lines().skip(1).filter_map(stranger).find(|socket| socket.port == port && socket.user != own)
}

/// A line: the number, local address:port, remote address:port, state, queues, timer, retransmissions, user, and more. An address is as it lies in memory, as
/// one hexadecimal number.
fn stranger(line: &str) -> Option<Stranger> {
    let mut words = line.split_whitespace();
    let (address, port) = words.nth(1)?.split_once(':')?;
    let address = Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?.to_ne_bytes());
    let port = u16::from_str_radix(port, 16).ok()?;
    let user = words.nth(5)?.parse().ok()?;
    Some(Stranger { user, address, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    const TABLE: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  451: 00000000:1CFC 00000000:0000 07 00000000:00000000 00:00000000 00000000   990        0 40100 2 0000000000000000 0
  451: 070000EF:1CFC 00000000:0000 07 00000000:00000000 00:00000000 00000000 65534        0 40200 2 0000000000000000 0
  452: 0100007F:1CFD 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 40300 2 0000000000000000 0
";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_socket_of_another_user_at_the_port_is_found() {
        let nobody = Stranger { user: 65534, address: Ipv4Addr::new(239, 0, 0, 7), port: 7420 };
        assert_eq!(at_port(TABLE, 7420, 990), Some(nobody));
        assert_eq!(at_port(TABLE, 7421, 1000), None);
        assert_eq!(at_port(TABLE, 7422, 990), None);
    }

    #[test]
    fn the_systems_table_is_read() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let own = rustix::process::geteuid().as_raw();
        let table = std::fs::read_to_string("/proc/net/udp").unwrap();
        assert_eq!(at_port(&table, port, own), None);
        let found = at_port(&table, port, own + 1).unwrap();
        assert_eq!(found, Stranger { user: own, address: Ipv4Addr::LOCALHOST, port });
    }
}
