//! The regroup stage: values move to the ranks that own their keys and are merged there, by the
//! method that puts the least load on the busiest link. All methods return the same bits.
//!
//! 1. Where ranks share nodes, the first rank of each node merges the tables of the node's ranks.
//! 2. All ranks exchange how many bytes they have for each owner. From these numbers, every rank
//!    computes the load of each method.
//! 3. If links between racks would be the busiest, the ranks of each rack first merge their tables,
//!    and each rank merges the keys of some owners (the papers' aggregation in stages, with the
//!    rack as the stage between node and cluster). Then all ranks exchange the numbers again.
//! 4. Either each rank sends its keys with values directly to their owners (sparse), or the agents
//!    sum vectors with a value for every key on the way to the owners (dense), whichever loads the
//!    busiest link less.

use crate::error::{Error, Malformed};
use crate::job::Job;
use crate::link_load::LinkBytes;
use crate::map::Mapped;
use crate::merge_forest::{MergeForest, MergeNode};
use crate::report::StageKind;
use crate::table::Table;
use cool::Comm;
use std::collections::BTreeMap;
use std::time::Instant;

/// Is sent instead of a magnitude if the agents cannot sum the table.
const NO_MAGNITUDE: u64 = u64::MAX;

/// Is sent instead of sizes if a table cannot be serialized.
const FAILED: u64 = u64::MAX - 1;

