//! Encodes and decodes packets.

use super::{MAGIC, MAX_RANGES, Packet, PacketBody, PacketError, SourceReply, VERSION, Via};
use crate::fields::{FieldReader, TruncatedField};
use crate::spec::StreamId;
use core::ops::Range;

const DATA: u8 = 1;
const ANNOUNCE: u8 = 2;
const NAK: u8 = 3;
const NAK_CONFIRM: u8 = 4;
const REPORT: u8 = 5;
const SETTLED: u8 = 6;
const DIGEST_MISMATCH: u8 = 7;
const PING: u8 = 8;
const PING_ANSWER: u8 = 9;
const TREE_PROBE: u8 = 10;
const SOURCE_ACTIVE: u8 = 11;
const SOURCE_REPLY: u8 = 12;

const BEGUN: u8 = 1;
const ANSWER: u8 = 2;
const FORWARD_LIVE: u8 = 1;
const IN_PARTS: u8 = 2;
const ENDS: u8 = 1;

/// Returns the first bytes of a packet of a type.
pub(crate) fn prefix(code: u8) -> [u8; 4] {
    [MAGIC[0], MAGIC[1], VERSION, code]
}

/// Returns whether the type is that of a chunk.
pub(crate) fn is_data(code: u8) -> bool {
    code == DATA
}

impl Packet {
    /// Appends the packet's bytes. The caller must append the payload, if any.
    ///
    /// # Panics
    /// Panics if a list holds more than [`MAX_RANGES`] ranges. The machines never produce one.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&prefix(self.body.code()));
        out.extend_from_slice(&self.id.group.to_be_bytes());
        out.extend_from_slice(&self.id.epoch.to_be_bytes());
        out.extend_from_slice(&self.id.call.to_be_bytes());
        out.extend_from_slice(&self.id.transfer.to_be_bytes());
        out.extend_from_slice(&self.id.source.to_be_bytes());
        out.extend_from_slice(&self.from.to_be_bytes());
        out.extend_from_slice(&self.digest.to_be_bytes());
        self.body.encode(out);
    }

    /// Returns whether an encoded packet belongs to the same group and epoch.
    pub fn is_akin(&self, encoded: &[u8]) -> bool {
        encoded.get(4..12) == Some(&self.id.group.to_be_bytes())
            && encoded.get(12..16) == Some(&self.id.epoch.to_be_bytes())
    }

    /// Decodes the packets of a datagram, each with its payload: one packet with a payload, or any
    /// number of other packets.
    ///
    /// # Errors
    /// The last item is an error if the remaining bytes are not a packet of this version.
    pub fn decode_all(datagram: &[u8]) -> impl Iterator<Item = Result<(Packet, &[u8]), PacketError>> {
        let mut rest = Some(datagram);
        core::iter::from_fn(move || {
            let decoded = Packet::decode_first(rest.take()?);
            Some(decoded.map(|(packet, after)| {
                if packet.body.has_payload() {
                    return (packet, after);
                }
                rest = Some(after).filter(|after| !after.is_empty());
                (packet, &[][..])
            }))
        })
    }

    /// Decodes a single packet. Returns it with its payload.
    ///
    /// # Errors
    /// Returns an error if the bytes are not exactly one packet of this version.
    pub fn decode(bytes: &[u8]) -> Result<(Packet, &[u8]), PacketError> {
        match Packet::decode_first(bytes)? {
            (packet, after) if after.is_empty() || packet.body.has_payload() => Ok((packet, after)),
            (_, after) => Err(PacketError::Trailing(after.len())),
        }
    }

    /// Returns the first packet and the bytes that follow it.
    fn decode_first(bytes: &[u8]) -> Result<(Packet, &[u8]), PacketError> {
        let foreign = || PacketError::Foreign(bytes[..bytes.len().min(4)].to_vec());
        if !bytes.starts_with(&MAGIC) {
            return Err(foreign());
        }
        let mut r = FieldReader::new(bytes);
        r.u16()?;
        let version = r.u8()?;
        if version != VERSION {
            return Err(PacketError::Version(version));
        }
        let code = r.u8()?;
        let id = StreamId {
            group: r.u64()?,
            epoch: r.u32()?,
            call: r.u64()?,
            transfer: r.u32()?,
            source: r.u16()?,
        };
        let from = r.u16()?;
        let digest = r.u64()?;
        let body = PacketBody::decode(code, &mut r)?;
        Ok((Packet { id, from, digest, body }, r.rest()))
    }
}

impl PacketBody {
    /// Returns whether all bytes after the packet are its payload.
    fn has_payload(&self) -> bool {
        matches!(self, PacketBody::Data { .. } | PacketBody::TreeProbe)
    }

