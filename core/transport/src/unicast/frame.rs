//! The frames of a unicast stream as bytes: a 32-bit length of the rest, a kind, and a body, with
//! big-endian numbers. Decoding is strict and buffers at most one control frame. Payload is never
//! copied here. The meaning of frames belongs to the machine.

use super::api::{Payload, VERSION, Violation};
use super::message::{AgentId, MessageName, Notice};
use crate::fields::{FieldReader, TruncatedField};
use cool_types::limits;
use core::ops::Range;

/// Most payload bytes of one data frame. Messages that share a stream take turns by frames.
pub(super) const FRAME_PAYLOAD: u32 = limits::MESSAGE_QUANTUM_BYTES as u32;

/// Most bytes of a control frame after its length field.
const CONTROL_BYTES_MAX: usize = 8 * 1024;

/// Bytes of a data frame's header after its length field. A test checks it against
/// [`cool_types::wire::MESSAGE_DATA_HEADER`], which includes the length field.
const DATA_HEADER_BYTES: usize = 1 + NAME_BYTES + 24;

/// Bytes of a message's name.
const NAME_BYTES: usize = 32;

/// Limits for the text, the ranks and the pairs of a [`Notice`]. Longer ones are cut when they are
/// sent.
const TEXT_BYTES_MAX: usize = 2 * 1024;
const RANKS_MAX: usize = 1024;
const PAIRS_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlFrame {
    Hello(AgentId),
    /// The sender has this group open on this stream, and may wait to send something for it.
    GroupOpen {
        group: u64,
        epoch: u32,
        waits: bool,
    },
    Announce {
        message: MessageName,
        digest: u64,
        bytes: u64,
    },
    Grant {
        message: MessageName,
    },
    /// The sender of this frame dropped the announcement and wants the message now.
    AnnounceAgain {
        message: MessageName,
    },
    /// The sender of this frame dropped announcements and has room again.
    AnnounceAll {
        group: u64,
        epoch: u32,
    },
    Credit {
        group: u64,
        epoch: u32,
        bytes: u64,
    },
    Notice(Notice),
}

/// The header of a data frame, which `len` bytes of payload follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataFrame {
    pub(super) message: MessageName,
    pub(super) digest: u64,
    pub(super) bytes: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

const HELLO: u8 = 1;
const DATA: u8 = 2;
const ANNOUNCE: u8 = 3;
const GRANT: u8 = 4;
const CREDIT: u8 = 5;
const ABORT: u8 = 6;
const RANKS_ARRIVED: u8 = 7;
const RANK_LOST: u8 = 8;
const WAITING_QUERY: u8 = 9;
const WAITING_RANKS: u8 = 10;
const GROUP_OPEN: u8 = 11;
const ANNOUNCE_AGAIN: u8 = 12;
const ANNOUNCE_ALL: u8 = 13;
const QUICK_CAPABILITY: u8 = 14;
const QUICK_PROBED: u8 = 15;

fn framed(kind: u8, payload: usize, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0, 0, 0, 0, kind];
    body(&mut out);
    // A header has at most CONTROL_BYTES_MAX bytes, and a payload at most FRAME_PAYLOAD.
    let len = (out.len() - 4 + payload) as u32;
    out[..4].copy_from_slice(&len.to_be_bytes());
    out
}

fn put_name(out: &mut Vec<u8>, m: &MessageName) {
    out.extend(m.group.to_be_bytes());
    out.extend(m.epoch.to_be_bytes());
    out.extend(m.call.to_be_bytes());
    out.extend(m.transfer.to_be_bytes());
    out.extend(m.from.to_be_bytes());
    out.extend(m.to.to_be_bytes());
}

fn put_ranks(out: &mut Vec<u8>, ranks: &[u32]) {
    let ranks = &ranks[..ranks.len().min(RANKS_MAX)];
    out.extend((ranks.len() as u32).to_be_bytes());
    ranks.iter().for_each(|r| out.extend(r.to_be_bytes()));
}

