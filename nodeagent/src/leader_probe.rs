//! The test of a group's datagrams before its first quick call ([`cool_quick::DatagramProbe`]).

use crate::async_socket::AsyncSocket;
use crate::datagram_faults::DatagramFaults;
use cool_quick::{DATAGRAM_BYTES_MAX, DatagramProbe, LEADER_BUFFER_BYTES, ProbePath, SendTo};
use rustix::net::{RecvFlags, SendFlags};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The interval at which probes are repeated.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time until a probe of each sender must have arrived. If each link of the path loses a
/// fifth of all packets, one probe in fifteen arrives, of about 200 that are sent in this time.
const PROBE_TIME_MAX: Duration = Duration::from_secs(4);

/// The maximum time if datagrams of the same sender have failed to arrive recently.
const REPEATED_PROBE_TIME_MAX: Duration = Duration::from_millis(500);

/// How long after the own test probes are still sent for others if the result is not known.
const OTHERS_TIME_MAX: Duration = Duration::from_secs(1);

/// The ports of quick calls, as text for remedies.
const PORTS: &str = "UDP 20000 to 31999";

/// The test by the agent of a leader. It uses the leader's socket, from which the leader reads only
/// after the result is known.
#[derive(Debug)]
pub(crate) struct LeaderProbe {
    /// A duplicate of the leader's socket.
    pub(crate) socket: OwnedFd,
    pub(crate) probe: DatagramProbe,
    /// The addresses of the leaders' nodes, and of the tree.
    pub(crate) addresses: Vec<Ipv4Addr>,
    pub(crate) tree: Ipv4Addr,
    /// The port of the leaders' sockets.
    pub(crate) port: u16,
    pub(crate) faults: Arc<DatagramFaults>,
}

impl LeaderProbe {
    /// Sends probes until the result is known for all leaders (`is_decided`), and reports to
    /// `passed` whether the probes of others arrive. Must be called within the runtime.
    pub(crate) async fn run(self, is_decided: impl Fn() -> bool, passed: oneshot::Sender<bool>) {
        let LeaderProbe { socket, mut probe, addresses, tree, port, faults } = self;
        let Ok(socket) = AsyncSocket::new(socket) else { return };
        let address = |to: SendTo| match to {
            SendTo::All => tree,
            SendTo::Rank(leader) | SendTo::AgentOf(leader) => addresses[leader.0 as usize],
        };
        let datagrams = probe.datagrams().into_iter();
        let datagrams: Vec<_> =
            datagrams.map(|(to, bytes)| (SocketAddrV4::new(address(to), port), bytes)).collect();
        let source = |leader: cool_types::Rank| addresses[leader.0 as usize];
        let is_known = probe.missing().any(|(_, from)| faults.is_recent(source(from).into()));
        let time_max = if is_known { REPEATED_PROBE_TIME_MAX } else { PROBE_TIME_MAX };
        let sending = timeout(time_max + OTHERS_TIME_MAX, send_until(&is_decided, &socket, &datagrams));
        let receiving = async {
            let is_complete = timeout(time_max, receive_all(&socket, &mut probe)).await.is_ok();
            if is_complete {
                addresses.iter().for_each(|source| faults.clear((*source).into()));
            }
            for (path, from) in probe.missing() {
                faults.record(source(from).into(), fault(path, source(from), (tree, port)));
            }
            // The engine may have stopped.
            let _ = passed.send(is_complete);
        };
        let _ = tokio::join!(sending, receiving);
    }
}