    fn code(&self) -> u8 {
        match self {
            PacketBody::Data { .. } => DATA,
            PacketBody::Announce { .. } => ANNOUNCE,
            PacketBody::Nak { .. } => NAK,
            PacketBody::NakConfirm { .. } => NAK_CONFIRM,
            PacketBody::Report { .. } => REPORT,
            PacketBody::Settled { .. } => SETTLED,
            PacketBody::DigestMismatch => DIGEST_MISMATCH,
            PacketBody::Ping => PING,
            PacketBody::PingAnswer { .. } => PING_ANSWER,
            PacketBody::TreeProbe => TREE_PROBE,
            PacketBody::SourceActive { .. } => SOURCE_ACTIVE,
            PacketBody::SourceReply(_) => SOURCE_REPLY,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            PacketBody::Data { chunk, echo, via, part } => {
                out.extend_from_slice(&chunk.to_be_bytes());
                out.extend_from_slice(&echo.to_be_bytes());
                out.extend_from_slice(&[*via as u8, *part]);
            }
            PacketBody::Announce { sent, serial, begun, answer } => {
                out.extend_from_slice(&sent.to_be_bytes());
                out.extend_from_slice(&serial.to_be_bytes());
                let flags = if *begun { BEGUN } else { 0 } | if *answer { ANSWER } else { 0 };
                out.extend_from_slice(&[flags, 0]);
            }
            PacketBody::Nak { serial, forward_live, in_parts, chunks } => {
                out.extend_from_slice(&serial.to_be_bytes());
                let flags =
                    if *forward_live { FORWARD_LIVE } else { 0 } | if *in_parts { IN_PARTS } else { 0 };
                out.extend_from_slice(&[flags, count(chunks)]);
                put_u32(out, chunks);
            }
            PacketBody::NakConfirm { echo, chunks } => {
                out.extend_from_slice(&echo.to_be_bytes());
                out.extend_from_slice(&[0, count(chunks)]);
                put_u32(out, chunks);
            }
            PacketBody::Report { rounds, loss, spacing, delay, echo, alive, complete } => {
                out.extend_from_slice(&rounds.to_be_bytes());
                out.extend_from_slice(&loss.to_be_bytes());
                out.extend_from_slice(&spacing.to_be_bytes());
                out.extend_from_slice(&delay.to_be_bytes());
                out.extend_from_slice(&echo.to_be_bytes());
                out.extend_from_slice(&[count(alive), count(complete)]);
                put_u16(out, alive);
                put_u16(out, complete);
            }
            PacketBody::Settled { positions } => {
                out.extend_from_slice(&[0, count(positions)]);
                put_u16(out, positions);
            }
            PacketBody::DigestMismatch | PacketBody::Ping | PacketBody::TreeProbe => {}
            PacketBody::PingAnswer { incarnation } => out.extend_from_slice(&incarnation.to_be_bytes()),
            PacketBody::SourceActive { ends } => out.push(if *ends { ENDS } else { 0 }),
            PacketBody::SourceReply(reply) => out.push(*reply as u8),
        }
    }

    fn decode(code: u8, r: &mut FieldReader<'_>) -> Result<PacketBody, PacketError> {
        Ok(match code {
            DATA => {
                let (chunk, echo) = (r.u32()?, r.u16()?);
                let via = match r.u8()? {
                    0 => Via::Tree,
                    1 => Via::Answer,
                    2 => Via::Forwarded,
                    3 => Via::Rack,
                    _ => return Err(PacketError::Field("via")),
                };
                PacketBody::Data { chunk, echo, via, part: r.u8()? }
            }
            ANNOUNCE => {
                let (sent, serial) = (r.u32()?, r.u16()?);
                let flags = flags(r, BEGUN | ANSWER)?;
                zero(r)?;
                PacketBody::Announce { sent, serial, begun: flags & BEGUN != 0, answer: flags & ANSWER != 0 }
            }
            NAK => {
                let serial = r.u16()?;
                let flags = flags(r, FORWARD_LIVE | IN_PARTS)?;
                let (forward_live, in_parts) = (flags & FORWARD_LIVE != 0, flags & IN_PARTS != 0);
                let count = range_count(r)?;
                PacketBody::Nak { serial, forward_live, in_parts, chunks: ranges(count, || r.u32())? }
            }
            NAK_CONFIRM => {
                let echo = r.u16()?;
                zero(r)?;
                let count = range_count(r)?;
                PacketBody::NakConfirm { echo, chunks: ranges(count, || r.u32())? }
            }
            REPORT => {
                let (rounds, loss, spacing, delay, echo) = (r.u32()?, r.u16()?, r.u32()?, r.u16()?, r.u16()?);
                let (alive, complete) = (range_count(r)?, range_count(r)?);
                PacketBody::Report {
                    rounds,
                    loss,
                    spacing,
                    delay,
                    echo,
                    alive: ranges(alive, || r.u16())?,
                    complete: ranges(complete, || r.u16())?,
                }
            }
            SETTLED => {
                zero(r)?;
                let count = range_count(r)?;
                PacketBody::Settled { positions: ranges(count, || r.u16())? }
            }
            DIGEST_MISMATCH => PacketBody::DigestMismatch,
            PING => PacketBody::Ping,
            PING_ANSWER => PacketBody::PingAnswer { incarnation: r.u64()? },
            TREE_PROBE => PacketBody::TreeProbe,
            SOURCE_ACTIVE => PacketBody::SourceActive { ends: flags(r, ENDS)? != 0 },
            SOURCE_REPLY => PacketBody::SourceReply(source_reply(r.u8()?)?),
            other => return Err(PacketError::Type(other)),
        })
    }
}

