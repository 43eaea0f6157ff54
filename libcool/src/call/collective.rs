//! A collective as a value: its arguments and their validation. The typed operations of
//! [`Start`](crate::Start) and the bindings to other languages all use this type.

mod checks;

use crate::element::{Array, ArrayMut};
use crate::{Op, Operation, PairType, Type};
use std::borrow::Cow;
use std::ops::Range;

pub(crate) use checks::CallingRank;

/// The arrays of a [`Collective`].
#[derive(Debug)]
pub enum Arrays<'s, 'r> {
    /// No data, for a barrier.
    None,
    /// The array that this rank sends and the one that it receives into. An array that is not used
    /// at this rank, for example because it is not the root, is ignored and may be `None`.
    Apart(Option<Array<'s>>, Option<ArrayMut<'r>>),
    /// One array for input and output:
    ///
    /// - bcast: the message.
    /// - reduce, allreduce, scan, exscan and alltoall: the vector or parts, which the result
    ///   overwrites.
    /// - allgather, and gather at the root: all parts; this rank must have filled its own.
    /// - scatter at the root: all parts; the root's own part stays in place.
    /// - reduce_scatter: the vector; this rank's part of the result overwrites its beginning.
    /// - gather and scatter at other ranks: the rank's own part.
    InPlace(ArrayMut<'r>),
    /// Input and output are these ranges of one array, in elements. The ranges may overlap: the
    /// input has the values from before the call. If the ranges lie as they would for
    /// [`Arrays::InPlace`], the call copies no more data than in place.
    Within(ArrayMut<'r>, Range<usize>, Range<usize>),
}

/// A collective on arrays of a type that is known only at run time, for bindings to other
/// languages. The methods of [`Start`](crate::Start) are the typed equivalent.
#[derive(Debug)]
pub struct Collective<'s, 'r> {
    /// The operation.
    pub operation: Operation,
    /// Source or destination rank, if the operation has one.
    pub root: usize,
    /// How elements are combined, for reductions and scans.
    pub op: Option<Op>,
    /// For parts of unequal lengths: the number of elements of each part.
    pub counts: Option<&'s [usize]>,
    /// The arrays.
    pub arrays: Arrays<'s, 'r>,
}

/// A collective with valid arguments, and the byte ranges of its input and output.
#[derive(Debug)]
pub(crate) struct CheckedCollective<'s, 'r> {
    pub(crate) name: &'static str,
    pub(crate) operation: Operation,
    pub(crate) root: u32,
    pub(crate) op: Option<Op>,
    pub(crate) dtype: Option<Type>,
    /// Number of elements, or 0 if there are counts.
    pub(crate) count: usize,
    pub(crate) counts: Option<&'s [usize]>,
    /// The type of pairs that must be converted, if pairs are combined.
    pub(crate) pairs: Option<PairType>,
    /// Byte ranges of the input and of the output.
    send: Option<Range<usize>>,
    receive: Option<Range<usize>>,
    /// A copy of the input, if the input overlaps the output or must be converted for the agents.
    copied: Option<Vec<u8>>,
    arrays: Arrays<'s, 'r>,
}

impl<'s, 'r> CheckedCollective<'s, 'r> {
    /// Returns the bytes that this rank sends.
    pub(crate) fn input(&self) -> Option<&[u8]> {
        let range = self.send.clone()?;
        match (&self.copied, &self.arrays) {
            (Some(copied), _) => Some(copied),
            (None, Arrays::Apart(Some(send), _)) => send.bytes.get(range),
            (None, Arrays::InPlace(data) | Arrays::Within(data, ..)) => data.bytes.get(range),
            (None, Arrays::Apart(None, _) | Arrays::None) => None,
        }
    }

    /// Returns the bytes that received data will overwrite.
    pub(crate) fn output(&self) -> Option<&[u8]> {
        let range = self.receive.clone()?;
        match &self.arrays {
            Arrays::Apart(_, Some(data)) | Arrays::InPlace(data) | Arrays::Within(data, ..) => {
                data.bytes.get(range)
            }
            Arrays::Apart(..) | Arrays::None => None,
        }
    }

    /// Returns whether the received data overwrites the input.
    pub(crate) fn overwrites(&self) -> bool {
        let shared = self.copied.is_none() && !matches!(self.arrays, Arrays::Apart(..) | Arrays::None);
        shared && self.send.is_some() && self.receive.is_some()
    }

    /// Returns the memory for the received data.
    pub(crate) fn into_output(self) -> Option<&'r mut [u8]> {
        let range = self.receive?;
        match self.arrays {
            Arrays::Apart(_, Some(data)) | Arrays::InPlace(data) | Arrays::Within(data, ..) => {
                data.bytes.get_mut(range)
            }
            Arrays::Apart(..) | Arrays::None => None,
        }
    }

    /// Copies the input, because the output overlaps it or the agents need another encoding.
    fn copy(&mut self) {
        let mut copied = self.input().map(<[u8]>::to_vec);
        if let (Some(pairs), Some(copied)) = (self.pairs, &mut copied) {
            pairs.encode(copied);
        }
        self.copied = copied;
    }
}

/// Input and output memory of a call.
#[derive(Debug)]
pub(crate) struct CallBuffers<'a> {
    input: InputBytes<'a>,
    output: &'a mut [u8],
    /// Offset in `output` at which the received data begins.
    start: usize,
}

