//! The stages that bring values from owners to all ranks or to one, and from one to all.

use crate::cost::LinkBytes;
use crate::error::Error;
use crate::job::Job;
use crate::report::StageKind;
use crate::table::Table;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Instant;

/// The length of a message that its sender could not make.
const FAILED: u64 = u64::MAX;

/// What all ranks have.
struct Combined<T> {
    table: T,
    /// Whether the table is here.
    here: bool,
    /// Of each rank.
    numbers: Vec<u64>,
}

impl Job<'_> {
    /// Gives all ranks what the owners have: the tables of [`Job::regroup`], or whatever was made of them key by key.
    ///
    /// # Errors
    /// If ranks are lost, or a key or value does not become bytes.
    pub fn combine<T: Table>(&self, mine: T) -> Result<T, Error> {
        self.combine_to(None, mine, &[]).map(|all| all.table)
    }

    /// The same, and the sum over all ranks of a number of each, which travels with the lengths of the tables.
    ///
    /// # Errors
    /// As [`Job::combine`].
    pub fn combine_and_count<T: Table>(&self, mine: T, number: u64) -> Result<(T, u64), Error> {
        self.combine_to(None, mine, &[number]).map(|all| (all.table, all.numbers.into_iter().sum()))
    }

    /// The same at one rank only; others get nothing.
    ///
    /// # Errors
    /// If there is no such rank, ranks are lost, or a key or value does not become bytes.
    pub fn combine_at<T: Table>(&self, rank: usize, mine: T) -> Result<Option<T>, Error> {
        let all = self.combine_to(Some(rank), mine, &[])?;
        Ok(all.here.then_some(all.table))
    }

    fn combine_to<T: Table>(
        &self,
        root: Option<usize>,
        mine: T,
        number: &[u64],
    ) -> Result<Combined<T>, Error> {
        let start = Instant::now();
        let here = root.is_none_or(|root| root == self.rank());
        let Some(comm) = self.comm() else {
            self.note(StageKind::Combine, start, mine.len(), 0, LinkBytes::default());
            return Ok(Combined { table: mine, here, numbers: number.to_vec() });
        };
        let bytes = mine.to_bytes(1).map(|mut pieces| pieces.swap_remove(0));
        let length = bytes.as_ref().map_or(FAILED, |bytes| bytes.len() as u64);
        let told = self.allgather(&[&[length], number].concat())?;
        let each = told.chunks_exact(1 + number.len());
        let (lengths, numbers): (Vec<u64>, _) =
            (each.clone().map(|rank| rank[0]).collect(), each.flat_map(|rank| rank[1..].to_vec()).collect());
        let bytes = bytes?;
        self.none_failed(&lengths)?;
        let counts: Vec<usize> = lengths.iter().map(|length| *length as usize).collect();
        let mut all = vec![0; if here { counts.iter().sum() } else { 0 }];
        let links = match root {
            None => {
                self.noticing(comm.allgatherv(&bytes, &mut all, &counts))?;
                self.layout().to_all(&lengths)
            }
            Some(root) => {
                self.noticing(comm.gatherv(&bytes, &mut all, &counts, root))?;
                self.layout().exchange(|from, to| if to == root { lengths[from] } else { 0 })
            }
        };
        let (mut table, mut rest) = (mine.empty(), &all[..]);
        for (rank, count) in counts.iter().enumerate().filter(|_| here) {
            let (part, more) = rest.split_at(*count);
            table.merge_bytes(part).map_err(|source| Error::Table { rank, source })?;
            rest = more;
        }
        self.note(StageKind::Combine, start, table.len(), bytes.len() as u64, links);
        Ok(Combined { table, here, numbers })
    }

    /// Gives all ranks a value of rank `root`; what others pass is not looked at.
    ///
    /// # Errors
    /// If there is no such rank, ranks are lost, or the value does not become bytes and back.
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

    /// Gives all ranks a table of rank `root`: of rows that stand for a state, those that changed are enough. Others
    /// pass one of the same kind, whose values are not looked at.
    ///
    /// # Errors
    /// If there is no such rank, ranks are lost, or a key or value does not become bytes.
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
        self.none_failed(&lengths)?;
        bytes.resize(length[0] as usize, 0);
        self.call(|comm| comm.bcast(&mut bytes, root))?;
        let sent = if self.rank() == root { length[0] } else { 0 };
        self.note(StageKind::Broadcast, start, 0, sent, self.layout().to_all(&lengths));
        Ok(bytes)
    }

    fn none_failed(&self, lengths: &[u64]) -> Result<(), Error> {
        match lengths.iter().position(|length| *length == FAILED) {
            Some(rank) => Err(Error::Elsewhere { rank, message: "a value cannot be sent".into() }),
            None => Ok(()),
        }
    }
}
