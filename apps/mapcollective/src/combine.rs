//! The stages that move values from owners to all ranks or to one rank, and from one rank to all.

use crate::error::Error;
use crate::job::Job;
use crate::link_load::{LinkBytes, share};
use crate::report::StageKind;
use crate::table::{Number, Rows, Table};
use cool::Comm;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::Range;
use std::sync::mpsc;
use std::time::Instant;

/// Is sent instead of the length of a message that its sender could not serialize.
const FAILED: u64 = u64::MAX;

/// Maximum number of parts of [`Job::combine_in_parts`].
const MOST_PARTS: u64 = 8;

impl Job<'_> {
    /// Returns the merged tables of all owners at every rank. `mine` must contain values of this
    /// rank's own keys, for example the table that [`Job::regroup`] returned.
    ///
    /// # Errors
    /// If ranks are lost, or a key or value cannot be serialized.
    pub fn combine<T: Table>(&self, mine: T) -> Result<T, Error> {
        self.combine_to(None, mine)
    }

    /// Does the same as [`Job::combine`], but returns the table at one rank only, and `None` at the
    /// others.
    ///
    /// # Errors
    /// If there is no such rank, ranks are lost, or a key or value cannot be serialized.
    pub fn combine_at<T: Table>(&self, rank: usize, mine: T) -> Result<Option<T>, Error> {
        let all = self.combine_to(Some(rank), mine)?;
        Ok((rank == self.rank()).then_some(all))
    }

    fn combine_to<T: Table>(&self, root: Option<usize>, mine: T) -> Result<T, Error> {
        let start = Instant::now();
        let Some(comm) = self.comm() else {
            self.record_stage(StageKind::Combine, start, mine.len(), 0, LinkBytes::default());
            return Ok(mine);
        };
        let bytes = mine.to_bytes(1).map(|mut pieces| pieces.swap_remove(0));
        let lengths = self.allgather(&[bytes.as_ref().map_or(FAILED, |bytes| bytes.len() as u64)])?;
        let bytes = bytes?;
        self.check_none_failed(&lengths)?;
        let piece = RankPieces { bytes, counts: lengths.iter().map(|length| *length as usize).collect() };
        let mut table = mine.empty();
        let links = match root {
            None => {
                piece.merge(&self.record_loss(piece.to_all(comm))?, &mut table)?;
                self.layout().to_all(&lengths)
            }
            Some(root) => {
                let here = root == self.rank();
                let mut all = vec![0; if here { piece.counts.iter().sum() } else { 0 }];
                self.record_loss(comm.gatherv(&piece.bytes, &mut all, &piece.counts, root))?;
                if here {
                    piece.merge(&all, &mut table)?;
                }
                self.layout().exchange(|from, to| if to == root { lengths[from] } else { 0 })
            }
        };
        self.record_stage(StageKind::Combine, start, table.len(), piece.bytes.len() as u64, links);
        Ok(table)
    }

    /// Does the same as [`Job::combine`], but in parts if there are many rows, and passes each part
    /// to `take`, which processes it while the next parts are in transit. `take` receives the rows
    /// of the part, and the ranges of row numbers that the part covers; no other part covers them.
    /// `mine` must contain only rows that this rank owns, because others may be omitted. Returns
    /// the sum of `number` over all ranks, which needs no additional message.
    ///
    /// # Errors
    /// See [`Job::combine`].
    pub fn combine_in_parts<N: Number>(
        &self,
        mine: Rows<N>,
        number: u64,
        mut take: impl FnMut(Rows<N>, &[Range<usize>]),
    ) -> Result<u64, Error> {
        let (start, rows, keys) = (Instant::now(), mine.len(), mine.keys());
        let Some(comm) = self.comm().filter(|comm| comm.size() > 1) else {
            take(mine, std::slice::from_ref(&(0..keys)));
            self.record_stage(StageKind::Combine, start, rows, 0, LinkBytes::default());
            return Ok(number);
        };
        let whole = mine.to_bytes(1)?.swap_remove(0);
        let bytes = whole.len() as u64;
        let reported = self.allgather(&[bytes, number])?;
        let (reported, _) = reported.as_chunks::<2>();
        let lengths: Vec<u64> = reported.iter().map(|[length, _]| *length).collect();
        let count = (lengths.iter().sum::<u64>() / self.options.part.max(1)).clamp(1, MOST_PARTS) as usize;
        let pieces = self.split_into_parts(&mine, whole, &lengths, count)?;
        let parts = self.size() * count;
        self.exchange_in_turn(comm, &pieces, |i, all| {
            let mut part = mine.empty();
            pieces[i].merge(&all, &mut part)?;
            let runs: Vec<_> = (i..parts).step_by(count).map(|run| share(keys, parts, run)).collect();
            take(part, &runs);
            Ok(())
        })?;
        self.record_stage(StageKind::Combine, start, rows, bytes, self.layout().to_all(&lengths));
        Ok(reported.iter().map(|[_, number]| number).sum())
    }

    /// Returns this rank's piece of each part. A part contains one run of each owner's rows.
    fn split_into_parts<N: Number>(
        &self,
        mine: &Rows<N>,
        whole: Vec<u8>,
        lengths: &[u64],
        count: usize,
    ) -> Result<Vec<RankPieces>, Error> {
        let counts =
            |lengths: &mut dyn Iterator<Item = &u64>| lengths.map(|length| *length as usize).collect();
        if count == 1 {
            return Ok(vec![RankPieces { bytes: whole, counts: counts(&mut lengths.iter()) }]);
        }
        drop(whole);
        let parts = mine.to_bytes(self.size() * count)?.into_iter().skip(self.rank() * count).take(count);
        let parts: Vec<Vec<u8>> = parts.collect();
        let lengths: Vec<u64> = parts.iter().map(|part| part.len() as u64).collect();
        let lengths = self.allgather(&lengths)?;
        let piece =
            |(i, bytes)| RankPieces { bytes, counts: counts(&mut lengths.iter().skip(i).step_by(count)) };
        Ok(parts.into_iter().enumerate().map(piece).collect())
    }

    /// Sends one piece after the other to all ranks, and passes each to `take` while the next ones
    /// are in transit.
    fn exchange_in_turn(
        &self,
        comm: &Comm,
        pieces: &[RankPieces],
        mut take: impl FnMut(usize, Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let [piece] = pieces {
            return take(0, self.record_loss(piece.to_all(comm))?);
        }
        std::thread::scope(|scope| {
            let (done, arrived) = mpsc::channel();
            scope.spawn(move || {
                for piece in pieces {
                    let all = piece.to_all(comm);
                    let failed = all.is_err();
                    // If the receiver has stopped because of bad data, the exchange must continue,
                    // because other ranks wait for it.
                    let _ignored = done.send(all);
                    if failed {
                        return;
                    }
                }
            });
            arrived.into_iter().enumerate().try_for_each(|(i, all)| take(i, self.record_loss(all)?))
        })
    }

    /// Returns the value of rank `root` at every rank. The values of other ranks are ignored.
    ///
    /// # Errors
    /// If there is no such rank, ranks are lost, or the value cannot be serialized and
    /// deserialized.
    pub fn broadcast<V: Serialize + DeserializeOwned>(
        &self,
        root: usize,
        value: Option<V>,
    ) -> Result<V, Error> {
        let bytes = match value.filter(|_| self.rank() == root) {
            Some(value) => postcard::to_allocvec(&value).map_err(Error::Value),
            None => Ok(Vec::new()),
        };
        let bytes = self.broadcast_bytes(root, bytes)?;
        postcard::from_bytes(&bytes).map_err(Error::Value)
    }

    /// Returns the table of rank `root` at every rank. If it represents a state, it need only
    /// contain the rows that have changed, provided that the receivers know the others. Other ranks
    /// must pass a table of the same shape; its values are ignored.
    ///
    /// # Errors
    /// If there is no such rank, ranks are lost, or a key or value cannot be serialized.
    pub fn broadcast_table<T: Table>(&self, root: usize, table: T) -> Result<T, Error> {
        let bytes = if self.rank() == root { table.to_bytes(1).map(|p| p.concat()) } else { Ok(Vec::new()) };
        let bytes = self.broadcast_bytes(root, bytes)?;
        if self.rank() == root {
            return Ok(table);
        }
        let mut table = table.empty();
        table.merge_bytes(&bytes).map_err(|source| Error::Table { rank: root, source })?;
        Ok(table)
    }

    fn broadcast_bytes(&self, root: usize, bytes: Result<Vec<u8>, Error>) -> Result<Vec<u8>, Error> {
        let start = Instant::now();
        let mut length = [bytes.as_ref().map_or(FAILED, |bytes| bytes.len() as u64)];
        self.call(|comm| comm.bcast(&mut length, root))?;
        let mut bytes = bytes?;
        let mut lengths = vec![0; self.size()];
        lengths[root] = length[0];
        self.check_none_failed(&lengths)?;
        bytes.resize(length[0] as usize, 0);
        self.call(|comm| comm.bcast(&mut bytes, root))?;
        let sent = if self.rank() == root { length[0] } else { 0 };
        self.record_stage(StageKind::Broadcast, start, 0, sent, self.layout().to_all(&lengths));
        Ok(bytes)
    }

    fn check_none_failed(&self, lengths: &[u64]) -> Result<(), Error> {
        match lengths.iter().position(|length| *length == FAILED) {
            Some(rank) => Err(Error::Elsewhere { rank, message: "a value cannot be serialized".into() }),
            None => Ok(()),
        }
    }
}

/// The bytes that this rank sends to all others, and the number of bytes of each rank.
struct RankPieces {
    bytes: Vec<u8>,
    counts: Vec<usize>,
}

impl RankPieces {
    /// Returns the bytes of all ranks.
    fn to_all(&self, comm: &Comm) -> Result<Vec<u8>, cool::Error> {
        let mut all = vec![0; self.counts.iter().sum()];
        comm.allgatherv(&self.bytes, &mut all, &self.counts)?;
        Ok(all)
    }

    /// Merges the bytes of all ranks into a table.
    fn merge<T: Table>(&self, mut all: &[u8], table: &mut T) -> Result<(), Error> {
        for (rank, count) in self.counts.iter().enumerate() {
            let (part, more) = all.split_at(*count);
            table.merge_bytes(part).map_err(|source| Error::Table { rank, source })?;
            all = more;
        }
        Ok(())
    }
}