fn put_pairs(out: &mut Vec<u8>, pairs: &[(u32, u32)]) {
    let pairs = &pairs[..pairs.len().min(PAIRS_MAX)];
    out.extend((pairs.len() as u32).to_be_bytes());
    pairs.iter().flat_map(|(a, b)| [a, b]).for_each(|r| out.extend(r.to_be_bytes()));
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend(&text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES_MAX)]);
}

impl DataFrame {
    pub(super) fn encode(&self) -> Vec<u8> {
        framed(DATA, self.len as usize, |out| {
            put_name(out, &self.message);
            out.extend(self.digest.to_be_bytes());
            out.extend(self.bytes.to_be_bytes());
            out.extend(self.offset.to_be_bytes());
        })
    }
}

impl ControlFrame {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            ControlFrame::Hello(AgentId { node, incarnation }) => framed(HELLO, 0, |out| {
                out.extend(VERSION.to_be_bytes());
                out.extend(incarnation.to_be_bytes());
                put_text(out, node);
            }),
            ControlFrame::GroupOpen { group, epoch, waits } => framed(GROUP_OPEN, 0, |out| {
                out.extend(group.to_be_bytes());
                out.extend(epoch.to_be_bytes());
                out.push(u8::from(*waits));
            }),
            ControlFrame::Announce { message, digest, bytes } => framed(ANNOUNCE, 0, |out| {
                put_name(out, message);
                out.extend(digest.to_be_bytes());
                out.extend(bytes.to_be_bytes());
            }),
            ControlFrame::Grant { message } => framed(GRANT, 0, |out| put_name(out, message)),
            ControlFrame::AnnounceAgain { message } => {
                framed(ANNOUNCE_AGAIN, 0, |out| put_name(out, message))
            }
            ControlFrame::AnnounceAll { group, epoch } => framed(ANNOUNCE_ALL, 0, |out| {
                out.extend(group.to_be_bytes());
                out.extend(epoch.to_be_bytes());
            }),
            ControlFrame::Credit { group, epoch, bytes } => framed(CREDIT, 0, |out| {
                out.extend(group.to_be_bytes());
                out.extend(epoch.to_be_bytes());
                out.extend(bytes.to_be_bytes());
            }),
            ControlFrame::Notice(notice) => notice.encode(),
        }
    }
}

impl Notice {
    fn encode(&self) -> Vec<u8> {
        let (group, epoch) = self.group();
        let code = match self {
            Notice::Abort { .. } => ABORT,
            Notice::RanksArrived { .. } => RANKS_ARRIVED,
            Notice::RankLost { .. } => RANK_LOST,
            Notice::WaitingQuery { .. } => WAITING_QUERY,
            Notice::WaitingRanks { .. } => WAITING_RANKS,
            Notice::QuickCapability { .. } => QUICK_CAPABILITY,
            Notice::QuickProbed { .. } => QUICK_PROBED,
        };
        framed(code, 0, |out| {
            out.extend(group.to_be_bytes());
            out.extend(epoch.to_be_bytes());
            match self {
                Notice::Abort { kind, ranks, text, .. } => {
                    out.push(*kind);
                    put_ranks(out, ranks);
                    put_text(out, text);
                }
                Notice::RanksArrived { call, digest, ranks, text, .. } => {
                    out.extend(call.to_be_bytes());
                    out.extend(digest.to_be_bytes());
                    put_ranks(out, ranks);
                    put_text(out, text);
                }
                Notice::RankLost { call, rank, text, .. } => {
                    out.extend(call.to_be_bytes());
                    out.extend(rank.to_be_bytes());
                    put_text(out, text);
                }
                Notice::WaitingQuery { .. } => {}
                Notice::WaitingRanks { ranks, messages, .. } => {
                    put_ranks(out, ranks);
                    put_pairs(out, messages);
                }
                Notice::QuickCapability { able, .. } => out.push(u8::from(*able)),
                Notice::QuickProbed { passed, .. } => out.push(u8::from(*passed)),
            }
        })
    }
}

