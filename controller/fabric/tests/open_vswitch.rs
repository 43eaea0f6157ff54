//! The fabric against Open vSwitch: discovery over patch cables, and forwarding as Open vSwitch
//! itself traces it. The test needs root and a running Open vSwitch, and fails without them.

use cool_daemon::listen::ClientListener;
use cool_fabric::{
    DatapathId, Fabric, FabricConfig, FabricError, FabricHandle, GroupRequest, Key, MacAddr,
    NodeRegistration, TopologySnapshot, TreeGrant, TreeScope,
};
use cool_topology::lldp::Announcement;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{interval, timeout};

/// Maximum time until the network reaches an expected state.
const PATIENCE: Duration = Duration::from_secs(30);
const FOREIGN: &str = "cookie=0x7,priority=77,udp,tp_dst=9";

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A root and two racks of two hosts, on Open vSwitch's userspace datapath. Dropping it removes the
/// bridges.
struct Bridges {
    prefix: String,
}

/// Host number `n` (from 1): its switch, its port and its addresses.
struct Host {
    name: String,
    switch: usize,
    port: u32,
    ip: Ipv4Addr,
    mac: MacAddr,
}

fn key(n: usize) -> Key {
    [n as u8; 32].into()
}

fn host(n: usize) -> Host {
    Host {
        name: format!("h{n}"),
        switch: (n - 1) / 2 + 1,
        port: 11 + (n as u32 - 1) % 2,
        ip: Ipv4Addr::new(10, 9, 0, n as u8),
        mac: MacAddr(2, 0, 0, 9, 0, n as u8),
    }
}

impl Bridges {
    fn build(tag: &str) -> Bridges {
        let bridges = Bridges { prefix: format!("fab{tag}{:x}", std::process::id() & 0xffff) };
        for switch in 0..3 {
            let name = bridges.name(switch);
            let id = format!("other-config:datapath-id={:016x}", bridges.id(switch).0);
            run(
                "ovs-vsctl",
                &[
                    "--may-exist",
                    "add-br",
                    &name,
                    "--",
                    "set",
                    "bridge",
                    &name,
                    "datapath_type=netdev",
                    "protocols=OpenFlow13",
                    "fail-mode=secure",
                    &id,
                ],
            );
        }
        for rack in 1..=2 {
            bridges.patch(0, rack as u32, rack, 1);
            bridges.patch(rack, 1, 0, rack as u32);
        }
        for n in 1..=4 {
            let Host { switch, port, .. } = host(n);
            let interface = format!("{}h{n}", bridges.prefix);
            let number = format!("ofport_request={port}");
            run(
                "ovs-vsctl",
                &[
                    "add-port",
                    &bridges.name(switch),
                    &interface,
                    "--",
                    "set",
                    "interface",
                    &interface,
                    "type=internal",
                    &number,
                ],
            );
            run("ip", &["link", "set", &interface, "up"]);
        }
        bridges
    }

    fn name(&self, switch: usize) -> String {
        format!("{}s{switch}", self.prefix)
    }

    fn id(&self, switch: usize) -> DatapathId {
        DatapathId(0xfab0 + switch as u64)
    }

    fn patch(&self, switch: usize, port: u32, peer: usize, peer_port: u32) {
        let name = |switch, port| format!("{}p{switch}{port}", self.prefix);
        let (own, other) =
            (name(switch, port), format!("options:peer={}", name(peer, peer_port as usize as u32)));
        run(
            "ovs-vsctl",
            &[
                "add-port",
                &self.name(switch),
                &own,
                "--",
                "set",
                "interface",
                &own,
                "type=patch",
                &other,
                &format!("ofport_request={port}"),
            ],
        );
    }

    fn connect(&self, port: u16) {
        for switch in 0..3 {
            run("ovs-vsctl", &["set-controller", &self.name(switch), &format!("tcp:127.0.0.1:{port}")]);
            let backoff = ["max_backoff=1000", "inactivity_probe=5000"];
            run("ovs-vsctl", &["set", "controller", &self.name(switch), backoff[0], backoff[1]]);
        }
    }

