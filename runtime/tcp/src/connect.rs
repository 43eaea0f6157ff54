//! Connecting where packets are lost.
//!
//! If the first packet of a connection or the answer to it is lost, TCP sends it again after a second (RFC 6298), which no socket option
//! changes. So another attempt is begun beside one that has not succeeded for a while, and the first that succeeds counts, as of
//! addresses in Happy Eyeballs (RFC 8305): where a twentieth of all packets is lost, of the 120 connections of 16 agents a
//! dozen need a second attempt, and one a third.

use crate::bound_retries;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Until the next attempt: RFC 8305's connection attempt delay, for which it has 100 ms at least. Longer than queues in a cluster.
const ATTEMPT_DELAY: Duration = Duration::from_millis(100);
/// Attempts beside each other; the last one goes on as TCP does.
const ATTEMPTS_MAX: usize = 5;

/// Connects, from an address if one is given; retries are bounded. It may take as long as TCP's own attempts: who does not want to
/// wait so long drops it. The other end may see connections that are closed before anything was said.
///
/// # Errors
/// What the first attempt that fails says.
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
    bound_retries(&socket);
    socket.connect(to).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[tokio::test]
    async fn who_refuses_is_heard_at_once() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = taken.local_addr().unwrap();
        drop(taken);
        let error = connect(None, address).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    /// A listener whose queue is full answers nobody, as if packets were lost; whoever comes once there is room is answered at once,
    /// whoever came before that a second later.
    #[tokio::test]
    async fn who_does_not_answer_at_first_is_asked_again_beside_the_first_attempt() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let to = listener.local_addr().unwrap();
        let mut crowd = Vec::new();
        while let Ok(stream) = tokio::time::timeout(ATTEMPT_DELAY, TcpStream::connect(to)).await {
            crowd.push(stream.unwrap());
        }
        let mut connecting = Box::pin(connect(Some(Ipv4Addr::LOCALHOST.into()), to));
        assert!(tokio::time::timeout(ATTEMPT_DELAY / 2, &mut connecting).await.is_err());
        for _ in &crowd {
            listener.accept().await.unwrap();
        }
        let ours = connecting.await.unwrap().local_addr().unwrap();
        let (_, first) = listener.accept().await.unwrap();
        assert_eq!(first, ours, "the second attempt, as the first is not repeated yet");
    }
}