/// Sends datagrams again and again until `is_decided`. A datagram that the system rejects is lost.
async fn send_until(
    is_decided: impl Fn() -> bool,
    socket: &AsyncSocket,
    datagrams: &[(SocketAddrV4, Vec<u8>)],
) {
    while !is_decided() {
        for (to, bytes) in datagrams {
            let sent = socket.try_write(|socket| {
                rustix::net::sendto(socket, bytes, SendFlags::DONTWAIT, to).map_err(std::io::Error::from)
            });
            if let Err(error) = sent {
                tracing::debug!(%to, %error, "while sending a probe for quick calls");
            }
        }
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}

/// Receives until probes of all expected senders have arrived.
async fn receive_all(socket: &AsyncSocket, probe: &mut DatagramProbe) {
    let mut buffer = vec![0; LEADER_BUFFER_BYTES];
    while probe.missing().next().is_some() {
        let read = socket.read(|socket| {
            rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT).map_err(std::io::Error::from)
        });
        match read.await {
            Ok((len, _)) => drop(probe.receive(&buffer[..len])),
            // The error may belong to an earlier datagram that was undeliverable, and is reported
            // once. Other tasks run first, in case the socket always reports an error.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

fn fault(path: ProbePath, from: Ipv4Addr, (tree, port): (Ipv4Addr, u16)) -> String {
    let over = match path {
        ProbePath::Unicast => String::new(),
        ProbePath::Multicast => format!(" over the tree {tree}"),
    };
    format!(
        "datagrams of {DATAGRAM_BYTES_MAX} bytes from {from} to UDP port {port}{over} do not arrive, so short calls between \
         these nodes are executed by the agents, which is slower: allow {PORTS} between nodes, and set the same MTU on all \
         interfaces and switch ports"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_cipher::AesGcm;
    use cool_quick::CallKey;
    use cool_types::Rank;
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Returns the tests of two leaders at different loopback addresses and one port. The tree is
    /// an address at which only the second leader receives.
    fn pair() -> [LeaderProbe; 2] {
        let addresses = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];
        let first = UdpSocket::bind((addresses[0], 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let sockets = [first, UdpSocket::bind((addresses[1], port)).unwrap()];
        let key = CallKey::new::<AesGcm>([7; 32].into());
        let mut number = 0;
        sockets.map(|socket| {
            number += 1;
            LeaderProbe {
                socket: socket.into(),
                probe: DatagramProbe::new(key.clone(), (9, 2), Rank(number - 1), 2, 0),
                addresses: addresses.to_vec(),
                tree: addresses[1],
                port,
                faults: Arc::default(),
            }
        })
    }

    #[tokio::test]
    async fn leaders_that_reach_each_other_pass() {
        let [one, two] = pair();
        let decided = AtomicBool::new(false);
        let is_decided = || decided.load(Ordering::Relaxed);
        let (faults, (first, passed), (second, other)) =
            (Arc::clone(&two.faults), oneshot::channel(), oneshot::channel());
        faults.record(one.addresses[0].into(), "an earlier fault".to_owned());
        let both = async {
            let passed = (passed.await.unwrap(), other.await.unwrap());
            decided.store(true, Ordering::Relaxed);
            passed
        };
        let ((), (), passed) = tokio::join!(one.run(is_decided, first), two.run(is_decided, second), both);
        assert_eq!(passed, (true, true));
        assert_eq!(faults.texts(), Vec::<String>::new(), "a passed test ends the fault");
    }

    #[tokio::test]
    async fn a_leader_that_nothing_reaches_reports_sender_and_remedy() {
        let [one, two] = pair();
        let (faults, sender) = (Arc::clone(&two.faults), one.addresses[0]);
        // Later tests of the same sender are shorter.
        faults.record(sender.into(), "an earlier fault".to_owned());
        let (report, passed) = oneshot::channel::<bool>();
        drop(one);
        let ended = AtomicBool::new(false);
        let end = async { ended.store(!passed.await.unwrap(), Ordering::Relaxed) };
        let ((), ()) = tokio::join!(two.run(|| ended.load(Ordering::Relaxed), report), end);
        let texts = faults.texts();
        assert_eq!(texts.len(), 1);
        let words = [sender.to_string(), DATAGRAM_BYTES_MAX.to_string(), PORTS.to_owned(), "MTU".to_owned()];
        assert!(words.iter().all(|word| texts[0].contains(word)), "{}", texts[0]);
        assert!(texts[0].len() <= 400, "the controller cuts longer texts");
        assert!(faults.is_recent(sender.into()));
    }
}
