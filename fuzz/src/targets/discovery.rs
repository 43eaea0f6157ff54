//! LLDP frames from hosts, received by a running discovery: without the key, no frame may create a
//! link or locate a node, and the reports to the operator must stay bounded.

use cool_machine::{Duration, Machine, Poll, Time};
use cool_topology::discovery::{Input, Output};
use cool_topology::{DatapathId, Discovery, Key, MacAddr, Port};

const PORTS: u32 = 3;
const INTERVAL: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(3);

fn key(of: u8) -> Key {
    [of; 32].into()
}

/// Returns a network of two switches and a registered node, before any frame.
fn network() -> Discovery {
    let mut discovery = Discovery::new(INTERVAL, GRACE, key(1));
    let ports: Vec<(u32, MacAddr)> =
        (1..=PORTS).map(|number| (number, MacAddr(2, 0, 0, 0, 0, number as u8))).collect();
    for switch in [DatapathId(1), DatapathId(2)] {
        discovery.handle(Time::ZERO, Input::SwitchUp { switch, ports: &ports });
    }
    discovery.handle(Time::ZERO, Input::NodeRegistered("h1", MacAddr(2, 0, 0, 0, 0, 1), &key(2)));
    discovery
}

/// For each frame, one byte determines its port and one its length.
pub(crate) fn check(bytes: &[u8]) {
    let (mut discovery, mut now, mut rest) = (network(), Time::ZERO, bytes);
    while let Some((&[place, length], frames)) = rest.split_first_chunk() {
        let (frame, left) = frames.split_at(frames.len().min(length.into()));
        rest = left;
        let port = Port {
            switch: DatapathId(u64::from(place & 1) + 1),
            number: u32::from(place >> 1) % (PORTS + 2),
        };
        discovery.handle(now, Input::Received(port, frame));
        if place & 0x80 != 0 {
            now += INTERVAL;
        }
        while let Poll::Output(output) = discovery.poll(now) {
            assert!(!matches!(output, Output::LinkUp(_) | Output::NodeLocated(..)), "{output:?}");
        }
        assert!(discovery.warnings().count() <= 2 * PORTS as usize);
    }
    assert_eq!((discovery.graph().links().count(), discovery.graph().hosts().count()), (0, 0));
}

/// Returns frames with other keys, separately and in sequence.
#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_topology::lldp::Announcement;
    let announcements = [
        Announcement::Switch { switch: DatapathId(2), port: 3 },
        Announcement::Node { name: "h1".into(), mac: MacAddr(2, 0, 0, 0, 0, 1) },
        Announcement::Node { name: "nobody".into(), mac: MacAddr(2, 0, 0, 0, 0, 9) },
    ];
    let frames = announcements.map(|said| {
        let frame = said.encode(MacAddr(2, 0, 0, 0, 0, 1), &key(3), 1).unwrap();
        [&[2, frame.len() as u8][..], &frame].concat()
    });
    let all = frames.concat();
    frames.into_iter().chain([all]).collect()
}

target!();
