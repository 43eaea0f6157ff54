//! A played agent: joins, announces its node by LLDP, and takes part in groups.

use crate::fabric::{Described, Fabric, ip, lock, mac};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    Acknowledged, AgentMessage, ControllerMessage, Description, Enlist, GroupReady, RanksLeft, Register,
    Secret, agent_message::Body, controller_message::Body as Told,
};
use cool_proto::delivery::{self, Delivery, Outgoing};
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

/// Messages that wait for the controller.
const OUTBOX: usize = 64;

/// The way to an agent's stream.
pub(crate) type Outbox = mpsc::Sender<AgentMessage>;

/// How a host is called.
pub(crate) fn name(host: usize) -> String {
    format!("h{}", host + 1)
}

/// Joins as the agent of a host; its stream then goes on as long as the outbox is there.
pub(crate) async fn join(
    fabric: Arc<Fabric>,
    channel: Channel,
    host: usize,
    tasks: &mut JoinSet<Result<(), String>>,
) -> Result<Outbox, String> {
    let (outbox, messages) = mpsc::channel(OUTBOX);
    let register = Register {
        version: cool_proto::VERSION,
        name: name(host),
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
    send(&outbox, Body::Register(register)).await;
    let mut client =
        ControllerClient::new(channel).max_decoding_message_size(cool_proto::CONTROL_MESSAGE_BYTES_MAX);
    let called = client.join(ReceiverStream::new(messages)).await;
    let mut inbound = called.map_err(|status| format!("{}: {}", name(host), status.message()))?.into_inner();
    let answers = outbox.clone();
    tasks.spawn(async move {
        let mut announcing = JoinSet::new();
        let mut delivery = Delivery::<()>::default();
        while let Some(message) = inbound.message().await.map_err(|status| status.message().to_owned())? {
            let bytes = delivery::bytes(&message);
            fabric.counts.told.fetch_add(bytes as u64, Ordering::Relaxed);
            if !matches!(message.body, Some(Told::Registered(_) | Told::Acknowledged(_))) {
                delivery.receive(bytes);
            }
            hear(&fabric, host, message, &answers, &mut announcing).await;
            if let Some(Outgoing::Received(received)) = delivery.take() {
                send(&answers, Body::Acknowledged(Acknowledged { received, last: false })).await;
            }
        }
        Err(format!("the controller ended the session of {}", name(host)))
    });
    Ok(outbox)
}

async fn hear(
    fabric: &Arc<Fabric>,
    host: usize,
    message: ControllerMessage,
    outbox: &Outbox,
    announcing: &mut JoinSet<()>,
) {
    let counts = &fabric.counts;
    match message.body {
        Some(Told::Registered(registered)) => {
            counts.joined.fetch_add(1, Ordering::Relaxed);
            let every = Duration::from_millis(registered.lldp_interval_ms.into());
            match <[u8; 32]>::try_from(registered.lldp_key) {
                Ok(key) => drop(announcing.spawn(announce(fabric.clone(), host, key.into(), every))),
                Err(_) => eprintln!("cool-load: {} got no key for LLDP", name(host)),
            }
        }
        Some(Told::Group(group)) => {
            send(outbox, Body::GroupReady(GroupReady { group: group.id, epoch: group.epoch })).await;
        }
        Some(Told::Description(bytes)) => match described(fabric, &bytes) {
            Ok((group, epoch)) => send(outbox, Body::GroupReady(GroupReady { group, epoch })).await,
            Err(reason) => eprintln!("cool-load: {}: {reason}", name(host)),
        },
        Some(Told::Enlisted(enlisted)) if enlisted.group == 0 => {
            eprintln!("cool-load: {}: no group {}: {}", name(host), enlisted.key, enlisted.reason);
            counts.failed.fetch_add(1, Ordering::Relaxed);
        }
        Some(Told::Enlisted(enlisted)) => {
            counts.enlisted.fetch_add(1, Ordering::Relaxed);
            if enlisted.key.starts_with("brief") {
                send(
                    outbox,
                    Body::Left(RanksLeft { group: enlisted.group, ranks: Vec::new(), unused: true }),
                )
                .await;
            }
        }
        _ => {}
    }
    fabric.counted.notify_waiters();
}

/// Which group is described, and its epoch. All its agents are told the same bytes: they are read once, since what thousands of
/// machines do beside each other would take this one the time that the controller needs.
fn described(fabric: &Fabric, bytes: &[u8]) -> Result<(u64, u32), String> {
    let mut last = lock(&fabric.described);
    if let Some(Described { group, epoch, .. }) = last.as_ref().filter(|last| last.bytes == bytes) {
        return Ok((*group, *epoch));
    }
    match Description::decode(bytes) {
        Ok(Description { group: Some(group), .. }) => {
            *last = Some(Described { bytes: bytes.to_vec(), group: group.id, epoch: group.epoch });
            Ok((group.id, group.epoch))
        }
        Ok(_) => Err("a description without a group".to_owned()),
        Err(error) => Err(format!("a description that cannot be read: {error}")),
    }
}

async fn announce(fabric: Arc<Fabric>, host: usize, key: Key, every: Duration) {
    let announcement = Announcement::Node { name: name(host), mac: MacAddr::from(mac(host)) };
    let place = fabric.plan.hosts[host];
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 1.. {
        ticks.tick().await;
        match announcement.encode(MacAddr::from(mac(host)), &key, number) {
            Ok(frame) => fabric.arrive(place.switch, place.port, &frame),
            Err(error) => return eprintln!("cool-load: {}: {error}", name(host)),
        }
    }
}

/// A rank on this host wants to be in the group of this key.
pub(crate) async fn enlist(outbox: &Outbox, key: &str, rank: usize, size: usize) {
    let enlist =
        Enlist { key: key.to_owned(), rank: rank as u32, size: size as u32, timeout_ms: 120_000, ticket: 0 };
    send(outbox, Body::Enlist(enlist)).await;
}

async fn send(outbox: &Outbox, body: Body) {
    // An agent whose stream has ended says so by itself.
    let _ = outbox.send(AgentMessage { body: Some(body) }).await;
}