#[derive(Debug)]
enum InputBytes<'a> {
    Apart(Cow<'a, [u8]>),
    /// A range of the output.
    Within(Range<usize>),
}

impl<'a> CallBuffers<'a> {
    /// Returns buffers with separate input and output.
    pub(crate) fn new(input: &'a [u8], output: &'a mut [u8]) -> CallBuffers<'a> {
        CallBuffers { input: InputBytes::Apart(Cow::Borrowed(input)), output, start: 0 }
    }
}

impl CallBuffers<'_> {
    /// Returns bytes of the input.
    pub(crate) fn input(&self, range: Range<usize>) -> &[u8] {
        match &self.input {
            InputBytes::Apart(bytes) => &bytes[range],
            InputBytes::Within(within) => &self.output[within.clone()][range],
        }
    }

    /// Returns the whole input.
    pub(crate) fn whole_input(&self) -> &[u8] {
        match &self.input {
            InputBytes::Apart(bytes) => bytes,
            InputBytes::Within(within) => &self.output[within.clone()],
        }
    }

    /// Returns bytes of the output.
    pub(crate) fn output(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.output[self.start + range.start..self.start + range.end]
    }

    /// Returns the whole input, and `output_bytes` of the output, if they do not overlap.
    pub(crate) fn apart(&mut self, output_bytes: usize) -> Option<(&[u8], &mut [u8])> {
        let end = self.start + output_bytes;
        match &self.input {
            _ if output_bytes == 0 => Some((self.whole_input(), &mut [])),
            InputBytes::Apart(bytes) => Some((bytes, &mut self.output[self.start..end])),
            InputBytes::Within(range) if range.is_empty() => Some((&[], &mut self.output[self.start..end])),
            InputBytes::Within(_) => None,
        }
    }

    /// Copies the input if it overlaps the output, because the caller reads it after it has written
    /// output.
    pub(crate) fn set_input_apart(&mut self) {
        if let InputBytes::Within(range) = &self.input {
            self.input = InputBytes::Apart(Cow::Owned(self.output[range.clone()].to_vec()));
        }
    }

    /// Copies bytes of the input to offset `at` of the output, as if another rank had sent them.
    pub(crate) fn keep(&mut self, range: Range<usize>, at: usize) {
        let at = self.start + at;
        match &self.input {
            InputBytes::Apart(bytes) => self.output[at..at + range.len()].copy_from_slice(&bytes[range]),
            InputBytes::Within(within) => {
                self.output.copy_within(within.start + range.start..within.start + range.end, at);
            }
        }
    }
}

impl<'s, 'r> CheckedCollective<'s, 'r> {
    /// Returns input and output at the same time.
    pub(crate) fn buffers(&mut self) -> CallBuffers<'_> {
        let send = self.send.clone().unwrap_or_default();
        let start = self.receive.as_ref().map_or(0, |receive| receive.start);
        let copied = self.copied.as_deref().map(|copied| InputBytes::Apart(Cow::Borrowed(copied)));
        match &mut self.arrays {
            Arrays::InPlace(data) | Arrays::Within(data, ..) => {
                CallBuffers { input: copied.unwrap_or(InputBytes::Within(send)), output: data.bytes, start }
            }
            Arrays::Apart(given, recv) => {
                let input = given.as_ref().map_or(&[][..], |given| given.bytes.get(send).unwrap_or_default());
                let output = recv
                    .as_mut()
                    .filter(|_| self.receive.is_some())
                    .map_or(&mut [][..], |recv| &mut *recv.bytes);
                CallBuffers {
                    input: copied.unwrap_or(InputBytes::Apart(Cow::Borrowed(input))),
                    output,
                    start,
                }
            }
            Arrays::None => {
                CallBuffers { input: InputBytes::Apart(Cow::Borrowed(&[])), output: &mut [], start }
            }
        }
    }
}

impl<'s, 'r> Collective<'s, 'r> {
    /// Returns an operation on arrays, with root 0 and without [`Op`] and counts.
    pub fn new(operation: Operation, arrays: Arrays<'s, 'r>) -> Collective<'s, 'r> {
        Collective { operation, root: 0, op: None, counts: None, arrays }
    }

    /// Returns the name of the operation in error messages.
    pub(crate) fn name(&self) -> &'static str {
        let counts = self.counts.is_some();
        match self.operation {
            Operation::Bcast => "bcast",
            Operation::Reduce => "reduce",
            Operation::Allreduce => "allreduce",
            Operation::Gather if counts => "gatherv",
            Operation::Gather => "gather",
            Operation::Allgather if counts => "allgatherv",
            Operation::Allgather => "allgather",
            Operation::Scatter if counts => "scatterv",
            Operation::Scatter => "scatter",
            Operation::ReduceScatter if counts => "reduce_scatter_counts",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::Alltoall if counts => "alltoallv",
            Operation::Alltoall => "alltoall",
            Operation::Scan => "scan",
            Operation::Exscan => "exscan",
            Operation::Barrier => "barrier",
        }
    }
}
