//! The regroup stage: values go to the ranks that own their keys, and meet there. Three steps, of which a job needs
//! the first only where ranks share nodes:
//!
//! 1. The first rank of each node merges what the node's ranks have.
//! 2. Ranks tell each other how many bytes each has for whom, so all know what each way costs.
//! 3. Either only keys that have values go, straight to their owners (sparse), or, if that is more, whole
//!    vectors of all keys are added up by the agents on their way (dense). The result is the same bits.

use crate::error::{Error, Malformed};
use crate::job::Job;
use crate::map::Mapped;
use crate::report::StageKind;
use crate::table::Table;
use crate::tree::{Forest, Node};
use cool::Comm;
use std::collections::BTreeMap;
use std::time::Instant;

/// What ranks tell each other of a table that the agents cannot add up.
const NO_MAGNITUDE: u64 = u64::MAX;

/// What a rank tells the others when its table does not become bytes.
const FAILED: u64 = u64::MAX - 1;

impl Job<'_> {
    /// Brings the values of each key together at the rank that owns it, merged in the order of partitions; this rank's
    /// keys with their values.
    ///
    /// # Errors
    /// If ranks are lost, or a key or value does not become bytes.
    pub fn regroup<T: Table>(&self, mapped: Mapped<T>) -> Result<T, Error> {
        let Mapped { empty, forest } = self.merge_on_node(mapped)?;
        let start = Instant::now();
        let Some(comm) = self.comm() else {
            let mine = forest.into_root(&empty).map_err(|source| Error::Table { rank: 0, source })?;
            self.note(StageKind::RegroupSparse, start, mine.len(), 0, 0);
            return Ok(mine);
        };
        let (leaves, mut tables) = (forest.leaves(), forest.into_tables());
        let magnitude = if T::ANY_ORDER {
            tables.values().next().unwrap_or(&empty).magnitude().unwrap_or(NO_MAGNITUDE)
        } else {
            NO_MAGNITUDE
        };
        let pieces = pieces(&tables, comm.size());
        let sizes = self.exchange_sizes(pieces.as_deref(), magnitude)?;
        let pieces = pieces?;
        let (kind, busiest) = self.cheapest(&empty, &sizes);
        let (mine, bytes) = if kind == StageKind::RegroupDense {
            let table = tables.pop_first().map_or(empty, |(_, table)| table);
            let bytes = self.layout().busiest_reduce_scatter(table.dense_bytes(sizes.magnitude));
            (self.dense(comm, table, sizes.magnitude)?, bytes)
        } else {
            drop(tables);
            let bytes =
                pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() - pieces[self.rank()].len() as u64;
            (self.sparse(comm, &empty, leaves, pieces, &sizes)?, bytes)
        };
        self.note(kind, start, mine.len(), bytes, busiest);
        Ok(mine)
    }

    /// Merges the tables of a node's ranks at the first of them; the others are left with none.
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
        self.noticing(node.allgather(&[length], &mut lengths))?;
        let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
        let mut all = vec![0; if first { lengths.iter().sum() } else { 0 }];
        self.noticing(node.gatherv(&piece, &mut all, &lengths, 0))?;
        let merged = Mapped::new(empty, leaves);
        if !first {
            self.note(StageKind::MergeOnNode, start, 0, length, 0);
            return Ok(merged);
        }
        tables.into_iter().for_each(|(at, table)| merged.forest.insert(at, table));
        let ranks = self.ranks_on_node();
        read(&merged.empty, &merged.forest, &all, &lengths, |from| ranks[from])?;
        self.note(StageKind::MergeOnNode, start, merged.forest.rows(), length, 0);
        Ok(merged)
    }

    /// Tells all ranks how many bytes each has for each.
    fn exchange_sizes(&self, pieces: Result<&[Vec<u8>], &Error>, magnitude: u64) -> Result<Sizes, Error> {
        let ranks = self.size();
        let mine = match pieces {
            Ok(pieces) => pieces.iter().map(|piece| piece.len() as u64).chain([magnitude]).collect(),
            Err(_) => vec![FAILED; ranks + 1],
        };
        let all = self.allgather(&mine)?;
        let failed = (0..ranks).find(|rank| all[*rank * (ranks + 1)] == FAILED);
        if let (Some(rank), Ok(_)) = (failed, pieces) {
            return Err(Error::Elsewhere { rank, message: "a value cannot be sent".into() });
        }
        let magnitudes = all.iter().skip(ranks).step_by(ranks + 1);
        let magnitude = magnitudes.fold(0, |sum: u64, magnitude| sum.saturating_add(*magnitude));
        Ok(Sizes { ranks, all, magnitude })
    }

    /// The way that puts less on the busiest link, and what that has to carry; of equal ones, that of fewer bytes in all.
    fn cheapest<T: Table>(&self, empty: &T, sizes: &Sizes) -> (StageKind, u64) {
        let sparse = self.layout().busiest(|from, to| sizes.get(from, to));
        if sizes.magnitude == NO_MAGNITUDE {
            return (StageKind::RegroupSparse, sparse);
        }
        let one = empty.dense_bytes(sizes.magnitude);
        let dense = self.layout().busiest_reduce_scatter(one);
        let total = |rank| (0..sizes.ranks).map(|to| sizes.get(rank, to)).sum::<u64>();
        let all: u64 = (0..sizes.ranks).map(total).sum();
        if (dense, one.saturating_mul(sizes.ranks as u64)) < (sparse, all) {
            (StageKind::RegroupDense, dense)
        } else {
            (StageKind::RegroupSparse, sparse)
        }
    }

    fn dense<T: Table>(&self, comm: &Comm, table: T, magnitude: u64) -> Result<T, Error> {
        match table.reduce_scatter(comm, magnitude) {
            Err(Error::Collective(error)) => self.noticing(Err(error)),
            done => done,
        }
    }

    /// Each piece goes to its owner; this rank's own stays.
    fn sparse<T: Table>(
        &self,
        comm: &Comm,
        empty: &T,
        leaves: usize,
        mut pieces: Vec<Vec<u8>>,
        sizes: &Sizes,
    ) -> Result<T, Error> {
        let own = std::mem::take(&mut pieces[self.rank()]);
        let send = pieces.concat();
        drop(pieces);
        let ranks = 0..sizes.ranks;
        let count = |from, to| if from == to { 0 } else { sizes.get(from, to) as usize };
        let counts: Vec<usize> =
            ranks.clone().flat_map(|from| ranks.clone().map(move |to| count(from, to))).collect();
        let from: Vec<usize> = ranks.map(|from| count(from, self.rank())).collect();
        let mut recv = vec![0; from.iter().sum()];
        self.noticing(comm.alltoallv(&send, &mut recv, &counts))?;
        drop(send);
        let forest = Forest::new(leaves);
        read(empty, &forest, &own, &[own.len()], |_| self.rank())?;
        drop(own);
        read(empty, &forest, &recv, &from, |from| from)?;
        forest.into_root(empty).map_err(|source| Error::Table { rank: self.rank(), source })
    }
}

/// Bytes that each rank has for each.
struct Sizes {
    ranks: usize,
    /// Of each rank: for each rank, and a magnitude.
    all: Vec<u64>,
    /// That no sum over all ranks exceeds.
    magnitude: u64,
}

impl Sizes {
    fn get(&self, from: usize, to: usize) -> u64 {
        self.all[from * (self.ranks + 1) + to]
    }
}

/// The tables of several nodes of the tree as bytes, in one piece for each owner: of each table a head that tells its
/// place and length, then itself. Of tables that merge in any order, empty ones are left out.
fn pieces<T: Table>(tables: &BTreeMap<Node, T>, owners: usize) -> Result<Vec<Vec<u8>>, Error> {
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

/// Adds what several ranks have sent, one after the other, to a forest.
fn read<T: Table>(
    empty: &T,
    forest: &Forest<T>,
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

/// Adds what one rank has sent.
fn read_piece<T: Table>(empty: &T, forest: &Forest<T>, mut bytes: &[u8]) -> Result<(), Malformed> {
    while !bytes.is_empty() {
        let ((level, index, length), rest) = postcard::take_from_bytes::<(u8, u32, u64)>(bytes)?;
        let node = Node { level, index };
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
