//! The nodes on which no jobs start, by request of an operator.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The nodes that are drained. A later run of the controller continues with them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainState {
    /// Whether no jobs start at all.
    pub cluster: bool,
    /// Nodes on which no jobs start.
    pub nodes: BTreeSet<String>,
}

impl DrainState {
    /// Drains nodes, or the whole cluster if none is named; or ends that. The end for the cluster
    /// is also that for each node.
    pub fn apply(&mut self, nodes: &[String], end: bool) {
        match (nodes, end) {
            ([], true) => *self = DrainState::default(),
            ([], false) => self.cluster = true,
            (nodes, true) => self.nodes.retain(|node| !nodes.contains(node)),
            (nodes, false) => self.nodes.extend(nodes.iter().cloned()),
        }
    }

    /// Returns the state as text, for the next run.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the state in a text of an earlier run.
    ///
    /// # Errors
    /// Returns an error if it is no such text.
    pub fn from_text(text: &str) -> Result<DrainState, serde_json::Error> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_the_cluster_are_drained_independently() {
        let (mut state, h7) = (DrainState::default(), ["h7".to_owned()]);
        state.apply(&h7, false);
        assert_eq!(state, DrainState { cluster: false, nodes: h7.clone().into() });
        state.apply(&[], false);
        assert_eq!(DrainState::from_text(&state.to_text()).unwrap(), state);
        state.apply(&h7, true);
        assert_eq!(state, DrainState { cluster: true, nodes: BTreeSet::new() });
        state.apply(&h7, false);
        state.apply(&[], true);
        assert_eq!(state, DrainState::default());
        assert!(DrainState::from_text("x").is_err());
        assert_eq!(DrainState::from_text("{}").unwrap(), DrainState::default());
    }
}
