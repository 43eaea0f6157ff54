//! The messages that a leader retains in memory that its agent reads, as many as fit into its
//! segment.

use cool_quick::{
    LONG_MESSAGES_BYTES_MAX, MESSAGE_BYTES_MAX, QuickMessage, RETRANSMIT_WINDOW, RetransmitBuffer,
};
use std::collections::VecDeque;

/// Number of recent calls of which digest and description are retained.
const CALLS: usize = 32;

#[derive(Debug, Default)]
pub(super) struct RetainedByLeader {
    messages: VecDeque<QuickMessage>,
    /// Number, digest and description of each call.
    calls: VecDeque<(u64, u64, String)>,
    /// Number of messages that the agent has retransmitted.
    pub(super) repaired: u64,
}

impl RetainedByLeader {
    pub(super) fn enter(&mut self, number: u64, digest: u64, text: &str) {
        // Each call has a place given by its number, and replaces the previous one there.
        self.calls.retain(|(before, ..)| before % CALLS as u64 != number % CALLS as u64);
        self.calls.push_back((number, digest, text.to_owned()));
    }

    pub(super) fn keep(&mut self, message: QuickMessage) {
        self.messages.push_back(message);
        if self.messages.len() > RETRANSMIT_WINDOW as usize {
            self.messages.pop_front();
        }
        // Long messages share a smaller buffer.
        let long = |message: &&QuickMessage| message.payload_len() as u64 > MESSAGE_BYTES_MAX;
        let bytes = |messages: &VecDeque<QuickMessage>| -> usize {
            messages.iter().filter(long).map(QuickMessage::payload_len).sum()
        };
        while bytes(&self.messages) as u64 > LONG_MESSAGES_BYTES_MAX {
            let oldest = self.messages.iter().position(|message| long(&message));
            oldest.and_then(|oldest| self.messages.remove(oldest));
        }
    }

    fn call(&self, number: u64) -> Option<&(u64, u64, String)> {
        self.calls.iter().find(|(call, ..)| *call == number)
    }
}

impl RetransmitBuffer for RetainedByLeader {
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