fn count<T>(ranges: &[Range<T>]) -> u8 {
    assert!(ranges.len() <= MAX_RANGES, "{} ranges in a packet", ranges.len());
    ranges.len() as u8
}

fn put_u32(out: &mut Vec<u8>, ranges: &[Range<u32>]) {
    for range in ranges {
        out.extend_from_slice(&range.start.to_be_bytes());
        out.extend_from_slice(&range.end.to_be_bytes());
    }
}

fn put_u16(out: &mut Vec<u8>, ranges: &[Range<u16>]) {
    for range in ranges {
        out.extend_from_slice(&range.start.to_be_bytes());
        out.extend_from_slice(&range.end.to_be_bytes());
    }
}

impl From<TruncatedField> for PacketError {
    fn from(TruncatedField { len, needed }: TruncatedField) -> PacketError {
        PacketError::Short { len, needed }
    }
}

fn zero(r: &mut FieldReader<'_>) -> Result<(), PacketError> {
    if r.u8()? == 0 { Ok(()) } else { Err(PacketError::Field("reserved byte, which is zero")) }
}

fn flags(r: &mut FieldReader<'_>, known: u8) -> Result<u8, PacketError> {
    let flags = r.u8()?;
    if flags & !known == 0 { Ok(flags) } else { Err(PacketError::Field("flag")) }
}

/// The replies by their codes.
const SOURCE_REPLIES: [SourceReply; 3] = [SourceReply::Received, SourceReply::Refused, SourceReply::Silent];

fn source_reply(code: u8) -> Result<SourceReply, PacketError> {
    SOURCE_REPLIES.get(usize::from(code)).copied().ok_or(PacketError::Field("reply to a source"))
}

fn range_count(r: &mut FieldReader<'_>) -> Result<usize, PacketError> {
    let count = usize::from(r.u8()?);
    if count <= MAX_RANGES { Ok(count) } else { Err(PacketError::Field("count of ranges")) }
}

fn ranges<T: PartialOrd>(
    count: usize,
    mut bound: impl FnMut() -> Result<T, TruncatedField>,
) -> Result<Vec<Range<T>>, PacketError> {
    let ranges = (0..count).map(|_| Ok(bound()?..bound()?)).collect::<Result<Vec<_>, TruncatedField>>()?;
    ascending(&ranges)?;
    Ok(ranges)
}

