//! Long messages, which are sent in parts. Each part is one datagram that fits into a packet. The
//! system sends all parts of a message by one call, and may deliver several at once (UDP
//! segmentation and receive offload, GSO and GRO of Linux).
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | magic `C4` |
//! | 1 | kind: 5 |
//! | 2..4 | zero |
//! | 4..32 | epoch, group, call, transfer and sending rank, as in the [message](crate::Datagram) |
//! | 32..34 | length of the part's bytes |
//! | 34..36 | their offset in the message |
//! | 36..38 | length of the message with its header and tag |
//! | 38..40 | zero |
//! | 40.. | bytes of the message |
//!
//! A part has no tag. The tag of the message is verified when all parts have arrived. A message
//! with a wrong tag is dropped and requested by a NAK, as if it had been lost. A NAK contains the
//! parts that have arrived, because a queue that is shorter than a message would otherwise drop the
//! same parts of each retransmission.

use crate::datagram::{self, LONG_DATAGRAM_BYTES_MAX, MAGIC, OVERHEAD_BYTES, TAG_BYTES};
use std::borrow::Cow;
use std::collections::VecDeque;

/// The code of this kind of datagram; see [`DatagramKind`](crate::DatagramKind) for the others.
const PART: u8 = 5;
const HEADER_BYTES: usize = 40;
/// The bytes of a message that identify it, which each part repeats.
const NAME: core::ops::Range<usize> = 4..32;

/// The epoch, group, call, transfer and sending rank of a message, as they are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QuickMessageName([u8; NAME.end - NAME.start]);

impl QuickMessageName {
    fn group(&self) -> (u64, u32) {
        (self.long(4), self.word(0))
    }

    fn call(&self) -> u64 {
        self.long(12)
    }

    fn transfer(&self) -> u32 {
        self.word(20)
    }

    fn from(&self) -> u32 {
        self.word(24)
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) << 32 | u64::from(self.word(at + 4))
    }
}

/// The shortest part that is not the last one of its message. A part is thus identified by its
/// offset divided by this length, and a message has at most 64 parts, which is also the largest
/// number that Linux sends by one call.
const PART_BYTES_MIN: usize = 1024;
const _: () = assert!(LONG_DATAGRAM_BYTES_MAX <= 64 * PART_BYTES_MIN);

/// Length of the shortest datagram into which long messages may be divided.
pub const PART_DATAGRAM_BYTES_MIN: usize = HEADER_BYTES + PART_BYTES_MIN;

/// Length in bytes of the buffer into which a leader must receive: that of the longest sequence of
/// parts that the system delivers at once.
pub const LEADER_BUFFER_BYTES: usize = 64 << 10;

/// Maximum number of messages of which some parts are missing. The oldest one is dropped before
/// another one begins.
const INCOMPLETE_MAX: usize = 64;

/// A message that is divided into parts.
#[derive(Clone, Copy, Debug)]
pub struct DividedMessage<'a> {
    message: &'a [u8],
    /// Number of bytes of the message in each part except the last one.
    part_bytes: usize,
}

impl<'a> DividedMessage<'a> {
    /// Divides a message into datagrams of `datagram_bytes`. Returns `None` if the message is sent
    /// as one datagram: because it is not longer, or because the length is 0, which means that
    /// messages are not divided.
    pub fn new(message: &'a [u8], datagram_bytes: usize) -> Option<DividedMessage<'a>> {
        let is_divided = message.len() > datagram_bytes && datagram_bytes >= PART_DATAGRAM_BYTES_MIN;
        is_divided.then(|| DividedMessage { message, part_bytes: datagram_bytes - HEADER_BYTES })
    }

    /// Returns the datagrams of the message, each as its header and its bytes. All datagrams have
    /// the same length, except for the last one.
    pub fn parts(self) -> impl Iterator<Item = ([u8; HEADER_BYTES], &'a [u8])> {
        let DividedMessage { message, part_bytes } = self;
        message.chunks(part_bytes).enumerate().map(move |(index, part)| {
            let mut header = [0; HEADER_BYTES];
            header[..2].copy_from_slice(&[MAGIC, PART]);
            header[NAME].copy_from_slice(&message[NAME]);
            let numbers = [part.len(), index * part_bytes, message.len()];
            for (place, number) in header[NAME.end..].chunks_exact_mut(2).zip(numbers) {
                // A message is shorter than 64 KiB.
                place.copy_from_slice(&(number as u16).to_be_bytes());
            }
            (header, part)
        })
    }
}

/// Returns the datagrams of a message, one right after the other: the message itself if it is not
/// longer than `datagram_bytes`, and otherwise its parts, each of that length except the last one.
/// Length 0 means that messages are not divided.
pub fn in_parts(message: &[u8], datagram_bytes: usize) -> Cow<'_, [u8]> {
    missing_parts(message, datagram_bytes, ArrivedParts::default())
}

