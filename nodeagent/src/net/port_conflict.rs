//! Finds sockets that conflict with the agent's UDP port, in the system's table (proc_net(5)).

use std::net::{IpAddr, SocketAddr};

/// A socket that conflicts with the agent's, with a remedy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PortConflict {
    #[error(
        "user {user} has a socket at {}, and could receive or send in the agent's place; end that process",
        SocketAddr::new(*.address, *.port)
    )]
    Stranger { user: u32, address: IpAddr, port: u16 },
    #[error(
        "another process of this user has {}; end it, or give this agent another port",
        SocketAddr::new(*.address, *.port)
    )]
    Taken { address: IpAddr, port: u16 },
}

/// A socket, as the system's table describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortEntry {
    pub(super) user: u32,
    pub(super) inode: u64,
    pub(super) address: IpAddr,
    pub(super) port: u16,
}

/// Returns the first conflict in a `table` (of `/proc/net/udp` or `udp6`): a socket of another user
/// at the port, or another socket at the agent's address.
pub(super) fn find(table: &str, own: PortEntry) -> Option<PortConflict> {
    // The first line contains the headings.
    let mut at_port = table.lines().skip(1).filter_map(entry).filter(|other| other.port == own.port);
    at_port.find_map(|PortEntry { user, inode, address, port }| {
        if user != own.user {
            return Some(PortConflict::Stranger { user, address, port });
        }
        (address == own.address && inode != own.inode).then_some(PortConflict::Taken { address, port })
    })
}

/// Parses a line. Its fields are: number, local address:port, remote address:port, state, queues,
/// timer, retransmissions, user, timeout, inode, and more. An address is printed as its 32-bit
/// words in memory order, in hexadecimal without separators.
fn entry(line: &str) -> Option<PortEntry> {
    let mut words = line.split_whitespace();
    let (address, port) = words.nth(1)?.split_once(':')?;
    let part = |at| u32::from_str_radix(address.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let address = match address.len() {
        8 => IpAddr::from(part(0)?),
        32 => IpAddr::from(<[u8; 16]>::try_from([part(0)?, part(8)?, part(16)?, part(24)?].concat()).ok()?),
        _ => return None,
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    let user = words.nth(5)?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    Some(PortEntry { user, inode, address, port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[cfg(target_endian = "little")]
    const TABLE: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  451: 0100007F:1CFC 00000000:0000 07 00000000:00000000 00:00000000 00000000   990        0 40100 2 0000000000000000 0
  451: 0200007F:1CFC 00000000:0000 07 00000000:00000000 00:00000000 00000000   990        0 40150 2 0000000000000000 0
  451: 070000EF:1CFC 00000000:0000 07 00000000:00000000 00:00000000 00000000 65534        0 40200 2 0000000000000000 0
  452: 0100007F:1CFD 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 40300 2 0000000000000000 0
";

    #[test]
    #[cfg(target_endian = "little")]
    fn conflicting_sockets_are_found() {
        let own = PortEntry { user: 990, inode: 40100, address: Ipv4Addr::LOCALHOST.into(), port: 7420 };
        let nobody = PortConflict::Stranger { user: 65534, address: [239, 0, 0, 7].into(), port: 7420 };
        assert_eq!(find(TABLE, own), Some(nobody));
        let single = PortEntry { user: 1000, inode: 40300, port: 7421, ..own };
        assert_eq!(find(TABLE, single), None);
        let taken = PortConflict::Taken { address: own.address, port: 7421 };
        assert_eq!(find(TABLE, PortEntry { inode: 40301, ..single }), Some(taken));
    }

    #[test]
    fn the_systems_table_is_read() {
        the_table_is_read(Ipv4Addr::LOCALHOST.into(), "/proc/net/udp");
        the_table_is_read(Ipv6Addr::LOCALHOST.into(), "/proc/net/udp6");
    }

    fn the_table_is_read(address: IpAddr, table: &str) {
        let socket = std::net::UdpSocket::bind((address, 0)).unwrap();
        let (user, port) = (rustix::process::geteuid().as_raw(), socket.local_addr().unwrap().port());
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
        let table = std::fs::read_to_string(table).unwrap();
        let own = PortEntry { user, inode, address, port };
        assert_eq!(find(&table, own), None);
        assert_eq!(
            find(&table, PortEntry { inode: inode + 1, ..own }),
            Some(PortConflict::Taken { address: own.address, port })
        );
        let found = find(&table, PortEntry { user: user + 1, ..own }).unwrap();
        assert_eq!(found, PortConflict::Stranger { user, address: own.address, port });
    }
}