impl Job<'_> {
    /// Collects the values of each key at the rank that owns it, merged in the order of partitions.
    /// Returns the keys that this rank owns, with their values.
    ///
    /// # Errors
    /// If ranks are lost, or a key or value cannot be serialized.
    pub fn regroup<T: Table>(&self, mapped: Mapped<T>) -> Result<T, Error> {
        let mapped = self.merge_on_node(mapped)?;
        let mut start = Instant::now();
        let Some(comm) = self.comm() else {
            let Mapped { empty, forest } = mapped;
            let mine = forest.into_root(&empty).map_err(|source| Error::Table { rank: 0, source })?;
            self.record_stage(StageKind::RegroupSparse, start, mine.len(), 0, LinkBytes::default());
            return Ok(mine);
        };
        let mut counted = self.count(comm, mapped)?;
        if self.should_merge_in_rack(&counted) {
            let merged = self.merge_in_rack(start, counted)?;
            start = Instant::now();
            counted = self.count(comm, merged)?;
        }
        let counts = counted.sizes.links(self);
        let (kind, links, bytes) = match self.dense_links(&counted) {
            Some(dense) if dense.busiest() < counted.links(self).busiest() => {
                let bytes = counted.empty.dense_bytes(counted.sizes.magnitude);
                (StageKind::RegroupDense, dense, bytes - bytes / self.size() as u64)
            }
            _ => {
                let own = counted.pieces[self.rank()].len();
                let bytes = counted.pieces.iter().map(Vec::len).sum::<usize>() - own;
                (StageKind::RegroupSparse, counted.links(self), bytes as u64)
            }
        };
        let mine = match kind {
            StageKind::RegroupDense => self.dense(comm, counted)?,
            _ => self.sparse(comm, counted)?,
        };
        self.record_stage(kind, start, mine.len(), bytes, LinkBytes::sum([&counts, &links]));
        Ok(mine)
    }

    /// Serializes the tables for each owner, and exchanges the sizes between all ranks.
    fn count<T: Table>(&self, comm: &Comm, mapped: Mapped<T>) -> Result<CountedTables<T>, Error> {
        let Mapped { empty, forest } = mapped;
        let (leaves, tables) = (forest.leaves(), forest.into_tables());
        let magnitude = if T::ANY_ORDER {
            tables.values().next().unwrap_or(&empty).magnitude().unwrap_or(NO_MAGNITUDE)
        } else {
            NO_MAGNITUDE
        };
        let pieces = pieces(&tables, comm.size());
        let sizes = self.exchange_sizes(pieces.as_deref(), magnitude)?;
        Ok(CountedTables { empty, leaves, tables, pieces: pieces?, sizes })
    }

    /// Returns the load of links of the dense method, or `None` if the agents cannot sum the
    /// tables.
    fn dense_links<T: Table>(&self, counted: &CountedTables<T>) -> Option<LinkBytes> {
        let magnitude = counted.sizes.magnitude;
        (magnitude != NO_MAGNITUDE)
            .then(|| self.layout().reduce_scatter(counted.empty.dense_bytes(magnitude)))
    }

    /// Returns whether the ranks of a rack should merge their tables before sending. They should if
    /// the load of the busiest node link, including the second exchange of sizes, would then be
    /// less than the load of the busiest link otherwise. Tables that must be merged in the order of
    /// partitions are excluded, because hardly any of them can be merged before the owner.
    fn should_merge_in_rack<T: Table>(&self, counted: &CountedTables<T>) -> bool {
        if !T::ANY_ORDER {
            return false;
        }
        let bytes = |from, to| counted.sizes.get(from, to);
        let straight = counted.links(self).busiest();
        let without = self.dense_links(counted).map_or(straight, |dense| dense.busiest().min(straight));
        let links = [self.layout().mergers_gather(bytes), self.layout().mergers_send(bytes)];
        LinkBytes::sum(links.iter().chain([&counted.sizes.links(self)])).busiest_of_nodes() < without
    }

    /// Merges the tables of a rack's ranks. Each rank merges the keys of some owners.
    fn merge_in_rack<T: Table>(&self, start: Instant, counted: CountedTables<T>) -> Result<Mapped<T>, Error> {
        let CountedTables { empty, leaves, tables, pieces, sizes } = counted;
        drop(tables);
        let Some(rack) = self.in_rack()? else { return Ok(Mapped::new(empty, leaves)) };
        let (mates, mergers) =
            (self.layout().ranks_in_rack_of(self.rank()), self.layout().mergers_for(self.rank()));
        let owners_by = |mate: &usize| (0..mergers.len()).filter(|owner| mergers[*owner] == *mate).collect();
        let owners: Vec<Vec<usize>> = mates.iter().map(owners_by).collect();
        let piece = |owners: &Vec<usize>| owners.iter().flat_map(|owner| &pieces[*owner]).copied().collect();
        let for_mates: Vec<Vec<u8>> = owners.iter().map(piece).collect();
        drop(pieces);
        let count = |from: usize, to: usize| -> u64 {
            owners[to].iter().map(|owner| sizes.get(mates[from], *owner)).sum()
        };
        let bytes = (0..mates.len()).filter(|to| *to != rack.rank()).map(|to| count(rack.rank(), to)).sum();
        let merged = self.deliver(rack, &mates, Mapped::new(empty, leaves), for_mates, count)?;
        let links = [sizes.links(self), self.layout().mergers_gather(|from, to| sizes.get(from, to))];
        self.record_stage(StageKind::MergeInRack, start, merged.forest.rows(), bytes, LinkBytes::sum(&links));
        Ok(merged)
    }

    /// Merges the tables of a node's ranks at the first of them. The other ranks return a result
    /// without tables.
    fn merge_on_node<T: Table>(&self, mapped: Mapped<T>) -> Result<Mapped<T>, Error> {
        let Some(node) = self.on_node()? else { return Ok(mapped) };
        let start = Instant::now();
        let Mapped { empty, forest } = mapped;
        let (leaves, tables) = (forest.leaves(), forest.into_tables());
        let first = node.rank() == 0;
        let piece =
            if first { Ok(Vec::new()) } else { pieces(&tables, 1).map(|mut pieces| pieces.swap_remove(0)) };
        let piece = self.agree(piece)?;
        let length = piece.len() as u64;
        let mut lengths = vec![0u64; node.size()];
        self.record_loss(node.allgather(&[length], &mut lengths))?;
        let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
        let mut all = vec![0; if first { lengths.iter().sum() } else { 0 }];
        self.record_loss(node.gatherv(&piece, &mut all, &lengths, 0))?;
        let merged = Mapped::new(empty, leaves);
        if !first {
            self.record_stage(StageKind::MergeOnNode, start, 0, length, LinkBytes::default());
            return Ok(merged);
        }
        tables.into_iter().for_each(|(at, table)| merged.forest.insert(at, table));
        let ranks = self.ranks_on_node();
        read(&merged.empty, &merged.forest, &all, &lengths, |from| ranks[from])?;
        self.record_stage(StageKind::MergeOnNode, start, merged.forest.rows(), length, LinkBytes::default());
        Ok(merged)
    }

    /// Exchanges the sizes of all ranks' pieces. Returns the number of bytes from each rank to each
    /// rank.
    fn exchange_sizes(
        &self,
        pieces: Result<&[Vec<u8>], &Error>,
        magnitude: u64,
    ) -> Result<PieceSizes, Error> {
        let ranks = self.size();
        let mine = match pieces {
            Ok(pieces) => pieces.iter().map(|piece| piece.len() as u64).chain([magnitude]).collect(),
            Err(_) => vec![FAILED; ranks + 1],
        };
        let all = self.allgather(&mine)?;
        let failed = (0..ranks).find(|rank| all[*rank * (ranks + 1)] == FAILED);
        if let (Some(rank), Ok(_)) = (failed, pieces) {
            return Err(Error::Elsewhere { rank, message: "a value cannot be serialized".into() });
        }
        let magnitudes = all.iter().skip(ranks).step_by(ranks + 1);
        let magnitude = magnitudes.fold(0, |sum: u64, magnitude| sum.saturating_add(*magnitude));
        Ok(PieceSizes { ranks, all, magnitude })
    }

    fn dense<T: Table>(&self, comm: &Comm, counted: CountedTables<T>) -> Result<T, Error> {
        let CountedTables { empty, mut tables, sizes, .. } = counted;
        let table = tables.pop_first().map_or(empty, |(_, table)| table);
        match table.reduce_scatter(comm, sizes.magnitude) {
            Err(Error::Collective(error)) => self.record_loss(Err(error)),
            done => done,
        }
    }

    fn sparse<T: Table>(&self, comm: &Comm, counted: CountedTables<T>) -> Result<T, Error> {
        let CountedTables { empty, leaves, tables, pieces, sizes } = counted;
        drop(tables);
        let ranks: Vec<usize> = (0..sizes.ranks).collect();
        let bytes = |from, to| sizes.get(from, to);
        let Mapped { empty, forest } =
            self.deliver(comm, &ranks, Mapped::new(empty, leaves), pieces, bytes)?;
        forest.into_root(&empty).map_err(|source| Error::Table { rank: self.rank(), source })
    }

    /// Sends one piece to each rank of `group`. `ranks` must contain their numbers in the job.
    /// Merges the received pieces and this rank's own into `merged`, and returns it. `bytes(from,
    /// to)` must return the size of the piece that rank `from` of the group sends to its rank `to`.
    fn deliver<T: Table>(
        &self,
        group: &Comm,
        ranks: &[usize],
        merged: Mapped<T>,
        mut pieces: Vec<Vec<u8>>,
        bytes: impl Fn(usize, usize) -> u64,
    ) -> Result<Mapped<T>, Error> {
        let own = std::mem::take(&mut pieces[group.rank()]);
        let send = pieces.concat();
        drop(pieces);
        let count = |from, to| if from == to { 0 } else { bytes(from, to) as usize };
        let all = 0..ranks.len();
        let counts: Vec<usize> = all
            .clone()
            .flat_map(|from| all.clone().map(move |to| (from, to)))
            .map(|(from, to)| count(from, to))
            .collect();
        let from: Vec<usize> = all.map(|from| count(from, group.rank())).collect();
        let mut recv = vec![0; from.iter().sum()];
        self.record_loss(group.alltoallv(&send, &mut recv, &counts))?;
        drop(send);
        read(&merged.empty, &merged.forest, &own, &[own.len()], |_| self.rank())?;
        drop(own);
        read(&merged.empty, &merged.forest, &recv, &from, |from| ranks[from])?;
        Ok(merged)
    }
}