impl From<TruncatedField> for Violation {
    fn from(_: TruncatedField) -> Violation {
        Violation::Truncated
    }
}

fn name(r: &mut FieldReader<'_>) -> Result<MessageName, Violation> {
    Ok(MessageName {
        group: r.u64()?,
        epoch: r.u32()?,
        call: r.u64()?,
        transfer: r.u32()?,
        from: r.u32()?,
        to: r.u32()?,
    })
}

/// Reads the number of entries that follow, of `bytes` bytes each.
fn count(r: &mut FieldReader<'_>, most: usize, bytes: usize) -> Result<usize, Violation> {
    let count = r.u32()? as usize;
    if count > most || count * bytes > r.rest().len() { Err(Violation::Truncated) } else { Ok(count) }
}

fn ranks(r: &mut FieldReader<'_>) -> Result<Vec<u32>, Violation> {
    (0..count(r, RANKS_MAX, 4)?).map(|_| Ok(r.u32()?)).collect()
}

fn pairs(r: &mut FieldReader<'_>) -> Result<Vec<(u32, u32)>, Violation> {
    (0..count(r, PAIRS_MAX, 8)?).map(|_| Ok((r.u32()?, r.u32()?))).collect()
}

/// Reads the remaining bytes as text.
fn text(r: &mut FieldReader<'_>) -> Result<String, Violation> {
    let text = core::str::from_utf8(r.take_rest()).map_err(|_| Violation::NotText)?;
    if text.len() > TEXT_BYTES_MAX {
        return Err(Violation::TooLong { len: text.len() });
    }
    Ok(text.to_owned())
}

fn decode_control(kind: u8, body: &[u8]) -> Result<ControlFrame, Violation> {
    let mut r = FieldReader::new(body);
    let control = match kind {
        HELLO => match r.u32()? {
            VERSION => ControlFrame::Hello(AgentId { incarnation: r.u64()?, node: text(&mut r)? }),
            // The other fields of another version cannot be read.
            other => return Err(Violation::Version(other)),
        },
        GROUP_OPEN => ControlFrame::GroupOpen { group: r.u64()?, epoch: r.u32()?, waits: r.u8()? != 0 },
        ANNOUNCE => ControlFrame::Announce { message: name(&mut r)?, digest: r.u64()?, bytes: r.u64()? },
        GRANT => ControlFrame::Grant { message: name(&mut r)? },
        ANNOUNCE_AGAIN => ControlFrame::AnnounceAgain { message: name(&mut r)? },
        ANNOUNCE_ALL => ControlFrame::AnnounceAll { group: r.u64()?, epoch: r.u32()? },
        CREDIT => ControlFrame::Credit { group: r.u64()?, epoch: r.u32()?, bytes: r.u64()? },
        ABORT | RANKS_ARRIVED | RANK_LOST | WAITING_QUERY | WAITING_RANKS | QUICK_CAPABILITY
        | QUICK_PROBED => {
            let (group, epoch) = (r.u64()?, r.u32()?);
            ControlFrame::Notice(match kind {
                ABORT => {
                    Notice::Abort { group, epoch, kind: r.u8()?, ranks: ranks(&mut r)?, text: text(&mut r)? }
                }
                RANKS_ARRIVED => Notice::RanksArrived {
                    group,
                    epoch,
                    call: r.u64()?,
                    digest: r.u64()?,
                    ranks: ranks(&mut r)?,
                    text: text(&mut r)?,
                },
                RANK_LOST => {
                    Notice::RankLost { group, epoch, call: r.u64()?, rank: r.u32()?, text: text(&mut r)? }
                }
                WAITING_QUERY => Notice::WaitingQuery { group, epoch },
                QUICK_CAPABILITY => Notice::QuickCapability { group, epoch, able: r.u8()? != 0 },
                QUICK_PROBED => Notice::QuickProbed { group, epoch, passed: r.u8()? != 0 },
                _ => Notice::WaitingRanks { group, epoch, ranks: ranks(&mut r)?, messages: pairs(&mut r)? },
            })
        }
        other => return Err(Violation::UnknownKind(other)),
    };
    match r.rest().len() {
        0 => Ok(control),
        len => Err(Violation::Excess { kind, len }),
    }
}

