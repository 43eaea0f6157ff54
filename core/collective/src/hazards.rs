//! Records, for each byte range of a rank's buffers, the action that last wrote it and the actions
//! that have read it since then. Dependencies (read after write, write after read, write after
//! write) follow from the bytes that actions touch.
//!
//! An empty span is a token: it contains no bytes, but a send from its place waits for the messages
//! that arrived there.

use crate::schedule::{ActionId, RankBuffer, Span};
use std::collections::BTreeMap;

/// A range of bytes with the same accesses.
#[derive(Clone, Debug, Default)]
struct AccessedRange {
    end: u64,
    writer: Option<ActionId>,
    /// Readers since the writer.
    readers: Vec<ActionId>,
}

/// The accesses of one rank so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hazards {
    cells: [BTreeMap<u64, AccessedRange>; 3],
    tokens: BTreeMap<(RankBuffer, u64), Vec<ActionId>>,
}

impl Hazards {
    /// Records that `id` reads `span`, and adds the actions for which it must wait to `after`.
    pub(crate) fn read(&mut self, span: Span, id: ActionId, after: &mut Vec<ActionId>) {
        if span.len == 0 {
            after.extend(self.tokens(span));
            return;
        }
        self.cover(span);
        for (_, cell) in self.cells[index(span.buffer)].range_mut(span.offset..span.end()) {
            after.extend(cell.writer);
            cell.readers.push(id);
        }
    }

    /// Records that `id` writes `span`, and adds the actions for which it must wait to `after`.
    pub(crate) fn write(&mut self, span: Span, id: ActionId, after: &mut Vec<ActionId>) {
        if span.len == 0 {
            self.tokens.entry((span.buffer, span.offset)).or_default().push(id);
            return;
        }
        self.cover(span);
        let cells = &mut self.cells[index(span.buffer)];
        let starts: Vec<u64> = cells.range(span.offset..span.end()).map(|(start, _)| *start).collect();
        for start in starts {
            let Some(cell) = cells.remove(&start) else { continue };
            // The readers have waited for the writer themselves.
            if cell.readers.is_empty() {
                after.extend(cell.writer);
            }
            after.extend(cell.readers.into_iter().filter(|reader| *reader != id));
        }
        cells.insert(span.offset, AccessedRange { end: span.end(), writer: Some(id), readers: Vec::new() });
    }

    /// Makes the messages that arrived at `src` count as arrived at `dst` too, for a local step
    /// that moves no bytes.
    pub(crate) fn pass_token(&mut self, src: Span, dst: Span) {
        let arrived: Vec<ActionId> = self.tokens(src).collect();
        self.tokens.entry((dst.buffer, dst.offset)).or_default().extend(arrived);
    }

    fn tokens(&self, span: Span) -> impl Iterator<Item = ActionId> {
        self.tokens.get(&(span.buffer, span.offset)).into_iter().flatten().copied()
    }

    /// Splits ranges at both ends of the span, and adds ranges for the bytes that have not been
    /// touched.
    fn cover(&mut self, span: Span) {
        let cells = &mut self.cells[index(span.buffer)];
        for at in [span.offset, span.end()] {
            if let Some((_, cell)) = cells.range_mut(..at).next_back().filter(|(_, cell)| cell.end > at) {
                let right = cell.clone();
                cell.end = at;
                cells.insert(at, right);
            }
        }
        let mut gaps = Vec::new();
        let mut next = span.offset;
        for (start, cell) in cells.range(span.offset..span.end()) {
            if next < *start {
                gaps.push((next, *start));
            }
            next = cell.end;
        }
        if next < span.end() {
            gaps.push((next, span.end()));
        }
        for (start, end) in gaps {
            cells.insert(start, AccessedRange { end, ..AccessedRange::default() });
        }
    }
}

fn index(buffer: RankBuffer) -> usize {
    match buffer {
        RankBuffer::Input => 0,
        RankBuffer::Output => 1,
        RankBuffer::Scratch => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(offset: u64, len: u64) -> Span {
        Span { buffer: RankBuffer::Scratch, offset, len }
    }

    #[test]
    fn writes_wait_for_readers_and_reads_wait_for_writers() {
        let mut t = Hazards::default();
        let mut after = Vec::new();
        t.write(span(0, 10), ActionId(0), &mut after);
        t.write(span(10, 10), ActionId(1), &mut after);
        assert_eq!(after, []);
        t.read(span(5, 10), ActionId(2), &mut after);
        assert_eq!(after, [ActionId(0), ActionId(1)]);
        after.clear();
        t.write(span(0, 8), ActionId(3), &mut after);
        assert_eq!(after, [ActionId(0), ActionId(2)]);
    }

    #[test]
    fn a_token_passes_on_its_dependencies() {
        let mut t = Hazards::default();
        let mut after = Vec::new();
        t.write(span(0, 0), ActionId(0), &mut after);
        t.write(span(64, 0), ActionId(1), &mut after);
        t.pass_token(span(64, 0), span(0, 0));
        t.read(span(0, 0), ActionId(2), &mut after);
        assert_eq!(after, [ActionId(0), ActionId(1)]);
    }

    proptest! {
        /// Compares with one record per byte.
        #[test]
        fn dependencies_are_those_of_single_bytes(
            accesses in proptest::collection::vec((any::<bool>(), 0u64..40, 1u64..20), 1..30)
        ) {
            let mut hazards = Hazards::default();
            let mut bytes = vec![(None, Vec::new()); 64];
            for (id, (write, offset, len)) in accesses.into_iter().enumerate() {
                let id = ActionId(id as u32);
                let mut got = Vec::new();
                let mut want = Vec::new();
                for (writer, readers) in &mut bytes[offset as usize..(offset + len) as usize] {
                    if write {
                        if readers.is_empty() { want.extend(*writer); }
                        want.append(readers);
                        *writer = Some(id);
                    } else {
                        want.extend(*writer);
                        readers.push(id);
                    }
                }
                if write {
                    hazards.write(span(offset, len), id, &mut got);
                } else {
                    hazards.read(span(offset, len), id, &mut got);
                }
                for list in [&mut got, &mut want] {
                    list.sort();
                    list.dedup();
                }
                prop_assert_eq!(got, want);
            }
        }
    }
}