/// Returns the datagrams of a message, as [`in_parts`] does, without the parts that have arrived.
pub(crate) fn missing_parts(message: &[u8], datagram_bytes: usize, arrived: ArrivedParts) -> Cow<'_, [u8]> {
    let Some(divided) = DividedMessage::new(message, datagram_bytes) else {
        return Cow::Borrowed(message);
    };
    let parts = message.len().div_ceil(divided.part_bytes);
    let mut datagrams = Vec::with_capacity(message.len() + parts * HEADER_BYTES);
    let all = divided.parts().enumerate();
    for (_, (header, part)) in all.filter(|(index, _)| !arrived.contains(index * divided.part_bytes)) {
        datagrams.extend_from_slice(&header);
        datagrams.extend_from_slice(part);
    }
    Cow::Owned(datagrams)
}

/// The parts of a message that have arrived: a bit for each, by offset divided by
/// [`PART_BYTES_MIN`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArrivedParts(u64);

impl ArrivedParts {
    fn bit(offset: usize) -> u64 {
        1u64.checked_shl((offset / PART_BYTES_MIN) as u32).unwrap_or(0)
    }

    /// Returns whether the part at an offset has arrived.
    fn contains(self, offset: usize) -> bool {
        self.0 & ArrivedParts::bit(offset) != 0
    }

    /// Returns the payload of a NAK, which is empty if no part has arrived.
    pub(crate) fn to_payload(self) -> Vec<u8> {
        if self == ArrivedParts::default() { Vec::new() } else { self.0.to_be_bytes().to_vec() }
    }

    /// Returns the parts that the payload of a NAK contains.
    pub(crate) fn from_payload(payload: &[u8]) -> ArrivedParts {
        ArrivedParts(payload.try_into().map_or(0, u64::from_be_bytes))
    }
}

/// A part of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessagePart<'a> {
    name: QuickMessageName,
    offset: usize,
    message_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> MessagePart<'a> {
    /// Returns the first part in `bytes` and the bytes after it, or `None` if they do not begin
    /// with a valid part.
    pub(crate) fn split_first(bytes: &'a [u8]) -> Option<(MessagePart<'a>, &'a [u8])> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let number = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
        let (len, offset, message_bytes) = (number(32), number(34), number(36));
        let (bytes, rest) = rest.split_at_checked(len)?;
        let end = offset + len;
        let has_length = if end == message_bytes { len > 0 } else { len >= PART_BYTES_MIN };
        let is_valid = header[..2] == [MAGIC, PART]
            && has_length
            && end <= message_bytes
            && message_bytes <= LONG_DATAGRAM_BYTES_MAX;
        let name = QuickMessageName(header[NAME].try_into().ok()?);
        is_valid.then_some((MessagePart { name, offset, message_bytes, bytes }, rest))
    }

    /// Returns the group and the epoch.
    pub(crate) fn group(&self) -> (u64, u32) {
        self.name.group()
    }

    /// Returns the number of the call and the transfer.
    pub(crate) fn message_name(&self) -> (u64, u32) {
        (self.name.call(), self.name.transfer())
    }

    /// Returns the sending rank.
    pub(crate) fn from(&self) -> u32 {
        self.name.from()
    }

    /// Returns the length of the payload of the message.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.message_bytes.saturating_sub(OVERHEAD_BYTES)
    }
}