/// The meaning of the next bytes of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DecodedFrame {
    Control(ControlFrame),
    /// A data frame begins.
    Data(DataFrame),
    /// Payload of `message` from `offset` on, with its range in the input.
    Payload {
        message: MessageName,
        offset: u64,
        within: Range<usize>,
    },
}

/// Splits a stream into frames. Buffers the part of a header or control frame that has arrived.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder {
    partial: Vec<u8>,
    /// The payload of the current data frame that has not arrived.
    payload: Option<Payload>,
}

impl FrameDecoder {
    /// Returns the next item in `input` after `at`, which is moved behind it. Returns `None` if the
    /// input is exhausted.
    pub(super) fn next(&mut self, input: &[u8], at: &mut usize) -> Result<Option<DecodedFrame>, Violation> {
        if self.payload.is_some() {
            let here = u32::try_from(input.len() - *at).unwrap_or(u32::MAX);
            return Ok(self.on_placed(here).map(|Payload { message, offset, len }| {
                let within = *at..*at + len as usize;
                *at = within.end;
                DecodedFrame::Payload { message, offset, within }
            }));
        }
        if !self.fill(5, input, at) {
            return Ok(None);
        }
        let len =
            u32::from_be_bytes([self.partial[0], self.partial[1], self.partial[2], self.partial[3]]) as usize;
        let kind = self.partial[4];
        let head = if kind == DATA { DATA_HEADER_BYTES } else { len };
        let most = if kind == DATA { DATA_HEADER_BYTES + FRAME_PAYLOAD as usize } else { CONTROL_BYTES_MAX };
        if len > most {
            return Err(Violation::TooLong { len });
        }
        if len < head.max(1) {
            return Err(Violation::Truncated);
        }
        if !self.fill(4 + head, input, at) {
            return Ok(None);
        }
        let decoded = if kind == DATA {
            let mut r = FieldReader::new(&self.partial[5..]);
            let data = DataFrame {
                message: name(&mut r)?,
                digest: r.u64()?,
                bytes: r.u64()?,
                offset: r.u64()?,
                // The length is at most FRAME_PAYLOAD.
                len: (len - head) as u32,
            };
            if data.offset.checked_add(u64::from(data.len)).is_none_or(|end| end > data.bytes) {
                return Err(Violation::OutOfMessage(data.message));
            }
            let DataFrame { message, offset, len, .. } = data;
            self.payload = (len > 0).then_some(Payload { message, offset, len });
            DecodedFrame::Data(data)
        } else {
            DecodedFrame::Control(decode_control(kind, &self.partial[5..])?)
        };
        self.partial.clear();
        Ok(Some(decoded))
    }

    /// Returns the payload of the current data frame that has not arrived.
    pub(super) fn payload(&self) -> Option<Payload> {
        self.payload
    }

    /// Skips at most `bytes` bytes of payload. Returns the part that was skipped.
    pub(super) fn on_placed(&mut self, bytes: u32) -> Option<Payload> {
        let Payload { message, offset, len: left } = self.payload?;
        let len = bytes.min(left);
        let rest = Payload { message, offset: offset + u64::from(len), len: left - len };
        self.payload = (rest.len > 0).then_some(rest);
        (len > 0).then_some(Payload { message, offset, len })
    }

    /// Moves input to `partial` until that has `want` bytes. Returns whether it has.
    fn fill(&mut self, want: usize, input: &[u8], at: &mut usize) -> bool {
        let missing = want.saturating_sub(self.partial.len()).min(input.len() - *at);
        self.partial.extend_from_slice(&input[*at..*at + missing]);
        *at += missing;
        self.partial.len() >= want
    }
}
