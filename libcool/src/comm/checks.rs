//! Whether a call's arguments make sense, and the words for it when not.

use super::Comm;
use crate::error::Error;

impl Comm {
    /// What is looked at only at the root.
    pub(super) fn at_root<T>(&self, root: u32, there: T) -> Option<T> {
        (root as usize == self.rank).then_some(there)
    }

    pub(super) fn checked_root(&self, operation: &'static str, root: usize) -> Result<u32, Error> {
        match u32::try_from(root) {
            Ok(number) if root < self.size() => Ok(number),
            _ => Err(self.wrong(
                operation,
                format!("there is no rank {root} to be the root; the ranks are 0 to {}", self.size() - 1),
            )),
        }
    }

    pub(super) fn same_length(&self, operation: &'static str, send: usize, recv: usize) -> Result<(), Error> {
        if send == recv {
            return Ok(());
        }
        let reason = format!("recv has {recv} elements, but send has {send}; they must be equally long");
        Err(self.wrong(operation, reason))
    }

    /// `whole` is an array of `size()` times `part`, each with its name and length.
    pub(super) fn parts(
        &self,
        operation: &'static str,
        (whole, whole_len): (&'static str, usize),
        (part, part_len): (&'static str, usize),
    ) -> Result<(), Error> {
        let size = self.size();
        if part_len.checked_mul(size) == Some(whole_len) {
            return Ok(());
        }
        let reason = format!(
            "{whole} has {whole_len} elements, but must have {size} times the {part_len} of {part}, \
             one part for each rank"
        );
        Err(self.wrong(operation, reason))
    }

    /// An array has `size()` equal parts; the length of one.
    pub(super) fn equal_parts(
        &self,
        operation: &'static str,
        (name, len): (&'static str, usize),
    ) -> Result<usize, Error> {
        let size = self.size();
        if len.is_multiple_of(size) {
            return Ok(len / size);
        }
        let reason =
            format!("{name} has {len} elements, which are not {size} equal parts, one for each rank");
        Err(self.wrong(operation, reason))
    }

    /// There are as many counts as there must be, in words and as a number.
    pub(super) fn counted(
        &self,
        operation: &'static str,
        counts: usize,
        (words, wanted): (&'static str, usize),
    ) -> Result<(), Error> {
        if counts == wanted {
            return Ok(());
        }
        Err(self.wrong(operation, format!("counts has {counts} numbers, but must have {wanted}, {words}")))
    }

    /// An array is as long as counts say.
    pub(super) fn sum_of_counts<'c>(
        &self,
        operation: &'static str,
        (name, len): (&'static str, usize),
        counts: impl IntoIterator<Item = &'c usize>,
    ) -> Result<(), Error> {
        let sum = counts.into_iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
        let reason = match sum {
            Some(sum) if sum == len => return Ok(()),
            Some(sum) => format!("{name} has {len} elements, but counts say {sum}"),
            None => "the sum of counts is beyond any array".to_owned(),
        };
        Err(self.wrong(operation, reason))
    }

    pub(super) fn wrong(&self, operation: &'static str, reason: String) -> Error {
        Error::Argument { rank: self.rank, operation, reason }
    }
}
