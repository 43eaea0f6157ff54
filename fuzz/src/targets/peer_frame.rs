//! Messages between members of a swarm: any bytes must be a message or an error, and an accepted
//! message must be encoded to the same bytes.

use cool_peer::Frame;

pub(crate) fn check(bytes: &[u8]) {
    if let Ok(frame) = Frame::decode(bytes)
        && let Ok(again) = frame.encode()
    {
        assert_eq!(Frame::decode(&again).as_ref(), Ok(&frame));
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_swarm::{BlockAnnouncement, BlockTime, CodedBlock, HoldingsReport, Member, Signal};
    let have = HoldingsReport {
        first: 1,
        ranks: vec![3, 300, 0],
        blocks: vec![u64::MAX],
        null_vectors: vec![(1, [7; 32].into())],
    };
    let head = |row| {
        Frame::Signal(Signal::Head(BlockAnnouncement {
            transfer: 9,
            generation: 4,
            row,
            checked: true,
            round: 1 << 40,
        }))
    };
    let frames = [
        Frame::Hello { member: Member { rack: 3, slot: 70_000 }, contact: ([10, 0, 0, 1], 4000).into() },
        Frame::Inquire { member: Member { rack: 0, slot: 1 } },
        Frame::Signal(Signal::Grant { transfer: 7, ring: 1 << 50, block_time: BlockTime(Some(9)), have }),
        head(CodedBlock::Coded([1, 0, 255].into())),
        head(CodedBlock::Original(1023)),
        Frame::Part { transfer: u32::MAX, bytes: &[0, 1, 2] },
        Frame::Half { transfer: 1 },
        Frame::Whole { transfer: 2 },
    ];
    frames.iter().map(|frame| frame.encode().unwrap()).collect()
}

target!();
