//! Establishes connections where packets are lost.
//!
//! If the first packet of a connection or its reply is lost, TCP retransmits it after a second (RFC
//! 6298), and no socket option changes that. Another attempt is therefore started in parallel to
//! one that has not succeeded for a while, and the first that succeeds is used, as Happy Eyeballs
//! does for addresses (RFC 8305). For example, at a loss of 5 %, about 12 of the 120 connections
//! between 16 agents need a second attempt, and one needs a third.

use crate::bound_retransmission_timeout;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Time before the next attempt: the connection attempt delay of RFC 8305, which must be at least
/// 100 ms. It is longer than the queueing delay in a cluster.
const ATTEMPT_DELAY: Duration = Duration::from_millis(100);
/// Largest number of parallel attempts; TCP's own timers apply to the last one.
const ATTEMPTS_MAX: usize = 5;

/// Connects to an address, from a local address if one is given, and returns the connection with a
/// bounded retransmission timeout.
///
/// It may take as long as TCP's own attempts; drop the future to stop earlier. The other end may
/// see connections that are closed before any data arrives, because parallel attempts are
/// abandoned.
///
/// # Errors
/// Returns the error of the first attempt that fails.
pub async fn connect(from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    loop {
        attempts.spawn(attempt(from, to));
        tokio::select! {
            Some(ended) = attempts.join_next() => return ended?,
            () = sleep(ATTEMPT_DELAY), if attempts.len() < ATTEMPTS_MAX => {}
        }
    }
}

async fn attempt(from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
    if let Some(ip) = from {
        socket.bind(SocketAddr::new(ip, 0))?;
    }
    bound_retransmission_timeout(&socket);
    socket.connect(to).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[tokio::test]
    async fn a_refused_connection_is_reported_at_once() {
        let closed = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = closed.local_addr().unwrap();
        drop(closed);
        let error = connect(None, address).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    /// A listener with a full queue does not reply, as if packets were lost. An attempt that starts
    /// once there is room succeeds at once, and one that started earlier a second later.
    #[tokio::test]
    async fn a_second_attempt_succeeds_before_the_first_is_repeated() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let to = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = tokio::time::timeout(ATTEMPT_DELAY, TcpStream::connect(to)).await {
            queued.push(stream.unwrap());
        }
        let mut connecting = Box::pin(connect(Some(Ipv4Addr::LOCALHOST.into()), to));
        assert!(tokio::time::timeout(ATTEMPT_DELAY / 2, &mut connecting).await.is_err());
        for _ in &queued {
            listener.accept().await.unwrap();
        }
        let ours = connecting.await.unwrap().local_addr().unwrap();
        let (_, first) = listener.accept().await.unwrap();
        assert_eq!(first, ours, "the second attempt, because the first is not repeated yet");
    }
}