/// Tables in serialized form, and the sizes of all ranks' pieces.
struct CountedTables<T> {
    empty: T,
    leaves: usize,
    tables: BTreeMap<MergeNode, T>,
    /// For each owner, the serialized parts of all tables.
    pieces: Vec<Vec<u8>>,
    sizes: PieceSizes,
}

impl<T> CountedTables<T> {
    /// Returns the load of links if the pieces are sent directly to the owners.
    fn links(&self, job: &Job<'_>) -> LinkBytes {
        job.layout().exchange(|from, to| self.sizes.get(from, to))
    }
}

/// Number of bytes from each rank to each rank.
struct PieceSizes {
    ranks: usize,
    /// For each rank, its number of bytes for each rank, followed by the magnitude of its table.
    all: Vec<u64>,
    /// The sum of all ranks' magnitudes, which is an upper limit of the magnitude of every sum.
    magnitude: u64,
}

impl PieceSizes {
    fn get(&self, from: usize, to: usize) -> u64 {
        self.all[from * (self.ranks + 1) + to]
    }

    /// Returns the load of links that the exchange of the sizes has caused.
    fn links(&self, job: &Job<'_>) -> LinkBytes {
        job.layout().to_all(&vec![(size_of::<u64>() * (self.ranks + 1)) as u64; self.ranks])
    }
}

