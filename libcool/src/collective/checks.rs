//! Whether a collective's arguments make sense for a rank, and the words for it when not. Nothing here looks at another rank:
//! whether ranks call alike is found by their agents.

#[cfg(test)]
mod tests;

use super::{Arrays, Checked, Collective};
use crate::element::{Array, ArrayMut};
use crate::{Operation, Type};
use cool_types::check_reduction;
use std::ops::Range;

/// The caller's place in its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

/// What of the arrays goes out (in bytes), whether something comes in, and the elements that count.
type Use = (Option<Range<usize>>, bool, usize);

/// What is wrong, and what would be right.
type Reason = String;

/// An array's name and its elements.
type Named = (&'static str, usize);

/// One of the two arrays of a call.
#[derive(Clone, Copy)]
struct Side {
    name: &'static str,
    /// Its elements, if it was given.
    len: Option<usize>,
    /// Whether it is looked at, at this rank.
    used: bool,
}

impl Side {
    fn named(self) -> Result<Named, Reason> {
        self.len.map(|len| (self.name, len)).ok_or_else(|| format!("{} is missing", self.name))
    }

    fn if_used(self) -> Result<Option<Named>, Reason> {
        if self.used { self.named().map(Some) } else { Ok(None) }
    }
}

impl<'s, 'r> Collective<'s, 'r> {
    /// Checks all that can be checked at one rank.
    pub(crate) fn check(self, caller: Caller) -> Result<Checked<'s, 'r>, Reason> {
        let root = caller.root(&self)?;
        let dtype = self.element_type(caller)?;
        if self.operation.combines() {
            check_reduction(self.operation, dtype, self.op).map_err(|e| e.to_string())?;
        }
        let (send, receives, count) = match &self.arrays {
            Arrays::None if self.operation == Operation::Barrier => (None, false, 0),
            Arrays::None => return Err("its arrays are missing".into()),
            Arrays::Apart(send, recv) => caller.apart(&self, send.as_ref(), recv.as_ref())?,
            Arrays::InPlace(data) => caller.in_place(&self, data)?,
        };
        Ok(Checked {
            name: self.name(),
            operation: self.operation,
            root,
            op: self.op,
            dtype,
            count: if self.counts.is_some() { 0 } else { count },
            counts: self.counts,
            send,
            receives,
            arrays: self.arrays,
        })
    }

    /// The type of the arrays that are looked at.
    fn element_type(&self, caller: Caller) -> Result<Option<Type>, Reason> {
        let at_root = caller.rank == self.root;
        match &self.arrays {
            Arrays::None => Ok(None),
            Arrays::InPlace(data) => Ok(Some(data.dtype)),
            Arrays::Apart(send, recv) => {
                let send = send.as_ref().filter(|_| self.operation != Operation::Scatter || at_root);
                let to_root = matches!(self.operation, Operation::Reduce | Operation::Gather);
                let recv = recv.as_ref().filter(|_| !to_root || at_root);
                match (send.map(|s| s.dtype), recv.map(|r| r.dtype)) {
                    (Some(send), Some(recv)) if send != recv => {
                        Err(format!("send holds {send}, but recv {recv}; they must be of one type"))
                    }
                    (send, recv) => Ok(send.or(recv)),
                }
            }
        }
    }

    fn root_of(&self, caller: Caller) -> bool {
        self.root == caller.rank
    }
}

impl Caller {
    fn root(self, collective: &Collective<'_, '_>) -> Result<u32, Reason> {
        if !collective.operation.rooted() {
            return Ok(0);
        }
        let root = collective.root;
        match u32::try_from(root) {
            Ok(number) if root < self.size => Ok(number),
            _ => Err(format!("there is no rank {root} to be the root; the ranks are 0 to {}", self.size - 1)),
        }
    }

    /// Checks two arrays, one to send and one to receive.
    fn apart(
        self,
        collective: &Collective<'_, '_>,
        send: Option<&Array<'_>>,
        recv: Option<&ArrayMut<'_>>,
    ) -> Result<Use, Reason> {
        let (operation, at_root) = (collective.operation, collective.root_of(self));
        match operation {
            Operation::Bcast => return Err("it takes one array, not two".into()),
            Operation::Barrier => return Err("it takes no arrays".into()),
            _ => {}
        }
        let sends = operation != Operation::Scatter || at_root;
        let receives = at_root || !matches!(operation, Operation::Reduce | Operation::Gather);
        let send_len = Side { name: "send", len: send.map(Array::len), used: sends };
        let recv_len = Side { name: "recv", len: recv.map(ArrayMut::len), used: receives };
        let count = match collective.counts.filter(|_| operation.takes_counts()) {
            None => self.equal_lengths(operation, send_len, recv_len)?,
            Some(counts) => {
                self.counted_lengths(operation, send_len, recv_len, counts)?;
                0
            }
        };
        // Rank 0 has none before it.
        let receives = receives && !(operation == Operation::Exscan && self.rank == 0);
        Ok((send.filter(|_| sends).map(|s| 0..s.bytes.len()), receives, count))
    }

    /// Checks the arrays of a reduction by a function of the program.
    pub(crate) fn user_op(
        self,
        operation: Operation,
        root: usize,
        send: usize,
        recv: usize,
    ) -> Result<(), Reason> {
        let collective = Collective { root, ..Collective::new(operation, Arrays::None) };
        self.root(&collective)?;
        let receives = operation != Operation::Reduce || collective.root_of(self);
        let send = Side { name: "send", len: Some(send), used: true };
        let recv = Side { name: "recv", len: Some(recv), used: receives };
        self.equal_lengths(operation, send, recv).map(drop)
    }

    /// Checks arrays of vectors, or of equal parts; the elements of a vector or part.
    fn equal_lengths(self, operation: Operation, send: Side, recv: Side) -> Result<usize, Reason> {
        match operation {
            Operation::Gather | Operation::Allgather => {
                let part = send.named()?;
                recv.if_used()?.map_or(Ok(()), |whole| self.parts(whole, part))?;
                Ok(part.1)
            }
            Operation::Scatter | Operation::ReduceScatter => {
                let part = recv.named()?;
                send.if_used()?.map_or(Ok(()), |whole| self.parts(whole, part))?;
                Ok(part.1)
            }
            Operation::Alltoall => {
                let part = self.equal_parts(send.named()?)?;
                same_length(send.named()?, recv.named()?)?;
                Ok(part)
            }
            _ => {
                let vector = send.named()?;
                recv.if_used()?.map_or(Ok(()), |recv| same_length(vector, recv))?;
                Ok(vector.1)
            }
        }
    }

    /// Checks arrays of parts whose lengths `counts` gives.
    fn counted_lengths(
        self,
        operation: Operation,
        send: Side,
        recv: Side,
        counts: &[usize],
    ) -> Result<(), Reason> {
        match operation {
            Operation::Alltoall => {
                let pairs = self.size.saturating_mul(self.size);
                counted(counts.len(), ("one for each pair of ranks", pairs))?;
                sum_of_counts(send.named()?, &counts[self.rank * self.size..][..self.size])?;
                sum_of_counts(recv.named()?, counts.iter().skip(self.rank).step_by(self.size))
            }
            Operation::Scatter | Operation::ReduceScatter => {
                self.own_part(recv.named()?, counts)?;
                send.if_used()?.map_or(Ok(()), |whole| sum_of_counts(whole, counts))
            }
            _ => {
                self.own_part(send.named()?, counts)?;
                recv.if_used()?.map_or(Ok(()), |whole| sum_of_counts(whole, counts))
            }
        }
    }

    fn in_place(self, collective: &Collective<'_, '_>, data: &ArrayMut<'_>) -> Result<Use, Reason> {
        let (at_root, len, element) = (collective.root_of(self), data.len(), data.dtype.bytes());
        let all = Some(0..data.bytes.len());
        match (collective.operation, collective.counts) {
            (Operation::Bcast, _) => Ok((all.filter(|_| at_root), !at_root, len)),
            (Operation::Reduce, _) => Ok((all, at_root, len)),
            (Operation::Allreduce | Operation::Scan, _) => Ok((all, true, len)),
            (Operation::Exscan, _) => Ok((all, self.rank > 0, len)),
            (Operation::Allgather, None) => {
                let part = self.equal_parts(("data", len))?;
                Ok((Some(self.rank * part * element..(self.rank + 1) * part * element), true, part))
            }
            (Operation::Allgather, Some(counts)) => {
                counted(counts.len(), (ONE_EACH, self.size))?;
                sum_of_counts(("data", len), counts)?;
                let start: usize = counts[..self.rank].iter().sum();
                Ok((Some(start * element..(start + counts[self.rank]) * element), true, 0))
            }
            (Operation::Alltoall, None) => {
                let part = self.equal_parts(("data", len))?;
                Ok((all, true, part))
            }
            _ => Err("it cannot be done in place; give it two arrays".into()),
        }
    }

    /// `whole` is an array of `size` times `part`, each with its name and length.
    fn parts(self, whole: Named, part: Named) -> Result<(), Reason> {
        let Caller { size, .. } = self;
        if part.1.checked_mul(size) == Some(whole.1) {
            return Ok(());
        }
        Err(format!(
            "{} has {} elements, but must have {size} times the {} of {}, one part for each rank",
            whole.0, whole.1, part.1, part.0
        ))
    }

    /// An array has `size` equal parts; the length of one.
    fn equal_parts(self, (name, len): Named) -> Result<usize, Reason> {
        let Caller { size, .. } = self;
        if len.is_multiple_of(size) {
            return Ok(len / size);
        }
        Err(format!("{name} has {len} elements, which are not {size} equal parts, one for each rank"))
    }

    /// There is a count for each rank, and an array is as long as this rank's.
    fn own_part(self, array: Named, counts: &[usize]) -> Result<(), Reason> {
        counted(counts.len(), (ONE_EACH, self.size))?;
        sum_of_counts(array, &counts[self.rank..=self.rank])
    }
}

/// How many counts there must be, in words.
const ONE_EACH: &str = "one for each rank";

fn same_length(send: Named, recv: Named) -> Result<(), Reason> {
    if send.1 == recv.1 {
        return Ok(());
    }
    let ((send, s), (recv, r)) = (send, recv);
    Err(format!("{recv} has {r} elements, but {send} has {s}; they must be equally long"))
}

/// There are as many counts as there must be, in words and as a number.
fn counted(counts: usize, (words, wanted): (&str, usize)) -> Result<(), Reason> {
    if counts == wanted {
        return Ok(());
    }
    Err(format!("counts has {counts} numbers, but must have {wanted}, {words}"))
}

/// An array is as long as counts say.
fn sum_of_counts<'c>(
    (name, len): (&str, usize),
    counts: impl IntoIterator<Item = &'c usize>,
) -> Result<(), Reason> {
    let sum = counts.into_iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    match sum {
        Some(sum) if sum == len => Ok(()),
        Some(sum) => Err(format!("{name} has {len} elements, but counts say {sum}")),
        None => Err("the sum of counts is beyond any array".to_owned()),
    }
}