    /// Injects a frame at a host's port.
    fn receive(&self, host: &Host, frame: &[u8]) {
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let packet = format!("in_port={},packet={hex},actions=table", host.port);
        run("ovs-ofctl", &["-O", "OpenFlow13", "packet-out", &self.name(host.switch), &packet]);
    }

    /// Returns the hosts that receive a packet from `host` according to Open vSwitch, and the
    /// datapath actions.
    fn trace(&self, host: &Host, packet: &str) -> (BTreeSet<String>, String) {
        let shown = run("ovs-appctl", &["dpif/show"]);
        let numbers: BTreeMap<&str, &str> = shown
            .lines()
            .filter_map(|line| {
                let (name, rest) = line.trim().split_once(' ')?;
                Some((rest.split_once('/')?.1.split(':').next()?, name.strip_prefix(&self.prefix)?))
            })
            .collect();
        let flow = format!("in_port={},{packet}", host.port);
        let traced = run("ovs-appctl", &["ofproto/trace", &self.name(host.switch), &flow]);
        let actions = traced.lines().find_map(|line| line.strip_prefix("Datapath actions: ")).unwrap_or("");
        let outputs = actions.split(',').filter_map(|part| numbers.get(part)).map(|name| (*name).to_owned());
        (outputs.collect(), actions.to_owned())
    }

    fn flows(&self, switch: usize) -> BTreeSet<String> {
        let dumped = run("ovs-ofctl", &["-O", "OpenFlow13", "--no-stats", "dump-flows", &self.name(switch)]);
        dumped.lines().map(|line| line.trim().to_owned()).collect()
    }
}

impl Drop for Bridges {
    fn drop(&mut self) {
        for switch in 0..3 {
            // Some bridges may not exist, because the test may have failed halfway.
            let deleted =
                Command::new("ovs-vsctl").args(["--if-exists", "del-br", &self.name(switch)]).status();
            if let Err(error) = deleted {
                eprintln!("cannot delete bridge {}: {error}", self.name(switch));
            }
        }
    }
}

async fn until(fabric: &FabricHandle, what: &str, mut holds: impl FnMut(&TopologySnapshot) -> bool) {
    let mut watch = fabric.watch();
    let found = timeout(PATIENCE, watch.wait_for(|snapshot| holds(snapshot))).await;
    assert!(found.is_ok(), "{what}: {:#?}", fabric.topology());
}

async fn start(listener: TcpListener) -> FabricHandle {
    let config = FabricConfig {
        host_bytes_per_second: Some(5_000_000),
        uplink_bytes_per_second: Some(2_000_000),
        lldp_interval: Duration::from_secs(1),
        ..FabricConfig::default()
    };
    let fabric = FabricHandle::start(config, [77; 32].into(), ClientListener::plaintext(listener));
    for n in 1..=4 {
        let Host { name, ip, mac, .. } = host(n);
        fabric
            .register(NodeRegistration {
                name,
                ip: ip.into(),
                mac,
                lldp_key: key(n),
                rack: None,
                neighbor: None,
            })
            .await
            .unwrap();
    }
    fabric
}

fn grant(grants: &[TreeGrant], scope: TreeScope) -> &TreeGrant {
    grants.iter().find(|g| g.scope == scope).unwrap_or_else(|| panic!("no {scope:?} in {grants:?}"))
}

fn names(hosts: &[&str]) -> BTreeSet<String> {
    hosts.iter().map(|h| (*h).to_owned()).collect()
}

async fn discovered(fabric: &FabricHandle, bridges: &Bridges) {
    until(fabric, "discovery", |t| {
        t.switches.len() == 3 && t.links.len() == 2 && t.nodes.iter().all(|n| n.location.is_some())
    })
    .await;
    let topology = fabric.topology();
    for n in 1..=4 {
        let location = topology.node(&format!("h{n}")).and_then(|node| node.location).unwrap();
        let port = location.port.unwrap();
        assert_eq!((port.switch, port.number), (bridges.id(host(n).switch), host(n).port));
        assert_eq!(location.bytes_per_second, 5_000_000);
    }
    let named: Vec<&str> = topology.switches.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(named, [0, 1, 2].map(|s| bridges.name(s)));
    assert_eq!(topology.switches[0].rack, None);
}

