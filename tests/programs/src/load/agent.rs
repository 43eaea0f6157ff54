//! A simulated agent: joins the controller, announces its node by LLDP, and takes part in groups.

use crate::fabric::{GroupDescription, SimulatedFabric, ip, lock, mac};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    Acknowledged, AgentMessage, ControllerMessage, Description, Enlist, GroupReady, RanksLeft, Register,
    Secret, agent_message::Body as AgentBody, controller_message::Body as ControllerBody,
};
use cool_proto::delivery::{self, Delivery, OutgoingItem};
use cool_proto::{features, job_ids};
use cool_topology::lldp::Announcement;
use cool_topology::{Key, MacAddr};
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// Most messages that wait to be sent to the controller.
const OUTBOX: usize = 64;

/// Queue of the messages that an agent sends to the controller.
pub(crate) type Outbox = mpsc::Sender<AgentMessage>;

/// Returns the name of a host.
pub(crate) fn host_name(host: usize) -> String {
    format!("h{}", host + 1)
}

/// Joins as the agent of a host, and returns its outbox. The session lasts until the outbox and the
/// task, which is added to `tasks`, are dropped.
///
/// # Errors
/// Returns an error if the controller rejects the agent.
pub(crate) async fn join(
    fabric: Arc<SimulatedFabric>,
    channel: Channel,
    host: usize,
    tasks: &mut JoinSet<Result<(), String>>,
) -> Result<Outbox, String> {
    let (outbox, messages) = mpsc::channel(OUTBOX);
    let register = Register {
        version: cool_proto::VERSION,
        name: host_name(host),
        ip: ip(host).to_string(),
        mac: MacAddr::from(mac(host)).to_string(),
        mtu: 9000,
        udp_port: 7420,
        tcp_port: 7420,
        slots: 64,
        probe_port: 7421,
        incarnation: job_ids::now(),
        features: features::ALL,
        key: Some(Secret { value: ip(host).octets().repeat(8) }),
        ..Register::default()
    };
    send(&outbox, AgentBody::Register(register)).await;
    let mut client =
        ControllerClient::new(channel).max_decoding_message_size(cool_proto::CONTROL_MESSAGE_BYTES_MAX);
    let called = client.join(ReceiverStream::new(messages)).await;
    let mut inbound =
        called.map_err(|status| format!("{}: {}", host_name(host), status.message()))?.into_inner();
    let replies = outbox.clone();
    tasks.spawn(async move {
        let mut announcing = JoinSet::new();
        let mut delivery = Delivery::<()>::default();
        while let Some(message) = inbound.message().await.map_err(|status| status.message().to_owned())? {
            let bytes = delivery::bytes(&message);
            fabric.counts.bytes_to_agents.fetch_add(bytes as u64, Ordering::Relaxed);
            if !matches!(message.body, Some(ControllerBody::Registered(_) | ControllerBody::Acknowledged(_)))
            {
                delivery.receive(bytes);
            }
            receive(&fabric, host, message, &replies, &mut announcing).await;
            if let Some(OutgoingItem::Received(received)) = delivery.take() {
                send(&replies, AgentBody::Acknowledged(Acknowledged { received, last: false })).await;
            }
        }
        Err(format!("the controller ended the session of {}", host_name(host)))
    });
    Ok(outbox)
}

/// Handles a message from the controller. Groups are accepted at once. If the key of a group begins
/// with `brief`, it must end again, so its ranks leave it as soon as it is ready.
async fn receive(
    fabric: &Arc<SimulatedFabric>,
    host: usize,
    message: ControllerMessage,
    outbox: &Outbox,
    announcing: &mut JoinSet<()>,
) {
    let counts = &fabric.counts;
    match message.body {
        Some(ControllerBody::Registered(registered)) => {
            counts.joined.fetch_add(1, Ordering::Relaxed);
            let every = Duration::from_millis(registered.lldp_interval_ms.into());
            match <[u8; 32]>::try_from(registered.lldp_key) {
                Ok(key) => drop(announcing.spawn(announce(fabric.clone(), host, key.into(), every))),
                Err(_) => {
                    eprintln!("cool-load: {} received an LLDP key of the wrong length", host_name(host))
                }
            }
        }
        Some(ControllerBody::Group(group)) => {
            send(outbox, AgentBody::GroupReady(GroupReady { group: group.id, epoch: group.epoch })).await;
        }
        Some(ControllerBody::Description(bytes)) => match decode_description(fabric, &bytes) {
            Ok((group, epoch)) => send(outbox, AgentBody::GroupReady(GroupReady { group, epoch })).await,
            Err(reason) => eprintln!("cool-load: {}: {reason}", host_name(host)),
        },
        Some(ControllerBody::Enlisted(enlisted)) if enlisted.group == 0 => {
            eprintln!(
                "cool-load: {}: group {} was refused: {}",
                host_name(host),
                enlisted.key,
                enlisted.reason
            );
            counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        Some(ControllerBody::Enlisted(enlisted)) => {
            counts.enlisted.fetch_add(1, Ordering::Relaxed);
            if enlisted.key.starts_with("brief") {
                send(
                    outbox,
                    AgentBody::Left(RanksLeft { group: enlisted.group, ranks: Vec::new(), unused: true }),
                )
                .await;
            }
        }
        _ => {}
    }
    fabric.count_changed.notify_waiters();
}

/// Returns the group in a description, and its epoch.
///
/// The agents of a group receive the same bytes, which are decoded once: thousands of machines
/// would decode them in parallel, but here each decoding takes CPU time from the controller.
fn decode_description(fabric: &SimulatedFabric, bytes: &[u8]) -> Result<(u64, u32), String> {
    let mut last = lock(&fabric.last_description);
    if let Some(GroupDescription { group, epoch, .. }) = last.as_ref().filter(|last| last.bytes == bytes) {
        return Ok((*group, *epoch));
    }
    match Description::decode(bytes) {
        Ok(Description { group: Some(group), .. }) => {
            *last = Some(GroupDescription { bytes: bytes.to_vec(), group: group.id, epoch: group.epoch });
            Ok((group.id, group.epoch))
        }
        Ok(_) => Err("a description contains no group".to_owned()),
        Err(error) => Err(format!("a description cannot be decoded: {error}")),
    }
}

/// Sends an LLDP announcement of the node at this interval.
async fn announce(fabric: Arc<SimulatedFabric>, host: usize, key: Key, every: Duration) {
    let announcement = Announcement::Node { name: host_name(host), mac: MacAddr::from(mac(host)) };
    let place = fabric.plan.hosts[host];
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 1.. {
        ticks.tick().await;
        match announcement.encode(MacAddr::from(mac(host)), &key, number) {
            Ok(frame) => fabric.receive_frame(place.switch, place.port, &frame),
            Err(error) => return eprintln!("cool-load: {}: {error}", host_name(host)),
        }
    }
}

/// Requests, for a rank on this host, membership in the group of this key.
pub(crate) async fn enlist(outbox: &Outbox, key: &str, rank: usize, size: usize) {
    let enlist =
        Enlist { key: key.to_owned(), rank: rank as u32, size: size as u32, timeout_ms: 120_000, ticket: 0 };
    send(outbox, AgentBody::Enlist(enlist)).await;
}

async fn send(outbox: &Outbox, body: AgentBody) {
    // The task of the agent reports the end of its stream.
    let _ = outbox.send(AgentMessage { body: Some(body) }).await;
}
