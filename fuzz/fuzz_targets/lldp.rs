//! LLDP frames, from any network interface: an announcement that is read can be made, and is read again.
#![cfg_attr(fuzzing, no_main)]

use cool_topology::Mac;
use cool_topology::lldp::Announcement;

const SOURCE: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn check(bytes: &[u8]) {
    if let Ok(announcement) = Announcement::decode(bytes) {
        let frame = announcement.encode(SOURCE).expect("what was read can be made");
        assert_eq!(Announcement::decode(&frame), Ok(announcement));
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let announcements = [
        Announcement::Switch { switch: cool_topology::DatapathId(7), port: 3 },
        Announcement::Node { name: "h1".into(), mac: SOURCE },
        Announcement::Node { name: "a-host.with.a.long.name".into(), mac: Mac([0xff; 6]) },
    ];
    announcements.map(|announcement| announcement.encode(SOURCE).unwrap()).to_vec()
}

cool_fuzz::target!();
