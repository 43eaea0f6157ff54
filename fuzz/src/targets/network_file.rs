//! Networks for simulations, as files and as text from any source: an accepted network must have
//! ranks, each on a host.

use cool_sim::schedule::{FabricModel, Placement};

/// Only small networks are built, because the time grows with the number of ranks.
const SMALL: usize = 1 << 12;

pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(refused) = FabricModel::from_json("net.json", text, 1000, 500) {
        assert!(refused.to_string().contains("net.json"), "{refused}");
    }
    for network in [FabricModel::from_json("net.json", text, 1000, 500), text.parse()].into_iter().flatten() {
        assert!(network.ranks() > 0);
        if text.len() <= SMALL && network.ranks() <= SMALL {
            let layout = network.layout(Placement::Packed).expect("what was taken has places for its ranks");
            assert_eq!(layout.size(), network.ranks());
        }
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let file = r#"{"switches": [{"datapath_id": 1, "rack": 0}, {"datapath_id": 2}], "links": [{"a": 1, "b": 2}],
        "nodes": [{"name": "h1", "datapath_id": 1, "slots": 2}, {"name": "h2", "datapath_id": 1}]}"#;
    let texts = ["tree:4x4", "tree:3+5+2", "leafspine:2x2x2x4", "fattree:4", file];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

target!();