/// Checks that ranges are not empty, ascend and do not touch.
fn ascending<T: PartialOrd>(ranges: &[Range<T>]) -> Result<(), PacketError> {
    if ranges.iter().all(|r| r.start < r.end) && ranges.windows(2).all(|w| w[0].end < w[1].start) {
        Ok(())
    } else {
        Err(PacketError::Field("list of ranges"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{DATA_HEADER, MAX_CONTROL};
    use proptest::prelude::*;

    fn ranges<T: Copy + Ord + core::fmt::Debug + 'static>(
        number: impl Strategy<Value = T> + 'static,
    ) -> impl Strategy<Value = Vec<Range<T>>> {
        prop::collection::btree_set(number, 0..=2 * MAX_RANGES).prop_map(|ends| {
            let ends: Vec<T> = ends.into_iter().collect();
            ends.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
        })
    }

    fn body() -> impl Strategy<Value = PacketBody> {
        prop_oneof![
            (
                any::<u32>(),
                any::<u16>(),
                prop_oneof![Just(Via::Tree), Just(Via::Answer), Just(Via::Forwarded), Just(Via::Rack)],
                any::<u8>()
            )
                .prop_map(|(chunk, echo, via, part)| PacketBody::Data { chunk, echo, via, part }),
            (any::<u32>(), any::<u16>(), any::<bool>(), any::<bool>()).prop_map(
                |(sent, serial, begun, answer)| PacketBody::Announce { sent, serial, begun, answer }
            ),
            (any::<u16>(), any::<bool>(), any::<bool>(), ranges(any::<u32>())).prop_map(
                |(serial, forward_live, in_parts, chunks)| PacketBody::Nak {
                    serial,
                    forward_live,
                    in_parts,
                    chunks
                }
            ),
            (any::<u16>(), ranges(any::<u32>()))
                .prop_map(|(echo, chunks)| PacketBody::NakConfirm { echo, chunks }),
            (
                any::<u32>(),
                any::<u16>(),
                any::<u32>(),
                any::<u16>(),
                any::<u16>(),
                ranges(any::<u16>()),
                ranges(any::<u16>())
            )
                .prop_map(|(rounds, loss, spacing, delay, echo, alive, complete)| {
                    PacketBody::Report { rounds, loss, spacing, delay, echo, alive, complete }
                }),
            ranges(any::<u16>()).prop_map(|positions| PacketBody::Settled { positions }),
            Just(PacketBody::DigestMismatch),
            Just(PacketBody::Ping),
            any::<u64>().prop_map(|incarnation| PacketBody::PingAnswer { incarnation }),
            Just(PacketBody::TreeProbe),
            any::<bool>().prop_map(|ends| PacketBody::SourceActive { ends }),
            prop::sample::select(SOURCE_REPLIES.as_slice()).prop_map(PacketBody::SourceReply),
        ]
    }

    prop_compose! {
        fn packet()(group: u64, epoch: u32, call: u64, transfer: u32, source: u16, from: u16, digest: u64,
                    body in body()) -> Packet {
            Packet { id: StreamId { group, epoch, call, transfer, source }, from, digest, body }
        }
    }

    proptest! {
        #[test]
        fn packets_of_one_datagram_are_all_read(packets in prop::collection::vec(packet(), 1..5)) {
            let has_payload = |packet: &Packet| packet.body.has_payload();
            let last = packets.iter().position(has_payload).map_or(packets.len(), |at| at + 1);
            let datagram: Vec<u8> = packets.iter().flat_map(encoded).collect();
            let read: Vec<Packet> = Packet::decode_all(&datagram).map(|read| read.unwrap().0).collect();
            prop_assert_eq!(&read[..last.min(read.len())], &packets[..last]);
            let cut = Packet::decode_all(&datagram[..datagram.len().saturating_sub(1)]);
            prop_assert!(packets.len() != last || cut.last().unwrap().is_err());
        }
    }

    fn encoded(packet: &Packet) -> Vec<u8> {
        let mut bytes = Vec::new();
        packet.encode(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn a_packet_survives_its_bytes_and_no_prefix_or_suffix_does(packet in packet()) {
            let bytes = encoded(&packet);
            prop_assert!(bytes.len() <= MAX_CONTROL);
            prop_assert_eq!(Packet::decode(&bytes), Ok((packet.clone(), &[][..])));
            for len in 0..bytes.len() {
                prop_assert!(Packet::decode(&bytes[..len]).is_err(), "prefix of {} bytes", len);
            }
            let mut longer = bytes.clone();
            longer.push(7);
            if matches!(packet.body, PacketBody::Data { .. }) {
                prop_assert_eq!(bytes.len(), DATA_HEADER);
            }
            match packet.body.has_payload() {
                true => prop_assert_eq!(Packet::decode(&longer), Ok((packet, &[7][..]))),
                false => prop_assert_eq!(Packet::decode(&longer), Err(PacketError::Trailing(1))),
            }
        }

        #[test]
        fn bytes_that_decode_are_the_only_bytes_of_their_packet(
            packet in packet(), at in any::<prop::sample::Index>(), value: u8,
        ) {
            let mut bytes = encoded(&packet);
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Ok((read, payload)) = Packet::decode(&bytes) {
                let mut again = encoded(&read);
                again.extend_from_slice(payload);
                prop_assert_eq!(again, bytes);
            }
        }

        #[test]
        fn hostile_bytes_are_an_error_or_a_packet(mut bytes in prop::collection::vec(any::<u8>(), 0..700)) {
            for (at, byte) in [0xC0, 0x01, 1].into_iter().enumerate().take(bytes.len()) {
                bytes[at] = byte;
            }
            if let Ok((read, payload)) = Packet::decode(&bytes) {
                let mut again = encoded(&read);
                again.extend_from_slice(payload);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn errors_name_the_wrong_field() {
        let id = StreamId { group: 1, epoch: 2, call: 3, transfer: 4, source: 5 };
        let good = encoded(&Packet { id, from: 5, digest: 6, body: PacketBody::DigestMismatch });
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Packet::decode(&bytes).unwrap_err()
        };
        assert_eq!(with(0, b'G'), PacketError::Foreign(vec![b'G', 1, VERSION, 7]));
        assert_eq!(with(2, 9), PacketError::Version(9));
        assert_eq!(with(3, 13), PacketError::Type(13));
        assert_eq!(with(3, 1), PacketError::Short { len: 40, needed: 44 });
    }
}
