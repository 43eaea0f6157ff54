//! Sends ARP requests of hosts, to which the controller responds. Each switch has a window of
//! requests in flight; each response is timed, and followed by the next request.

use crate::fabric::{SimulatedFabric, ip, lock, mac};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The ARP requests of all switches.
pub(crate) struct RequestPump {
    running: AtomicBool,
    /// Send times of the requests in flight, by switch. The controller must respond to the requests
    /// of a switch in order.
    pending: Vec<Mutex<VecDeque<Instant>>>,
    /// Times from request to response.
    response_times: Mutex<Vec<Duration>>,
}

/// Figures of one run.
pub(crate) struct PumpResult {
    pub(crate) responses: usize,
    pub(crate) seconds: f64,
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
}

impl RequestPump {
    /// Returns a pump without requests.
    pub(crate) fn new(switches: usize) -> RequestPump {
        let pending = (0..switches).map(|_| Mutex::default()).collect();
        RequestPump { running: AtomicBool::new(false), pending, response_times: Mutex::default() }
    }

    /// Keeps `window` requests in flight at each of these switches for `duration`. Returns the
    /// figures.
    pub(crate) async fn run(
        &self,
        fabric: &SimulatedFabric,
        switches: &[usize],
        window: usize,
        duration: Duration,
    ) -> PumpResult {
        lock(&self.response_times).clear();
        self.running.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        for switch in switches {
            for _ in 0..window {
                self.send_request(fabric, *switch);
            }
        }
        tokio::time::sleep(duration).await;
        self.running.store(false, Ordering::Relaxed);
        let seconds = begun.elapsed().as_secs_f64();
        // Responses to the requests that are still in flight are not measured.
        let mut response_times = core::mem::take(&mut *lock(&self.response_times));
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.pending.iter().for_each(|pending| lock(pending).clear());
        response_times.sort_unstable();
        let at = |share: f64| {
            response_times.get((response_times.len() as f64 * share) as usize).copied().unwrap_or_default()
        };
        PumpResult { responses: response_times.len(), seconds, median: at(0.5), p99: at(0.99) }
    }

    /// Handles a response, which the controller sends out of a port of this switch.
    pub(crate) fn on_response(&self, fabric: &SimulatedFabric, switch: usize) {
        let Some(sent) = lock(&self.pending[switch]).pop_front() else { return };
        if self.running.load(Ordering::Relaxed) {
            lock(&self.response_times).push(sent.elapsed());
            self.send_request(fabric, switch);
        }
    }

    /// Sends the request of a host of this switch for the address of a host of another switch.
    fn send_request(&self, fabric: &SimulatedFabric, switch: usize) {
        let hosts = &fabric.plan.hosts;
        let Some(sender) = hosts.iter().position(|host| host.switch == switch) else { return };
        let target = (sender + hosts.len() / 2) % hosts.len();
        let frame = arp_request(sender, target);
        lock(&self.pending[switch]).push_back(Instant::now());
        fabric.receive_frame(switch, hosts[sender].port, &frame);
    }
}

/// Returns an ARP request of `sender` for the address of `target`, as a frame.
fn arp_request(sender: usize, target: usize) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &mac(sender), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    frame.extend([&mac(sender)[..], &ip(sender).octets(), &[0; 6], &ip(target).octets()].concat());
    frame.resize(60, 0);
    frame
}