/// A datagram that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ArrivedDatagram<'a> {
    /// A part of a message.
    Part(MessagePart<'a>),
    /// A message, or anything else.
    Other(&'a [u8]),
}

/// Returns the datagrams in `bytes`, which contain one or several. The system may join any
/// datagrams of equal length, and a shorter last one.
pub(crate) fn arrived_datagrams(mut bytes: &[u8]) -> impl Iterator<Item = ArrivedDatagram<'_>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let (datagram, after) = MessagePart::split_first(bytes).map_or_else(
            || {
                let (other, after) = bytes.split_at(datagram::first_datagram_bytes(bytes));
                (ArrivedDatagram::Other(other), after)
            },
            |(part, after)| (ArrivedDatagram::Part(part), after),
        );
        bytes = after;
        Some(datagram)
    })
}

/// A message all parts of which have arrived. Its tag has not been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CompleteMessage {
    /// The message.
    Whole(Vec<u8>),
    /// The payload is at its destination; these are the header and the tag.
    InPlace([u8; datagram::HEADER_BYTES], [u8; TAG_BYTES]),
}

impl CompleteMessage {
    /// Writes the bytes of a part. `payload` is the destination of a message in place.
    fn put(&mut self, part: &MessagePart<'_>, payload: &mut [u8]) {
        match self {
            CompleteMessage::Whole(message) if message.len() == part.offset => {
                message.extend_from_slice(part.bytes);
            }
            CompleteMessage::Whole(message) => {
                let end = part.offset + part.bytes.len();
                if message.len() < end {
                    message.resize(end, 0);
                }
                message[part.offset..end].copy_from_slice(part.bytes);
            }
            CompleteMessage::InPlace(header, tag) => {
                let (mut offset, mut bytes) = (part.offset, part.bytes);
                for section in [&mut header[..], payload, tag] {
                    if offset < section.len() {
                        let (to, len) = (&mut section[offset..], bytes.len());
                        let (now, later) = bytes.split_at(len.min(to.len()));
                        to[..now.len()].copy_from_slice(now);
                        bytes = later;
                    }
                    offset = offset.saturating_sub(section.len());
                }
            }
        }
    }
}

/// A message of which parts have arrived.
#[derive(Clone, Debug)]
struct IncompleteMessage {
    name: QuickMessageName,
    message_bytes: usize,
    arrived_bytes: CompleteMessage,
    arrived: ArrivedParts,
    /// Number of bytes that have not arrived.
    missing: usize,
}

/// Reassembles messages from their parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reassembly {
    /// The oldest one first.
    incomplete: VecDeque<IncompleteMessage>,
}

impl Reassembly {
    /// Adds a part. Returns its message if all parts have arrived.
    ///
    /// `place` is the destination of the payload, if the rank waits for the message. It must have
    /// the length of the payload, and be the same for all parts. If the rank does not wait any
    /// more, the parts that have arrived are dropped.
    pub(crate) fn add(
        &mut self,
        part: &MessagePart<'_>,
        place: Option<&mut [u8]>,
    ) -> Option<CompleteMessage> {
        let is_it = |known: &IncompleteMessage| known.name == part.name;
        let at = self.incomplete.iter().position(is_it).unwrap_or_else(|| {
            if self.incomplete.len() == INCOMPLETE_MAX {
                self.incomplete.pop_front();
            }
            let arrived_bytes = match &place {
                Some(_) => CompleteMessage::InPlace([0; datagram::HEADER_BYTES], [0; TAG_BYTES]),
                None => CompleteMessage::Whole(Vec::with_capacity(part.message_bytes)),
            };
            self.incomplete.push_back(IncompleteMessage {
                name: part.name,
                message_bytes: part.message_bytes,
                arrived_bytes,
                arrived: ArrivedParts::default(),
                missing: part.message_bytes,
            });
            self.incomplete.len() - 1
        });
        let message = &mut self.incomplete[at];
        let payload = match (&message.arrived_bytes, place) {
            (CompleteMessage::Whole(_), _) => &mut [][..],
            (CompleteMessage::InPlace(..), Some(place)) => place,
            (CompleteMessage::InPlace(..), None) => {
                self.incomplete.remove(at);
                return None;
            }
        };
        if message.message_bytes != part.message_bytes || message.arrived.contains(part.offset) {
            return None;
        }
        message.arrived.0 |= ArrivedParts::bit(part.offset);
        // Forged parts may overlap; the tag of the message is then wrong.
        message.missing = message.missing.saturating_sub(part.bytes.len());
        message.arrived_bytes.put(part, payload);
        let is_complete = message.missing == 0;
        is_complete.then(|| self.incomplete.remove(at).map(|message| message.arrived_bytes))?
    }