/// Checks that packets arrive where they should, according to Open vSwitch.
fn check_forwarding(bridges: &Bridges, fabric: &FabricHandle, grants: &[TreeGrant]) {
    let rack =
        |n: usize| fabric.topology().node(&format!("h{n}")).and_then(|node| node.location).unwrap().rack;
    let udp = |from: usize, to: &str| format!("udp,nw_src={},nw_dst={to}", host(from).ip);
    for n in 2..=4 {
        let locator = format!("02:c0:00:{:02x}:00:{:02x}", rack(n), host(n).port);
        let (out, actions) = bridges.trace(&host(1), &format!("{},dl_dst={locator}", udp(1, "10.9.0.9")));
        assert_eq!(out, names(&[&format!("h{n}")]), "{actions}");
        assert!(actions.contains(&host(n).mac.to_string()), "{actions}");
    }
    let all = grant(grants, TreeScope::All);
    assert_eq!((all.bytes_per_second, all.links.len(), all.nodes.len()), (2_000_000, 2, 4));
    for (from, scope, to) in [
        (1, TreeScope::All, &["h2", "h3", "h4"][..]),
        (4, TreeScope::All, &["h1", "h2", "h3"]),
        (2, TreeScope::Leaders, &["h3"]),
        (1, TreeScope::Leaders, &[]),
        (1, TreeScope::Rack(rack(1)), &["h2"]),
        (3, TreeScope::Rack(rack(3)), &["h4"]),
        (3, TreeScope::Rack(rack(1)), &[]),
    ] {
        let address = grant(grants, scope).address.to_string();
        let (out, actions) = bridges.trace(&host(from), &udp(from, &address));
        assert_eq!(out, names(to), "from h{from} to {scope:?}: {actions}");
    }
    // Packets of a member with another source address, to an unknown address, and broadcasts are
    // dropped.
    let (out, _) = bridges.trace(&host(1), &udp(2, &all.address.to_string()));
    assert_eq!(out, names(&[]));
    for nowhere in ["dl_dst=02:00:00:09:00:02", "dl_dst=ff:ff:ff:ff:ff:ff"] {
        let (out, _) = bridges.trace(&host(1), &format!("{},{nowhere}", udp(1, "10.9.0.2")));
        assert_eq!(out, names(&[]), "{nowhere}");
    }
}

