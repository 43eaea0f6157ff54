//! The fabric's task: processes events of switches and requests of the controller one after the
//! other, and drives the [`network`](crate::network).

use crate::api::RackTable;
use crate::network::Network;
use crate::request::FabricRequest;
use crate::switch::connection::{self, ConnectionContext, FromSwitch};
use cool_daemon::clock::Clock;
use cool_daemon::listen::{ClientConnection, ClientListener};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Maximum number of queued events. A switch with more events must wait.
const EVENTS: usize = 1024;
/// Number of events that are processed before the network is computed anew. If the last computation
/// took longer than these events, more are processed.
const BATCH: usize = 256;

/// Runs until the last handle is dropped.
pub(crate) async fn run(
    mut network: Network,
    listener: ClientListener,
    generation: watch::Receiver<Option<u64>>,
    mut racks: watch::Receiver<Arc<RackTable>>,
    mut requests: mpsc::Receiver<FabricRequest>,
) {
    let (events_in, mut events) = mpsc::channel(EVENTS);
    tokio::spawn(accept(listener, events_in, network.connection_context(generation)));
    let clock = Clock::start();
    loop {
        let began = clock.now();
        let deadline = network.advance(began);
        let took = clock.now() - began;
        tokio::select! {
            Some(event) = events.recv() => network.event(clock.now(), event),
            request = requests.recv() => match request {
                Some(request) => network.handle_request(clock.now(), request),
                None => return,
            },
            Ok(()) = racks.changed() => network.set_racks(racks.borrow_and_update().clone()),
            () = clock.wait(deadline) => {}
        }
        // At least half of the time must be spent on events. Otherwise they would pile up while the
        // network is computed.
        let until = clock.now() + took;
        let mut taken = 0;
        while (taken < BATCH || clock.now() < until)
            && let Ok(event) = events.try_recv()
        {
            network.event(clock.now(), event);
            taken += 1;
        }
    }
}

/// Accepts connections until the network has stopped.
async fn accept(
    listener: ClientListener,
    events: mpsc::Sender<FromSwitch>,
    connection_context: ConnectionContext,
) {
    let next = Arc::new(AtomicU64::new(0));
    let (ended, events) = (events.clone(), events);
    let serve = move |taken: ClientConnection| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        connection::run(number, taken, events.clone(), connection_context.clone())
    };
    listener.run("switch", async move { ended.closed().await }, serve).await;
}
