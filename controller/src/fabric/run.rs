//! The fabric's task: takes events of switches and calls of the controller in turn, and drives the
//! [`network`](super::network).

use super::Call;
use super::api::{FabricConfig, TopologySnapshot};
use super::connection::{self, Clock, FromSwitch};
use super::network::Network;
use core::time::Duration;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tracing::warn;

/// Events that wait; a switch that has more waits itself.
const EVENTS: usize = 1024;
/// What is taken at once before the network is computed anew.
const BATCH: usize = 256;
/// Connections at a time, also of those who are no switches.
const CONNECTIONS: usize = 4096;

/// Runs until the last handle is gone.
pub(super) async fn run(
    config: FabricConfig,
    listener: TcpListener,
    mut calls: mpsc::Receiver<Call>,
    publish: watch::Sender<Arc<TopologySnapshot>>,
) {
    let (events_in, mut events) = mpsc::channel(EVENTS);
    tokio::spawn(accept(listener, events_in));
    let clock = Clock::start();
    let mut network = Network::new(config, publish);
    loop {
        let deadline = network.advance(clock.now());
        tokio::select! {
            Some(event) = events.recv() => network.event(clock.now(), event),
            call = calls.recv() => match call {
                Some(call) => network.call(clock.now(), call),
                None => return,
            },
            () = clock.wait(deadline) => {}
        }
        for _ in 0..BATCH {
            let Ok(event) = events.try_recv() else { break };
            network.event(clock.now(), event);
        }
    }
}

/// Takes connections until the network has ended.
async fn accept(listener: TcpListener, events: mpsc::Sender<FromSwitch>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    for connection in 0.. {
        let permit = match permits.clone().acquire_owned().await {
            Ok(permit) => permit,
            Err(_) => return,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = events.closed() => return,
        };
        match accepted {
            Ok((socket, peer)) => {
                let events = events.clone();
                tokio::spawn(async move {
                    connection::run(connection, socket, peer, events).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Such as too many open files: nothing tells when it is over.
                warn!(%error, "cannot accept a switch");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
