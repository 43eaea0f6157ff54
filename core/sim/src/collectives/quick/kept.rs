//! What a leader keeps for others in memory that its agent reads, as much as there is room for in its segment.

use cool_quick::{QuickMessage, RETRANSMIT_WINDOW, RetransmitBuffer};
use std::collections::VecDeque;

/// The latest calls of which the digest and the words are kept.
const CALLS: usize = 32;

#[derive(Debug, Default)]
pub(super) struct KeptByLeader {
    messages: VecDeque<QuickMessage>,
    /// By number, digest and words.
    calls: VecDeque<(u64, u64, String)>,
    /// Messages that its agent has sent again.
    pub(super) repaired: u64,
}

impl KeptByLeader {
    pub(super) fn enter(&mut self, number: u64, digest: u64, text: &str) {
        // Each has a place by its number, and takes it from the one before.
        self.calls.retain(|(before, ..)| before % CALLS as u64 != number % CALLS as u64);
        self.calls.push_back((number, digest, text.to_owned()));
    }

    pub(super) fn keep(&mut self, message: QuickMessage) {
        self.messages.push_back(message);
        if self.messages.len() > RETRANSMIT_WINDOW as usize {
            self.messages.pop_front();
        }
    }

    fn call(&self, number: u64) -> Option<&(u64, u64, String)> {
        self.calls.iter().find(|(call, ..)| *call == number)
    }
}

impl RetransmitBuffer for KeptByLeader {
    fn message(&self, name: (u64, u32)) -> Option<Vec<u8>> {
        self.messages.iter().find(|message| message.name == name).map(|message| message.bytes.clone())
    }

    fn digest(&self, call: u64) -> Option<u64> {
        self.call(call).map(|(_, digest, _)| *digest)
    }

    fn text(&self, call: u64) -> Option<String> {
        self.call(call).map(|(.., text)| text.clone())
    }
}
