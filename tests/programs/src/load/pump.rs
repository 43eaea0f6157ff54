//! ARP requests that hosts send and the controller answers: a window of them under way at each switch, each
//! answer timed and followed by the next request.

use crate::fabric::{Fabric, ip, lock, mac};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The requests of all switches.
pub(crate) struct Pump {
    running: AtomicBool,
    /// When the requests under way were sent, by switch: the controller answers those of a switch in order.
    under_way: Vec<Mutex<VecDeque<Instant>>>,
    /// How long answers took.
    times: Mutex<Vec<Duration>>,
}

/// What was measured.
pub(crate) struct Measured {
    pub(crate) answers: usize,
    pub(crate) seconds: f64,
    pub(crate) median: Duration,
    pub(crate) worst_percent: Duration,
}

impl Pump {
    pub(crate) fn new(switches: usize) -> Pump {
        let under_way = (0..switches).map(|_| Mutex::default()).collect();
        Pump { running: AtomicBool::new(false), under_way, times: Mutex::default() }
    }

    /// Keeps `window` requests under way at each of these switches for `span`.
    pub(crate) async fn run(
        &self,
        fabric: &Fabric,
        switches: &[usize],
        window: usize,
        span: Duration,
    ) -> Measured {
        lock(&self.times).clear();
        self.running.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        for switch in switches {
            for _ in 0..window {
                self.ask(fabric, *switch);
            }
        }
        tokio::time::sleep(span).await;
        self.running.store(false, Ordering::Relaxed);
        let seconds = begun.elapsed().as_secs_f64();
        // What is still under way is no longer measured.
        let mut times = core::mem::take(&mut *lock(&self.times));
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.under_way.iter().for_each(|under_way| lock(under_way).clear());
        times.sort_unstable();
        let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
        Measured { answers: times.len(), seconds, median: at(0.5), worst_percent: at(0.99) }
    }

    /// The controller has sent an answer out of a port of this switch.
    pub(crate) fn answered(&self, fabric: &Fabric, switch: usize) {
        let Some(sent) = lock(&self.under_way[switch]).pop_front() else { return };
        if self.running.load(Ordering::Relaxed) {
            lock(&self.times).push(sent.elapsed());
            self.ask(fabric, switch);
        }
    }

    /// A host of this switch asks for one of another switch.
    fn ask(&self, fabric: &Fabric, switch: usize) {
        let hosts = &fabric.plan.hosts;
        let Some(asker) = hosts.iter().position(|host| host.switch == switch) else { return };
        let target = (asker + hosts.len() / 2) % hosts.len();
        let frame = request(asker, target);
        lock(&self.under_way[switch]).push_back(Instant::now());
        fabric.arrive(switch, hosts[asker].port, &frame);
    }
}

/// Who has the target's address? As a host sends it.
fn request(asker: usize, target: usize) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &mac(asker), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    frame.extend([&mac(asker)[..], &ip(asker).octets(), &[0; 6], &ip(target).octets()].concat());
    frame.resize(60, 0);
    frame
}
