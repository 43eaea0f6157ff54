//! Routes to racks, updated in an order in which no mixture of old and new routes forms a loop. A
//! switch whose new next hops lead away from the rack by the old distances must wait until all
//! others have acknowledged theirs (ordered FIB update, RFC 6976).

use super::Network;
use super::acknowledgments::AckWaiter;
use cool_machine::{Time, earliest};
use cool_topology::routes::RouteUpdate;
use cool_topology::{DatapathId, Link, Routes};
use std::collections::{BTreeMap, BTreeSet};

/// The routes, and deferred updates by rack.
#[derive(Debug, Default)]
pub(crate) struct UnicastRoutes {
    routes: Routes,
    deferred: BTreeMap<u32, DeferredUpdate>,
}

/// New next hops towards a rack that wait for acknowledgments.
#[derive(Debug, Default)]
struct DeferredUpdate {
    /// Switches that do not have their new next hops yet, because these might form a loop with old
    /// ones, or because an earlier update towards the rack was deferred.
    withheld: BTreeSet<DatapathId>,
    /// When they are sent even without acknowledgments.
    until: Option<Time>,
}

impl UnicastRoutes {
    /// Returns when deferred updates are sent even without acknowledgments.
    pub(crate) fn deferred_until(&self) -> Option<Time> {
        self.deferred.values().map(|deferred| deferred.until).fold(None, earliest)
    }
}

impl Network {
    /// Updates the routes after these links were added or removed.
    pub(crate) fn route(&mut self, now: Time, changed: &BTreeSet<Link>) {
        let updates = self.unicast.routes.update(&self.adjacency, &self.tors, changed);
        let mut by_rack: BTreeMap<u32, Vec<RouteUpdate>> = BTreeMap::new();
        for update in updates {
            by_rack.entry(update.rack).or_default().push(update);
        }
        for (rack, updates) in by_rack {
            self.route_to(now, rack, &updates);
        }
    }

    fn route_to(&mut self, now: Time, rack: u32, updates: &[RouteUpdate]) {
        // While an update is deferred, the switches' routes follow neither the old nor the new
        // distances.
        let under_way = self.unicast.deferred.contains_key(&rack);
        let mut withheld = BTreeSet::new();
        for update in updates {
            let next_hops = update.loop_free.filter(|_| !under_way);
            self.intent.route(update.switch, rack, next_hops);
            if next_hops != update.next_hops {
                withheld.insert(update.switch);
            }
        }
        if withheld.is_empty() && !under_way {
            return;
        }
        let deferred = self.unicast.deferred.entry(rack).or_default();
        deferred.withheld.append(&mut withheld);
        deferred.until = Some(now + self.config.deferral_timeout);
        let waiter = AckWaiter::Rack(rack);
        for switch in updates.iter().map(|update| update.switch).chain(deferred.withheld.iter().copied()) {
            // A switch from which the rack cannot be reached has no route to it, so nothing waits
            // for that switch.
            if self.unicast.routes.distance(&self.adjacency, switch, rack).is_some() {
                self.acknowledgments.expect(waiter, switch);
                self.intent.touch(switch);
            } else {
                self.acknowledgments.excuse(waiter, switch);
            }
        }
    }

    /// Sends the deferred updates that need not wait any longer.
    pub(crate) fn send_deferred(&mut self, now: Time) {
        let over = |(rack, deferred): &(&u32, &DeferredUpdate)| {
            self.acknowledgments.is_acknowledged(AckWaiter::Rack(**rack))
                || deferred.until.is_some_and(|at| at <= now)
        };
        let over: Vec<u32> = self.unicast.deferred.iter().filter(over).map(|(rack, _)| *rack).collect();
        for rack in over {
            self.acknowledgments.forget(AckWaiter::Rack(rack));
            for switch in self.unicast.deferred.remove(&rack).unwrap_or_default().withheld {
                let next_hops = self.unicast.routes.next_hops(&self.adjacency, switch, rack);
                self.intent.route(switch, rack, next_hops);
            }
        }
    }
}
