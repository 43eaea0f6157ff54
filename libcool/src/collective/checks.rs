//! Whether a collective's arguments make sense for a rank, and the words for it when not.

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

    fn apart(
        self,
        collective: &Collective<'_, '_>,
        send: Option<&Array<'_>>,
        recv: Option<&ArrayMut<'_>>,
    ) -> Result<Use, Reason> {
        let (at_root, counts) = (collective.root_of(self), collective.counts);
        let length = |name: &'static str, len: Option<usize>| match len {
            Some(len) => Ok((name, len)),
            None => Err(format!("{name} is missing")),
        };
        let send_len = || length("send", send.map(Array::len));
        let recv_len = || length("recv", recv.map(ArrayMut::len));
        let all = send.map(|s| 0..s.bytes.len());
        match (collective.operation, counts) {
            (Operation::Bcast, _) => Err("it takes one array, not two".into()),
            (Operation::Barrier, _) => Err("it takes no arrays".into()),
            (Operation::Reduce, _) => {
                let send = send_len()?;
                if at_root {
                    same_length(send, recv_len()?)?;
                }
                Ok((all, at_root, send.1))
            }
            (Operation::Allreduce | Operation::Scan, _) => {
                same_length(send_len()?, recv_len()?)?;
                Ok((all, true, send_len()?.1))
            }
            (Operation::Exscan, _) => {
                same_length(send_len()?, recv_len()?)?;
                // Rank 0 has none before it.
                Ok((all, self.rank > 0, send_len()?.1))
            }
            (Operation::Gather, None) => {
                if at_root {
                    self.parts(recv_len()?, send_len()?)?;
                }
                Ok((all, at_root, send_len()?.1))
            }
            (Operation::Gather, Some(counts)) => {
                self.own_part(send_len()?, counts)?;
                if at_root {
                    sum_of_counts(recv_len()?, counts)?;
                }
                Ok((all, at_root, 0))
            }
            (Operation::Allgather, None) => {
                self.parts(recv_len()?, send_len()?)?;
                Ok((all, true, send_len()?.1))
            }
            (Operation::Allgather, Some(counts)) => {
                self.own_part(send_len()?, counts)?;
                sum_of_counts(recv_len()?, counts)?;
                Ok((all, true, 0))
            }
            (Operation::Scatter, None) => {
                if at_root {
                    self.parts(send_len()?, recv_len()?)?;
                }
                Ok((all.filter(|_| at_root), true, recv_len()?.1))
            }
            (Operation::Scatter, Some(counts)) => {
                self.own_part(recv_len()?, counts)?;
                if at_root {
                    sum_of_counts(send_len()?, counts)?;
                }
                Ok((all.filter(|_| at_root), true, 0))
            }
            (Operation::ReduceScatter, None) => {
                self.parts(send_len()?, recv_len()?)?;
                Ok((all, true, recv_len()?.1))
            }
            (Operation::ReduceScatter, Some(counts)) => {
                self.own_part(recv_len()?, counts)?;
                sum_of_counts(send_len()?, counts)?;
                Ok((all, true, 0))
            }
            (Operation::Alltoall, None) => {
                let part = self.equal_parts(send_len()?)?;
                same_length(send_len()?, recv_len()?)?;
                Ok((all, true, part))
            }
            (Operation::Alltoall, Some(counts)) => {
                let pairs = self.size.saturating_mul(self.size);
                counted(counts.len(), ("one for each pair of ranks", pairs))?;
                sum_of_counts(send_len()?, &counts[self.rank * self.size..][..self.size])?;
                sum_of_counts(recv_len()?, counts.iter().skip(self.rank).step_by(self.size))?;
                Ok((all, true, 0))
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
    fn parts(self, whole: (&str, usize), part: (&str, usize)) -> Result<(), Reason> {
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
    fn equal_parts(self, (name, len): (&str, usize)) -> Result<usize, Reason> {
        let Caller { size, .. } = self;
        if len.is_multiple_of(size) {
            return Ok(len / size);
        }
        Err(format!("{name} has {len} elements, which are not {size} equal parts, one for each rank"))
    }

    /// There is a count for each rank, and an array is as long as this rank's.
    fn own_part(self, array: (&str, usize), counts: &[usize]) -> Result<(), Reason> {
        counted(counts.len(), (ONE_EACH, self.size))?;
        sum_of_counts(array, &counts[self.rank..=self.rank])
    }
}

/// How many counts there must be, in words.
const ONE_EACH: &str = "one for each rank";

fn same_length(send: (&str, usize), recv: (&str, usize)) -> Result<(), Reason> {
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
