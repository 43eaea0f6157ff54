//! One collective as a value: its arguments, and whether they make sense. The typed operations of
//! [`Start`](crate::Start) and those of other languages all end here.

mod checks;

use crate::element::{Array, ArrayMut};
use crate::{Op, Operation, PairType, Type};
use std::borrow::Cow;
use std::ops::Range;

pub(crate) use checks::CallingRank;

/// The arrays of a [`Collective`].
#[derive(Debug)]
pub enum Arrays<'s, 'r> {
    /// Nothing is carried: barrier.
    None,
    /// What this rank sends and what it receives. What it does not send or receive (a rank that is not the
    /// root) is not looked at and may be `None`.
    Apart(Option<Array<'s>>, Option<ArrayMut<'r>>),
    /// One array for both: the message of a bcast; the vector of a reduction or scan, and the parts of an
    /// alltoall, which the result overwrites; all parts of an allgather, of which this rank has filled its own, and so at
    /// the root of a gather; all parts at the root of a scatter, where its own stays; the vector of a reduce_scatter, whose
    /// beginning this rank's part of the result overwrites. Ranks that are not the root of a gather or scatter have their part.
    InPlace(ArrayMut<'r>),
    /// What this rank sends and what it receives both lie in one array, as these of its elements, and may overlap: what it
    /// sends is as it was before the call. Where they lie as in place, nothing more is copied than in place.
    Within(ArrayMut<'r>, Range<usize>, Range<usize>),
}

/// One collective with arrays whose type is known only when the program runs, for bindings to other languages.
/// [`Start`](crate::Start) has the same with types.
#[derive(Debug)]
pub struct Collective<'s, 'r> {
    /// What to do.
    pub operation: Operation,
    /// Source or destination, where the operation has one.
    pub root: usize,
    /// How to combine, for the reductions and scans.
    pub op: Option<Op>,
    /// For parts of unequal lengths: the elements of each.
    pub counts: Option<&'s [usize]>,
    /// The data.
    pub arrays: Arrays<'s, 'r>,
}

/// A collective whose arguments make sense, and what of its arrays goes out and comes in.
#[derive(Debug)]
pub(crate) struct CheckedCollective<'s, 'r> {
    pub(crate) name: &'static str,
    pub(crate) operation: Operation,
    pub(crate) root: u32,
    pub(crate) op: Option<Op>,
    pub(crate) dtype: Option<Type>,
    /// Elements; 0 if there are counts.
    pub(crate) count: usize,
    pub(crate) counts: Option<&'s [usize]>,
    /// By which pairs are converted, if they are combined.
    pub(crate) pairs: Option<PairType>,
    /// The bytes that go out, and those that what comes in overwrites.
    send: Option<Range<usize>>,
    receive: Option<Range<usize>>,
    /// A copy of what goes out, where it is not as or where the agents may find it.
    copied: Option<Vec<u8>>,
    arrays: Arrays<'s, 'r>,
}

impl<'s, 'r> CheckedCollective<'s, 'r> {
    /// What goes out.
    pub(crate) fn input(&self) -> Option<&[u8]> {
        let range = self.send.clone()?;
        match (&self.copied, &self.arrays) {
            (Some(copied), _) => Some(copied),
            (None, Arrays::Apart(Some(send), _)) => send.bytes.get(range),
            (None, Arrays::InPlace(data) | Arrays::Within(data, ..)) => data.bytes.get(range),
            (None, Arrays::Apart(None, _) | Arrays::None) => None,
        }
    }

    /// What comes in overwrites this.
    pub(crate) fn output(&self) -> Option<&[u8]> {
        let range = self.receive.clone()?;
        match &self.arrays {
            Arrays::Apart(_, Some(data)) | Arrays::InPlace(data) | Arrays::Within(data, ..) => {
                data.bytes.get(range)
            }
            Arrays::Apart(..) | Arrays::None => None,
        }
    }

    /// Whether what goes out is overwritten by what comes in.
    pub(crate) fn overwrites(&self) -> bool {
        let shared = self.copied.is_none() && !matches!(self.arrays, Arrays::Apart(..) | Arrays::None);
        shared && self.send.is_some() && self.receive.is_some()
    }

    /// Where to put what comes in.
    pub(crate) fn into_output(self) -> Option<&'r mut [u8]> {
        let range = self.receive?;
        match self.arrays {
            Arrays::Apart(_, Some(data)) | Arrays::InPlace(data) | Arrays::Within(data, ..) => {
                data.bytes.get_mut(range)
            }
            Arrays::Apart(..) | Arrays::None => None,
        }
    }

    /// Copies what goes out: it lies where what comes in will, or is not what agents know.
    fn copy(&mut self) {
        let mut copied = self.input().map(<[u8]>::to_vec);
        if let (Some(pairs), Some(copied)) = (self.pairs, &mut copied) {
            pairs.encode(copied);
        }
        self.copied = copied;
    }
}

/// Where a call's bytes come from and go to.
#[derive(Debug)]
pub(crate) struct CallBuffers<'a> {
    input: InputBytes<'a>,
    output: &'a mut [u8],
    /// Where in `output` what comes in begins.
    start: usize,
}

#[derive(Debug)]
enum InputBytes<'a> {
    Apart(Cow<'a, [u8]>),
    /// A part of the output.
    Within(Range<usize>),
}

impl<'a> CallBuffers<'a> {
    /// What goes out from one place, and what comes in to another.
    pub(crate) fn new(input: &'a [u8], output: &'a mut [u8]) -> CallBuffers<'a> {
        CallBuffers { input: InputBytes::Apart(Cow::Borrowed(input)), output, start: 0 }
    }
}

impl CallBuffers<'_> {
    /// Bytes that go out.
    pub(crate) fn input(&self, range: Range<usize>) -> &[u8] {
        match &self.input {
            InputBytes::Apart(bytes) => &bytes[range],
            InputBytes::Within(within) => &self.output[within.clone()][range],
        }
    }

    /// All bytes that go out.
    pub(crate) fn whole_input(&self) -> &[u8] {
        match &self.input {
            InputBytes::Apart(bytes) => bytes,
            InputBytes::Within(within) => &self.output[within.clone()],
        }
    }

    /// Where bytes come in.
    pub(crate) fn output(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.output[self.start + range.start..self.start + range.end]
    }

    /// What goes out is read after what comes in has overwritten it: it is copied.
    pub(crate) fn set_input_apart(&mut self) {
        if let InputBytes::Within(range) = &self.input {
            self.input = InputBytes::Apart(Cow::Owned(self.output[range.clone()].to_vec()));
        }
    }

    /// Bytes of the input come to stand in the output, from a place on, as those that other ranks send.
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
    /// What goes out and where to put what comes in, at once.
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
    /// An operation on arrays, with root 0, and no [`Op`] and counts.
    pub fn new(operation: Operation, arrays: Arrays<'s, 'r>) -> Collective<'s, 'r> {
        Collective { operation, root: 0, op: None, counts: None, arrays }
    }

    /// The name by which errors call it.
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