/// Serializes the tables of several nodes of the tree into one piece per owner. Each table is
/// preceded by a header with its node and its length. Empty tables that can be merged in any order
/// are omitted.
fn pieces<T: Table>(tables: &BTreeMap<MergeNode, T>, owners: usize) -> Result<Vec<Vec<u8>>, Error> {
    let mut pieces = vec![Vec::new(); owners];
    for (node, table) in tables {
        for (piece, bytes) in pieces.iter_mut().zip(table.to_bytes(owners)?) {
            if !T::ANY_ORDER || !bytes.is_empty() {
                let head = (node.level, node.index, bytes.len() as u64);
                *piece = postcard::to_extend(&head, std::mem::take(piece)).map_err(Error::Value)?;
                piece.extend_from_slice(&bytes);
            }
        }
    }
    Ok(pieces)
}

/// Merges the pieces of several ranks into a forest. `bytes` must contain the pieces one after the
/// other, with the given lengths. `rank` must return the job's rank that sent a piece, for errors.
fn read<T: Table>(
    empty: &T,
    forest: &MergeForest<T>,
    mut bytes: &[u8],
    lengths: &[usize],
    rank: impl Fn(usize) -> usize,
) -> Result<(), Error> {
    for (from, length) in lengths.iter().enumerate() {
        let (piece, rest) = bytes.split_at(*length);
        read_piece(empty, forest, piece).map_err(|source| Error::Table { rank: rank(from), source })?;
        bytes = rest;
    }
    Ok(())
}

/// Merges the piece of one rank.
fn read_piece<T: Table>(empty: &T, forest: &MergeForest<T>, mut bytes: &[u8]) -> Result<(), Malformed> {
    while !bytes.is_empty() {
        let ((level, index, length), rest) = postcard::take_from_bytes::<(u8, u32, u64)>(bytes)?;
        let node = MergeNode { level, index };
        if !forest.has(node) || T::ANY_ORDER && node != forest.root() {
            return Err(Malformed::Partitions);
        }
        let length = usize::try_from(length).map_err(|_| Malformed::Short)?;
        let (table, rest) = rest.split_at_checked(length).ok_or(Malformed::Short)?;
        forest.insert_bytes(node, empty, table)?;
        bytes = rest;
    }
    Ok(())
}
