//! Executes the controller's commands: groups, processes of ranks, measurements, examinations, and
//! traces.

use super::{ConnectionEnd, ControlSession, SHORTEST_PAUSE, group_spec};
use crate::interface::Interface;
use crate::{diagnostics, lldp, probe, traces};
use cool_daemon::service_notify;
use cool_proto::control::{
    AppointQuerier, Examine, GroupFailed, GroupReady, Held, HeldGroups, HoldOutput, Kill, Probe, Probed,
    Registered, ReleaseGroup, SignalRequest, StopProbe, agent_message, controller_message::Body,
};
use cool_proto::description::WireGroup;
use cool_proto::features::{HELD_GROUPS, NEIGHBORS, REPEATED_PROOFS};
use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::{info, warn};

/// Maximum number of examinations at the same time.
const MAX_EXAMINATIONS: usize = 4;

/// Minimum period of announcements, whatever the controller requests.
const SHORTEST_LLDP_PERIOD: Duration = Duration::from_millis(100);

impl ControlSession<'_> {
    pub(super) async fn execute(&mut self, body: Body) -> Result<(), ConnectionEnd> {
        match body {
            Body::Registered(_) | Body::Acknowledged(_) => {
                warn!("the controller registered this agent twice; ignored")
            }
            Body::Group(group) => {
                let held = Held { group: Some(group.clone()), ..Held::default() };
                return self.make_group(WireGroup::Whole(group), held).await;
            }
            Body::Description(description) => {
                let mut held = Held { description, ..Held::default() };
                match WireGroup::from_held(&mut held) {
                    Ok(Some(description)) => return self.make_group(description, held).await,
                    // The group is unknown, so no response is possible. The controller has a
                    // timeout.
                    Ok(None) => warn!("the controller described no group"),
                    Err(why) => warn!("{why}"),
                }
            }
            Body::ProveTrees(request) => {
                let agent = self.agent.clone();
                tokio::spawn(async move { agent.report_tree_proof(request).await });
            }
            Body::TreesProven(proven) => {
                let group = proven.group;
                let withdrawn: BTreeSet<IpAddr> =
                    proven.withdrawn.iter().filter_map(|tree| tree.parse().ok()).collect();
                match self.inventory.proven(proven) {
                    true if withdrawn.is_empty() => info!(group, "the group uses its trees again"),
                    true => warn!(
                        group,
                        ?withdrawn,
                        "the group does not use trees from which some node receives nothing"
                    ),
                    false => {}
                }
                self.agent.conclude_tree_proof(group, withdrawn);
            }
            Body::Release(ReleaseGroup { group }) => {
                info!(group, "group released");
                self.inventory.released(group);
                self.agent.release_group(group);
            }
            Body::Launch(launch) => {
                self.inventory.started(&launch);
                self.launcher.launch(launch);
            }
            Body::Kill(Kill { job }) => self.launcher.kill(job),
            Body::Hold(HoldOutput { job, held }) => self.launcher.hold(job, held),
            Body::Signal(SignalRequest { job, signal }) => self.launcher.signal(job, signal),
            Body::Trace(request) => {
                for piece in traces::answer(self.agent, &request).await {
                    self.reply(agent_message::Body::Traced(piece)).await?;
                }
            }
            Body::Enlisted(enlisted) => self.agent.enlisted(enlisted),
            Body::Recovered(recovered) => self.agent.recovered(&recovered),
            Body::Probe(probe) => {
                self.probe = JoinSet::new();
                self.probe.spawn(probed(self.registration.interface.clone(), probe));
            }
            Body::AppointQuerier(AppointQuerier { appointed }) => self.querier.appoint(appointed),
            Body::FloodingTask(task) => self.flooding_role.take(&self.registration.interface, task),
            Body::StopProbe(StopProbe {}) => self.probe = JoinSet::new(),
            Body::Examine(Examine { id }) => {
                // Requests beyond the maximum are ignored.
                if self.examinations.len() < MAX_EXAMINATIONS {
                    self.examinations.spawn(diagnostics::examined(
                        id,
                        self.registration.interface.clone(),
                        self.agent.datagram_faults(),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Makes a group from the controller's description, records it as `held`, and responds to the
    /// controller.
    async fn make_group(&mut self, description: WireGroup, held: Held) -> Result<(), ConnectionEnd> {
        let (group, job) = description.numbers();
        self.inventory.made((group, job), held);
        let spec = description.group().map_err(|error| error.to_string()).and_then(group_spec::convert);
        let made = match spec {
            Ok(spec) => {
                let epoch = spec.epoch;
                self.agent.make_group(spec).await.map(|()| epoch).map_err(|error| error.to_string())
            }
            Err(reason) => Err(reason),
        };
        let answer = match made {
            Ok(epoch) => {
                info!(group, epoch, "group made");
                agent_message::Body::GroupReady(GroupReady { group, epoch })
            }
            Err(reason) => {
                self.inventory.released(group);
                warn!(group, "cannot make group: {reason}");
                agent_message::Body::GroupFailed(GroupFailed { group, reason })
            }
        };
        self.reply(answer).await
    }

    /// Handles the acceptance of the agent: either the session continues, or another one begins.
    pub(super) fn registered(&mut self, registered: &Registered) -> Result<(), ConnectionEnd> {
        cool_proto::check_version(registered.version)
            .map_err(|why| ConnectionEnd::Refused(format!("the controller {why}")))?;
        let (controller, node) = (registered.controller, registered.node);
        if self.latest.is_some_and(|latest| controller < latest) {
            return Err(ConnectionEnd::Broken(
                "a controller that started later has been here; end one of the two, or restart this agent if only the clock was set back"
                    .into(),
            ));
        }
        let further = std::mem::take(&mut self.further);
        self.has_neighbor_reports = registered.features & NEIGHBORS != 0;
        self.has_repeated_proofs = registered.features & REPEATED_PROOFS != 0;
        match registered.resumed {
            Some(received) => {
                self.outbox.resume(received)?;
                self.launcher.resume_holds();
                info!(node, "back at the controller at {}", self.registration.controller);
            }
            None => {
                self.announce(registered)?;
                self.begin_anew();
                self.session = Some((controller, node));
                self.neighbor_reported = self.neighbor_offered.take();
                self.querier.begin_session(registered.features);
                self.inventory.joined(controller);
                self.send_remaining_inventory(further, registered.features);
                self.agent.requests().into_iter().for_each(|request| self.outbox.send(request));
                info!(node, "joined the controller at {}", self.registration.controller);
                service_notify::status("joined the controller");
            }
        }
        (self.latest, self.pause) = (Some(controller), SHORTEST_PAUSE);
        let lost = self.backlog.take_lost();
        if lost > 0 {
            warn!("{lost} lines of output were lost while the controller was disconnected");
        }
        Ok(())
    }

    /// Sends the rest of the inventory, before all later events.
    fn send_remaining_inventory(&self, further: VecDeque<Vec<Held>>, features: u64) {
        if features & HELD_GROUPS == 0 && !further.is_empty() {
            let groups: usize = further.iter().map(Vec::len).sum();
            warn!(
                "the controller accepts only one message of this node's inventory: it does not take over {groups} groups"
            );
            return;
        }
        further.into_iter().for_each(|held| self.outbox.send(agent_message::Body::Held(HeldGroups { held })));
    }

    /// Starts to announce the node by LLDP with the key of the session that begins.
    fn announce(&mut self, registered: &Registered) -> Result<(), ConnectionEnd> {
        let key: [u8; 32] = registered.lldp_key.as_slice().try_into().map_err(|_| {
            ConnectionEnd::Refused(format!(
                "its key for LLDP has {} bytes instead of 32",
                registered.lldp_key.len()
            ))
        })?;
        let period = Duration::from_millis(registered.lldp_interval_ms.into()).max(SHORTEST_LLDP_PERIOD);
        // This ends the previous announcer.
        self.announcer = JoinSet::new();
        self.announcer.spawn(lldp::announce(
            self.agent.node().to_owned(),
            self.registration.interface.clone(),
            key.into(),
            period,
            self.silent.subscribe(),
        ));
        Ok(())
    }
}

/// Makes the measurement that the controller requests. A failure is part of the result.
async fn probed(interface: Interface, Probe { id, ip, port }: Probe) -> Probed {
    let (address, port) = (ip.parse::<IpAddr>(), u16::try_from(port));
    let found = match (address, port) {
        (Ok(ip), Ok(port)) => {
            let to = SocketAddr::new(ip, port);
            probe::measure(interface.ip, to, interface.mtu).await.map_err(|e| e.to_string())
        }
        _ => Err(format!("{ip} port {port:?} is not an address")),
    };
    match found {
        Ok(found) => Probed {
            id,
            latency_ns: u64::try_from(found.latency.as_nanos()).unwrap_or(u64::MAX),
            bytes_per_second: found.bytes_per_second,
            burst: found.burst,
            failure: String::new(),
        },
        Err(failure) => Probed { id, failure, ..Probed::default() },
    }
}