/// Returns the request for a group of these nodes, in the order of its ranks.
fn request(id: u64, members: &[&str]) -> GroupRequest {
    let members = members.iter().map(|node| (*node).to_owned()).collect();
    GroupRequest { id, members, can_prove: false, can_join_sources: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_vswitch_forwards_as_wanted_also_after_a_restart() {
    let bridges = std::sync::Arc::new(Bridges::build("a"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // Nodes may register before or after switches connect.
    let fabric = start(listener).await;
    let early = fabric.create_group(request(1, &["h1", "h2"])).await;
    assert!(matches!(&early, Err(FabricError::NotLocated { nodes }) if *nodes == ["h1", "h2"]), "{early:?}");
    bridges.connect(address.port());
    let speaking = bridges.clone();
    let agents = tokio::spawn(async move {
        let mut every = interval(Duration::from_secs(1));
        for number in 1.. {
            every.tick().await;
            let bridges = speaking.clone();
            let spoken = tokio::task::spawn_blocking(move || {
                for n in 1..=4 {
                    let Host { name, mac, .. } = host(n);
                    let frame = Announcement::Node { name, mac }.encode(mac, &key(n), number).unwrap();
                    bridges.receive(&host(n), &frame);
                }
            });
            spoken.await.unwrap();
        }
    });
    discovered(&fabric, &bridges).await;
    run("ovs-ofctl", &["-O", "OpenFlow13", "add-flow", &bridges.name(1), &format!("{FOREIGN},actions=drop")]);

    // Ranks 0 to 4, two of them on h2, so h2 leads its rack.
    let members = ["h2", "h3", "h2", "h1", "h4"];
    let grants = fabric.create_group(request(5, &members)).await.unwrap();
    assert_eq!(grants.len(), 4);
    check_forwarding(&bridges, &fabric, &grants);
    assert_eq!(fabric.create_group(request(5, &members)).await, Err(FabricError::GroupExists { id: 5 }));

    // A cable is pulled: the tree splits in two, and is repaired later.
    run("ovs-vsctl", &["del-port", &format!("{}p02", bridges.prefix)]);
    until(&fabric, "a lost link", |t| t.links.len() == 1).await;
    bridges.patch(0, 2, 2, 1);
    until(&fabric, "a new link", |t| t.links.len() == 2).await;
    let again = timeout(PATIENCE, async {
        let mut every = interval(Duration::from_millis(100));
        loop {
            every.tick().await;
            let (out, _) =
                bridges.trace(&host(1), &format!("udp,nw_src={},nw_dst={}", host(1).ip, grants[0].address));
            if out.len() == 3 {
                break;
            }
        }
    });
    again.await.expect("the tree heals");

    // The next controller must keep the racks' numbers, and thereby the PMACs of nodes.
    let racks: Vec<_> = fabric.topology().switches.iter().map(|s| s.rack).collect();
    let unicast = |flow: &&String| flow.contains("dl_dst=02:c0:");
    let before: BTreeSet<String> = bridges.flows(1).iter().filter(unicast).cloned().collect();
    assert_eq!(before.len(), 3);
    drop(fabric);
    let listener = timeout(PATIENCE, async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    let fabric = start(listener.await.expect("the listener is given up")).await;
    discovered(&fabric, &bridges).await;
    assert_eq!(fabric.topology().switches.iter().map(|s| s.rack).collect::<Vec<_>>(), racks);
    let grants = fabric.create_group(request(6, &members)).await.unwrap();
    check_forwarding(&bridges, &fabric, &grants);
    assert!(before.is_subset(&bridges.flows(1)), "{before:?} {:?}", bridges.flows(1));

    fabric.release_group(6).await.unwrap();
    assert_eq!(fabric.release_group(6).await, Err(FabricError::NoSuchGroup { id: 6 }));
    assert!(bridges.flows(1).iter().any(|flow| flow.contains("tp_dst=9")), "another's flow was touched");

    // A second cable next to the first: whichever is pulled, the switch uses the other without the
    // controller.
    bridges.patch(0, 3, 1, 2);
    bridges.patch(1, 2, 0, 3);
    until(&fabric, "a second cable", |t| t.links.len() == 3).await;
    let rack = fabric.topology().node("h3").and_then(|node| node.location).unwrap().rack;
    let protected = timeout(PATIENCE, async {
        let mut every = interval(Duration::from_millis(100));
        let dump = |what| run("ovs-ofctl", &["-O", "OpenFlow13", what, &bridges.name(1)]);
        // The group must exist before the flow that uses it.
        let leads = |flow: &str| flow.contains(&format!("02:c0:00:{rack:02x}")) && flow.contains("group:");
        while !(dump("dump-groups").contains("type=ff") && dump("dump-flows").lines().any(leads)) {
            every.tick().await;
        }
    });
    protected.await.expect("a group for fast failover");
    agents.abort();
    drop(fabric);
    for port in [1, 2] {
        run("ovs-vsctl", &["del-port", &format!("{}p1{port}", bridges.prefix)]);
        let to_h3 = format!("udp,nw_src={},dl_dst=02:c0:00:{rack:02x}:00:{:02x}", host(1).ip, host(3).port);
        let (out, actions) = bridges.trace(&host(1), &to_h3);
        assert_eq!(out, names(&["h3"]), "without port {port}: {actions}");
        bridges.patch(1, port, 0, if port == 1 { 1 } else { 3 });
    }
}