    /// Returns the parts of a message that have arrived, of a message that is not complete.
    pub(crate) fn arrived_parts(&self, from: u32, (call, transfer): (u64, u32)) -> ArrivedParts {
        let is_it =
            |name: &QuickMessageName| (name.from(), name.call(), name.transfer()) == (from, call, transfer);
        let message = self.incomplete.iter().find(|message| is_it(&message.name));
        message.map(|message| message.arrived).unwrap_or_default()
    }

    /// Drops the messages of earlier calls.
    pub(crate) fn forget_before(&mut self, call: u64) {
        self.incomplete.retain(|message| message.name.call() >= call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_key::tests::call_key;
    use crate::datagram::{Datagram, DatagramHeader, DatagramKind};
    use proptest::prelude::*;

    fn message(call: u64, len: usize) -> Vec<u8> {
        let payload: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let header = DatagramHeader {
            kind: DatagramKind::Message,
            group: 9,
            epoch: 2,
            call,
            transfer: 4,
            from: 3,
            requested: 0,
            digest: 70,
        };
        Datagram { header, payload: &payload }.encode(&call_key(1))
    }

    fn parts(datagrams: &[u8]) -> Vec<MessagePart<'_>> {
        let mut rest = datagrams;
        std::iter::from_fn(|| {
            let (part, after) = MessagePart::split_first(rest)?;
            rest = after;
            Some(part)
        })
        .collect()
    }

    /// Adds a part of a message that is not received in place.
    fn whole(reassembly: &mut Reassembly, part: &MessagePart<'_>) -> Option<Vec<u8>> {
        match reassembly.add(part, None)? {
            CompleteMessage::Whole(message) => Some(message),
            CompleteMessage::InPlace(..) => panic!("it has no destination"),
        }
    }

    #[test]
    fn a_short_message_is_one_datagram() {
        let short = message(1, 900);
        assert_eq!(*in_parts(&short, 1472), short);
        assert_eq!(*in_parts(&message(1, 50_000), 0), message(1, 50_000), "no division");
    }

    #[test]
    fn parts_repeat_the_name_of_their_message() {
        let datagrams = in_parts(&message(7, 4000), 1472).into_owned();
        let parts = parts(&datagrams);
        assert_eq!(parts.len(), 3);
        assert!(
            parts.iter().all(|part| (part.group(), part.message_name(), part.from()) == ((9, 2), (7, 4), 3))
        );
        assert_eq!(datagrams.len(), 4000 + 60 + 3 * HEADER_BYTES);
    }

    #[test]
    fn joined_datagrams_are_taken_apart() {
        let (long, short) = (message(7, 2804), message(8, 500));
        let joined = [&*in_parts(&long, 1472), &short, &short].concat();
        let mut reassembly = Reassembly::default();
        let messages: Vec<Vec<u8>> = arrived_datagrams(&joined)
            .filter_map(|datagram| match datagram {
                ArrivedDatagram::Part(part) => whole(&mut reassembly, &part),
                ArrivedDatagram::Other(message) => Some(message.to_vec()),
            })
            .collect();
        assert_eq!(messages, [&long[..], &short, &short]);
        // A datagram of an earlier release does not contain its length.
        let earlier = [&[MAGIC, 1, 0, 0], &short[4..]].concat();
        assert!(matches!(
            arrived_datagrams(&earlier).next(),
            Some(ArrivedDatagram::Other(message)) if message.len() == short.len()
        ));
    }

    #[test]
    fn old_and_excess_messages_are_dropped() {
        let mut reassembly = Reassembly::default();
        for call in 0..2 * INCOMPLETE_MAX as u64 {
            let datagrams = in_parts(&message(call, 4000), 1472).into_owned();
            assert_eq!(whole(&mut reassembly, &parts(&datagrams)[0]), None);
            assert!(reassembly.incomplete.len() <= INCOMPLETE_MAX);
        }
        reassembly.forget_before(2 * INCOMPLETE_MAX as u64 - 3);
        assert_eq!(reassembly.incomplete.len(), 3);
    }

    #[test]
    fn parts_that_have_arrived_are_not_sent_again() {
        let (mut reassembly, message) = (Reassembly::default(), message(7, 4000));
        let datagrams = in_parts(&message, 1472).into_owned();
        let arrived = parts(&datagrams);
        assert_eq!(whole(&mut reassembly, &arrived[1]), None);
        let known = reassembly.arrived_parts(3, (7, 4));
        let known = ArrivedParts::from_payload(&known.to_payload());
        let missing = missing_parts(&message, 1472, known).into_owned();
        let missing = parts(&missing);
        assert_eq!(missing.iter().map(|part| part.offset).collect::<Vec<_>>(), [0, 2864]);
        assert_eq!(whole(&mut reassembly, &missing[0]), None);
        assert_eq!(whole(&mut reassembly, &missing[1]), Some(message));
        assert_eq!(reassembly.arrived_parts(3, (7, 4)), ArrivedParts::default());
        assert_eq!(ArrivedParts::from_payload(&[]), ArrivedParts::default());
    }

    proptest! {
        #[test]
        fn parts_in_any_order_and_repeated_yield_the_message(
            len in 1usize..57_344,
            datagram_bytes in PART_DATAGRAM_BYTES_MIN..9000,
            order in proptest::collection::vec(any::<prop::sample::Index>(), 0..200),
        ) {
            let message = message(5, len);
            let datagrams = in_parts(&message, datagram_bytes).into_owned();
            prop_assume!(datagrams.len() > message.len());
            prop_assert!(datagrams.len() <= 65_507, "one call sends them");
            let parts = parts(&datagrams);
            prop_assert!(parts.len() <= 64);
            let (mut reassembly, mut in_place) = (Reassembly::default(), Reassembly::default());
            let mut payload = vec![0; len];
            let (mut left, mut complete) = (parts.len(), 0);
            let mut arrived = vec![false; parts.len()];
            for at in order.iter().map(|at| at.index(parts.len())).chain(0..parts.len()) {
                if complete > 0 {
                    break;
                }
                left -= usize::from(!std::mem::replace(&mut arrived[at], true));
                let whole = whole(&mut reassembly, &parts[at]);
                prop_assert_eq!(whole.is_some(), left == 0);
                let placed = in_place.add(&parts[at], Some(&mut payload));
                prop_assert_eq!(placed.is_some(), left == 0);
                if let (Some(whole), Some(CompleteMessage::InPlace(header, tag))) = (whole, placed) {
                    prop_assert_eq!(&whole, &message);
                    prop_assert_eq!(&[&header[..], &payload, &tag].concat(), &message);
                    complete += 1;
                }
            }
            prop_assert_eq!(complete, 1);
        }

        #[test]
        fn any_parts_are_refused_or_kept_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..3000),
            numbers in any::<[u16; 3]>(),
        ) {
            let mut datagram = vec![MAGIC, PART, 0, 0];
            datagram.extend_from_slice(&[0; 28]);
            numbers.iter().for_each(|number| datagram.extend_from_slice(&(number % 4096).to_be_bytes()));
            datagram.extend_from_slice(&[0; 2]);
            datagram.extend_from_slice(&bytes);
            let mut reassembly = Reassembly::default();
            let mut place = vec![0; usize::from(numbers[0] % 7)];
            for part in parts(&datagram) {
                reassembly.add(&part, None);
                reassembly.add(&part, Some(&mut place));
            }
            prop_assert!(MessagePart::split_first(&bytes).is_none_or(|(part, _)| !part.bytes.is_empty()));
        }
    }
}
