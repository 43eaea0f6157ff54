//! LLDP frames from any network interface: an accepted announcement must be encoded again, and
//! decode to the same.

use cool_topology::lldp::Announcement;
use cool_topology::{Key, MacAddr};

const SOURCE: MacAddr = MacAddr(2, 0, 0, 0, 0, 1);

fn key() -> Key {
    [5; 32].into()
}

pub(crate) fn check(bytes: &[u8]) {
    if let Ok(read) = Announcement::decode(bytes) {
        let frame = read.announcement.encode(SOURCE, &key(), read.number).expect("what was read can be made");
        let again = Announcement::decode(&frame).expect("what was made can be read");
        assert_eq!((&again.announcement, again.number), (&read.announcement, read.number));
        assert!(again.is_authentic(&key()));
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let announcements = [
        Announcement::Switch { switch: cool_topology::DatapathId(7), port: 3 },
        Announcement::Node { name: "h1".into(), mac: SOURCE },
        Announcement::Node { name: "a-host.with.a.long.name".into(), mac: MacAddr::broadcast() },
    ];
    announcements.map(|announcement| announcement.encode(SOURCE, &key(), 1).unwrap()).to_vec()
}

target!();
