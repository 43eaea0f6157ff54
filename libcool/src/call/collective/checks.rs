//! Validation of a collective's arguments at one rank, with an explanation of each error.
//!
//! These checks do not depend on other ranks. The agents compare the arguments of all ranks.

#[cfg(test)]
mod tests;

use super::{Arrays, CheckedCollective, Collective};
use crate::element::{ArrayMut, Elements};
use crate::{Operation, Type};
use cool_types::check_reduction;
use std::ops::Range;

/// Rank and group size of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallingRank {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

/// Ranges of the input and of the output, in elements, and the element count of the call.
type UsedRanges = (Option<Range<usize>>, Option<Range<usize>>, usize);

/// Explanation of an error, including the expected value.
type Reason = String;

/// Name and length of an array.
type NamedLength = (&'static str, usize);

/// One of the two arrays of a call.
#[derive(Clone, Copy)]
struct ArrayArgument {
    name: &'static str,
    /// Number of elements, if the array was passed.
    len: Option<usize>,
    /// Whether the array is used at this rank.
    used: bool,
}

impl ArrayArgument {
    fn named(self) -> Result<NamedLength, Reason> {
        self.len.map(|len| (self.name, len)).ok_or_else(|| format!("{} is missing", self.name))
    }

    fn if_used(self) -> Result<Option<NamedLength>, Reason> {
        if self.used { self.named().map(Some) } else { Ok(None) }
    }
}

impl<'s, 'r> Collective<'s, 'r> {
    /// Checks everything that can be checked at one rank, and returns the collective with its byte
    /// ranges.
    pub(crate) fn check(self, caller: CallingRank) -> Result<CheckedCollective<'s, 'r>, Reason> {
        let root = caller.root(&self)?;
        let elements = self.elements(caller)?;
        let dtype = elements.map(Elements::carried_as);
        if self.operation.combines() {
            check_reduction(self.operation, dtype, self.op).map_err(|e| e.to_string())?;
        }
        let pairs = match elements {
            Some(Elements::Pairs(pairs)) if self.operation.combines() => Some(pairs),
            _ => None,
        };
        let checked = self.lay_out(caller, elements.map_or(1, Elements::bytes))?;
        let copies = pairs.is_some() || matches!(checked.arrays, Arrays::Within(..));
        let mut checked = CheckedCollective { root, dtype, pairs, ..checked };
        if copies {
            checked.copy();
        }
        Ok(checked)
    }

    /// Checks a reduction by a function of the program. `element` is the size of an element in
    /// bytes and replaces the element types of the arrays.
    pub(crate) fn check_fold(
        self,
        caller: CallingRank,
        element: usize,
    ) -> Result<CheckedCollective<'s, 'r>, Reason> {
        let root = caller.root(&self)?;
        if !self.operation.combines() {
            return Err(format!("{} is not a reduction", self.operation));
        }
        let (send, recv) = match &self.arrays {
            Arrays::None => (None, None),
            Arrays::Apart(send, recv) => {
                (send.as_ref().map(|s| s.bytes.len()), recv.as_ref().map(|r| r.bytes.len()))
            }
            Arrays::InPlace(data) | Arrays::Within(data, ..) => (None, Some(data.bytes.len())),
        };
        for (name, bytes) in [("send", send), ("recv", recv)] {
            if let Some(bytes) = bytes.filter(|bytes| element == 0 || !bytes.is_multiple_of(element)) {
                return Err(format!(
                    "{name} has {bytes} bytes, which is not a multiple of the element size of {element} bytes"
                ));
            }
        }
        let checked = self.lay_out(caller, element)?;
        Ok(CheckedCollective { root, dtype: Some(Type::U8), ..checked })
    }

    /// Determines the ranges of input and output, in elements of `unit` bytes.
    fn lay_out(self, caller: CallingRank, unit: usize) -> Result<CheckedCollective<'s, 'r>, Reason> {
        let collective = caller.shared_as_in_place(self, unit)?;
        let (send, receive, count) = match &collective.arrays {
            Arrays::None if collective.operation == Operation::Barrier => (None, None, 0),
            Arrays::None => return Err("arrays are missing".into()),
            Arrays::Apart(send, recv) => {
                let send = send.as_ref().map(|send| send.bytes.len() / unit);
                caller.apart(&collective, send, recv.as_ref().map(|recv| recv.bytes.len() / unit))?
            }
            Arrays::InPlace(data) => caller.in_place(&collective, data.bytes.len() / unit)?,
            Arrays::Within(_, send, recv) => {
                let (sent, received, count) =
                    caller.apart(&collective, Some(send.len()), Some(recv.len()))?;
                (sent.map(|_| send.clone()), received.map(|_| recv.clone()), count)
            }
        };
        let in_bytes = |range: Range<usize>| range.start * unit..range.end * unit;
        Ok(CheckedCollective {
            name: collective.name(),
            operation: collective.operation,
            root: 0,
            op: collective.op,
            dtype: None,
            count: if collective.counts.is_some() { 0 } else { count },
            counts: collective.counts,
            pairs: None,
            send: send.map(in_bytes),
            receive: receive.map(in_bytes),
            copied: None,
            arrays: collective.arrays,
        })
    }

    /// Returns the element type of the arrays that are used.
    fn elements(&self, caller: CallingRank) -> Result<Option<Elements>, Reason> {
        let at_root = caller.rank == self.root;
        match &self.arrays {
            Arrays::None => Ok(None),
            Arrays::InPlace(data) | Arrays::Within(data, ..) => Ok(Some(data.elements)),
            Arrays::Apart(send, recv) => {
                let send = send.as_ref().filter(|_| self.operation != Operation::Scatter || at_root);
                let to_root = matches!(self.operation, Operation::Reduce | Operation::Gather);
                let recv = recv.as_ref().filter(|_| !to_root || at_root);
                match (send.map(|s| s.elements), recv.map(|r| r.elements)) {
                    (Some(send), Some(recv)) if send != recv => {
                        Err(format!("send holds {send}, but recv {recv}; they must be of one type"))
                    }
                    (send, recv) => Ok(send.or(recv)),
                }
            }
        }
    }

    fn root_of(&self, caller: CallingRank) -> bool {
        self.root == caller.rank
    }
}

impl CallingRank {
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

    /// Checks separate arrays for input and output.
    fn apart(
        self,
        collective: &Collective<'_, '_>,
        send: Option<usize>,
        recv: Option<usize>,
    ) -> Result<UsedRanges, Reason> {
        let (operation, at_root) = (collective.operation, collective.root_of(self));
        match operation {
            Operation::Bcast => return Err("it takes one array, not two".into()),
            Operation::Barrier => return Err("it takes no arrays".into()),
            _ => {}
        }
        let sends = operation != Operation::Scatter || at_root;
        let receives = at_root || !matches!(operation, Operation::Reduce | Operation::Gather);
        let send_len = ArrayArgument { name: "send", len: send, used: sends };
        let recv_len = ArrayArgument { name: "recv", len: recv, used: receives };
        let count = match collective.counts.filter(|_| operation.takes_counts()) {
            None => self.equal_lengths(operation, send_len, recv_len)?,
            Some(counts) => {
                self.counted_lengths(operation, send_len, recv_len, counts)?;
                0
            }
        };
        // Rank 0 has no predecessors, so it receives nothing.
        let receives = receives && !(operation == Operation::Exscan && self.rank == 0);
        let all = |len: usize| 0..len;
        Ok((send.filter(|_| sends).map(all), recv.filter(|_| receives).map(all), count))
    }

    /// Checks arrays of vectors or of equal parts. Returns the number of elements of a vector or
    /// part.
    fn equal_lengths(
        self,
        operation: Operation,
        send: ArrayArgument,
        recv: ArrayArgument,
    ) -> Result<usize, Reason> {
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

    /// Checks arrays of parts with the lengths in `counts`.
    fn counted_lengths(
        self,
        operation: Operation,
        send: ArrayArgument,
        recv: ArrayArgument,
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

    /// Checks a single array that is both input and output, or is used in only one direction.
    fn in_place(self, collective: &Collective<'_, '_>, len: usize) -> Result<UsedRanges, Reason> {
        let (operation, counts) = (collective.operation, collective.counts);
        let (at_root, all) = (collective.root_of(self), 0..len);
        match operation {
            Operation::Barrier => Err("it takes no arrays".into()),
            Operation::Bcast if at_root => Ok((Some(all), None, len)),
            Operation::Bcast => Ok((None, Some(all), len)),
            Operation::Reduce => Ok((Some(all.clone()), at_root.then_some(all), len)),
            Operation::Allreduce | Operation::Scan => Ok((Some(all.clone()), Some(all), len)),
            Operation::Exscan => Ok((Some(all.clone()), (self.rank > 0).then_some(all), len)),
            Operation::Gather | Operation::Scatter if !at_root => {
                counts.map_or(Ok(()), |counts| self.own_part(("data", len), counts))?;
                let sends = operation == Operation::Gather;
                Ok((sends.then_some(all.clone()), (!sends).then_some(all), len))
            }
            Operation::Gather | Operation::Allgather => {
                let own = self.own_of(("data", len), counts)?;
                Ok((Some(own.clone()), Some(all), own.len()))
            }
            Operation::Scatter => {
                let own = self.own_of(("data", len), counts)?;
                Ok((Some(all), Some(own.clone()), own.len()))
            }
            Operation::ReduceScatter => {
                let own = self.own_of(("data", len), counts)?.len();
                Ok((Some(all), Some(0..own), own))
            }
            Operation::Alltoall => {
                let part = match counts {
                    None => self.equal_parts(("data", len))?,
                    Some(counts) => self.parts_of_both_ways(len, counts)?,
                };
                Ok((Some(all.clone()), Some(all), part))
            }
        }
    }

    /// Returns the range of this rank's part in an array of all parts.
    fn own_of(self, whole: NamedLength, counts: Option<&[usize]>) -> Result<Range<usize>, Reason> {
        let Some(counts) = counts else {
            let part = self.equal_parts(whole)?;
            return Ok(self.rank * part..(self.rank + 1) * part);
        };
        counted(counts.len(), (ONE_EACH, self.size))?;
        sum_of_counts(whole, counts)?;
        let start: usize = counts[..self.rank].iter().sum();
        Ok(start..start + counts[self.rank])
    }

    /// Checks that as many elements arrive from each rank as are sent to it, because an in-place
    /// alltoall stores received parts where the sent ones were. Returns 0, because a call with
    /// counts has no common length of parts.
    fn parts_of_both_ways(self, len: usize, counts: &[usize]) -> Result<usize, Reason> {
        let CallingRank { rank, size } = self;
        counted(counts.len(), ("one for each pair of ranks", size.saturating_mul(size)))?;
        let row = &counts[rank * size..][..size];
        sum_of_counts(("data", len), row)?;
        let column = counts.iter().skip(rank).step_by(size);
        match (0..).zip(row).zip(column).find(|((_, sent), received)| sent != received) {
            None => Ok(0),
            Some(((other, sent), received)) => Err(format!(
                "in place the counts of both directions must be equal, but {sent} elements are sent to rank {other}, and \
                 {received} received from it"
            )),
        }
    }

    /// If both ranges lie as they would for an in-place call, returns the collective with the array
    /// that contains both ([`Arrays::InPlace`]). Otherwise returns it unchanged.
    fn shared_as_in_place<'s, 'r>(
        self,
        collective: Collective<'s, 'r>,
        unit: usize,
    ) -> Result<Collective<'s, 'r>, Reason> {
        let Arrays::Within(data, send, recv) = collective.arrays else { return Ok(collective) };
        let len = data.bytes.len() / unit;
        for (name, range) in [("send", &send), ("recv", &recv)] {
            if range.start > range.end || range.end > len {
                return Err(format!("{name} is {range:?}, which is not within an array of {len} elements"));
            }
        }
        let counts = collective.counts;
        let at_root = collective.root == self.rank;
        // Invalid lengths are reported later.
        let own = |whole: &Range<usize>| {
            let own = self.own_of(("data", whole.len()), counts).ok()?;
            Some(whole.start + own.start..whole.start + own.end)
        };
        let both = match collective.operation {
            Operation::Allgather => (own(&recv).as_ref() == Some(&send)).then_some(&recv),
            Operation::Gather if at_root => (own(&recv).as_ref() == Some(&send)).then_some(&recv),
            Operation::Scatter if at_root => (own(&send).as_ref() == Some(&recv)).then_some(&send),
            Operation::ReduceScatter => {
                let own = own(&send).map(|own| send.start..send.start + own.len());
                (own.as_ref() == Some(&recv)).then_some(&send)
            }
            Operation::Alltoall if counts.is_some() => None,
            Operation::Reduce
            | Operation::Allreduce
            | Operation::Scan
            | Operation::Exscan
            | Operation::Alltoall => (send == recv).then_some(&recv),
            Operation::Gather | Operation::Scatter | Operation::Bcast | Operation::Barrier => None,
        };
        let arrays = match both {
            None => Arrays::Within(data, send, recv),
            Some(both) => {
                let bytes = &mut data.bytes[both.start * unit..both.end * unit];
                Arrays::InPlace(ArrayMut { elements: data.elements, bytes })
            }
        };
        Ok(Collective { arrays, ..collective })
    }

    /// Checks that `whole` is `size` times as long as `part`.
    fn parts(self, whole: NamedLength, part: NamedLength) -> Result<(), Reason> {
        let CallingRank { size, .. } = self;
        if part.1.checked_mul(size) == Some(whole.1) {
            return Ok(());
        }
        Err(format!(
            "{} has {} elements, but must have {size} times the {} of {}, one part for each rank",
            whole.0, whole.1, part.1, part.0
        ))
    }

    /// Checks that an array consists of `size` equal parts. Returns the length of a part.
    fn equal_parts(self, (name, len): NamedLength) -> Result<usize, Reason> {
        let CallingRank { size, .. } = self;
        if len.is_multiple_of(size) {
            return Ok(len / size);
        }
        Err(format!(
            "{name} has {len} elements, which cannot be divided into {size} equal parts, one for each rank"
        ))
    }

    /// Checks that there is a count for each rank, and that the array is as long as this rank's
    /// count.
    fn own_part(self, array: NamedLength, counts: &[usize]) -> Result<(), Reason> {
        counted(counts.len(), (ONE_EACH, self.size))?;
        sum_of_counts(array, &counts[self.rank..=self.rank])
    }
}

/// The required number of counts, as text of an error message.
const ONE_EACH: &str = "one for each rank";

fn same_length(send: NamedLength, recv: NamedLength) -> Result<(), Reason> {
    if send.1 == recv.1 {
        return Ok(());
    }
    let ((send, s), (recv, r)) = (send, recv);
    Err(format!("{recv} has {r} elements, but {send} has {s}; they must have the same length"))
}

/// Checks the number of counts.
fn counted(counts: usize, (words, wanted): (&str, usize)) -> Result<(), Reason> {
    if counts == wanted {
        return Ok(());
    }
    Err(format!("counts has {counts} numbers, but must have {wanted}, {words}"))
}

/// Checks that an array is as long as the sum of counts.
fn sum_of_counts<'c>(
    (name, len): (&str, usize),
    counts: impl IntoIterator<Item = &'c usize>,
) -> Result<(), Reason> {
    let sum = counts.into_iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    match sum {
        Some(sum) if sum == len => Ok(()),
        Some(sum) => Err(format!("{name} has {len} elements, but counts require {sum}")),
        None => Err("the sum of counts exceeds the size of any array".to_owned()),
    }
}
