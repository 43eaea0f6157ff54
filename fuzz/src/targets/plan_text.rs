//! Plans as text, which any program of a node can send through its agent: an accepted plan must
//! print as text that parses to the same plan.

use cool_collective::Plan;

pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text.parse::<Plan>() {
        Ok(plan) => assert_eq!(plan.to_string().parse(), Ok(plan)),
        Err(refused) => assert!(!refused.to_string().is_empty()),
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let composed = [
        "node:parallel,rack:4-nomial,center:recursive-halving,leaders:sharded",
        "rack:binomial+parallel,center:ring,spread:once/65536",
        "racked:recursive-halving+binomial",
    ];
    Plan::names().chain(composed).map(|text| text.as_bytes().to_vec()).collect()
}

target!();
