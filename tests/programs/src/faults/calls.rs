//! Calls of every operation, with lengths and roots drawn from a seed, and checks of their results.

use cool::{Comm, Error, Op};

/// Reason why a step has failed.
pub(crate) enum StepFailure {
    /// A call returned an error.
    Failed(Error),
    /// A call returned a wrong result, which this text describes.
    WrongResult(String),
}

impl From<Error> for StepFailure {
    fn from(error: Error) -> StepFailure {
        StepFailure::Failed(error)
    }
}

/// A kind of step: the operations that it calls, and the function that calls them.
type StepKind = (&'static [&'static str], fn(&DrawnStep<'_>) -> Result<(), StepFailure>);

/// The kinds of steps: every operation, messages around a ring, and two concurrent calls.
const STEP_KINDS: [StepKind; 13] = [
    (&["bcast"], |step| step.bcast()),
    (&["reduce"], |step| step.reduce()),
    (&["allreduce"], |step| step.allreduce()),
    (&["gather"], |step| step.gather()),
    (&["allgather"], |step| step.allgather()),
    (&["scatter"], |step| step.scatter()),
    (&["reduce_scatter"], |step| step.reduce_scatter()),
    (&["alltoall"], |step| step.alltoall()),
    (&["scan"], |step| step.scan()),
    (&["exscan"], |step| step.exscan()),
    (&["barrier"], |step| step.barrier()),
    (&["send", "recv"], |step| step.ring()),
    (&["allreduce", "bcast"], |step| step.two_at_once()),
];

/// Number of steps after which every operation has been called.
pub(crate) const KIND_COUNT: u64 = STEP_KINDS.len() as u64;

/// A series of steps, which must be the same at all ranks of a group.
pub(crate) struct CallSeries<'c> {
    comm: &'c Comm,
    seed: u64,
    /// Length of the longest message, in elements.
    elements_max: usize,
    completed: u64,
}

impl<'c> CallSeries<'c> {
    /// Returns the series of this seed, with messages of at most this number of bytes.
    pub(crate) fn new(comm: &'c Comm, seed: u64, bytes: usize) -> CallSeries<'c> {
        CallSeries { comm, seed: splitmix64(seed), elements_max: (bytes / 8).max(1), completed: 0 }
    }

    /// Returns the number of completed steps.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Returns the operations of the current step, or of the next one between steps.
    pub(crate) fn operations(&self) -> &'static [&'static str] {
        self.kind().0
    }

    /// Executes the next step and checks its results.
    ///
    /// # Errors
    /// Returns an error if a call fails or returns a wrong result. The step then does not count as
    /// completed.
    pub(crate) fn run_step(&mut self) -> Result<(), StepFailure> {
        let draw = splitmix64(self.seed ^ self.completed);
        // Exponents are drawn, because short messages must be as frequent as long ones.
        let elements = 1 << (draw % (u64::from(self.elements_max.ilog2()) + 1));
        let root = (draw >> 32) as usize % self.comm.size();
        self.kind().1(&DrawnStep { comm: self.comm, offset: draw % 1009, root, elements })?;
        self.completed += 1;
        Ok(())
    }

    /// Returns the kind of the current step. All kinds take turns; the first depends on the seed.
    fn kind(&self) -> &'static StepKind {
        &STEP_KINDS[((self.seed % KIND_COUNT + self.completed) % KIND_COUNT) as usize]
    }
}

/// Returns a random number for a seed, by splitmix64.
fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A step with the values that were drawn from the seed.
struct DrawnStep<'c> {
    comm: &'c Comm,
    /// Added to the elements, so that they are different in every step.
    offset: u64,
    root: usize,
    /// Elements of a whole message.
    elements: usize,
}

impl DrawnStep<'_> {
    /// Returns element `i` of the message that `rank` sends.
    fn element(&self, rank: usize, i: usize) -> u64 {
        (rank as u64 * 31 + i as u64 * 7 + self.offset) % 101
    }

    /// Returns the message of `rank`, with this number of elements.
    fn elements(&self, rank: usize, count: usize) -> Vec<u64> {
        (0..count).map(|i| self.element(rank, i)).collect()
    }

    /// Returns the sum of element `i` over this number of ranks, from rank 0.
    fn sum(&self, ranks: usize, i: usize) -> u64 {
        (0..ranks).map(|rank| self.element(rank, i)).sum()
    }

    /// Returns the number of elements in each rank's part of a message.
    fn part(&self) -> usize {
        self.elements.div_ceil(self.comm.size())
    }

    /// Compares a result with the expected elements.
    fn check(&self, received: &[u64], expected: impl Fn(usize) -> u64) -> Result<(), StepFailure> {
        match (0..received.len()).find(|&i| received[i] != expected(i)) {
            None => Ok(()),
            Some(i) => Err(StepFailure::WrongResult(format!(
                "element {i} of {} is {} instead of {}; the root is rank {} of {}",
                received.len(),
                received[i],
                expected(i),
                self.root,
                self.comm.size()
            ))),
        }
    }

    fn bcast(&self) -> Result<(), StepFailure> {
        let is_root = self.comm.rank() == self.root;
        let mut data = if is_root { self.elements(self.root, self.elements) } else { vec![0; self.elements] };
        self.comm.bcast(&mut data, self.root)?;
        self.check(&data, |i| self.element(self.root, i))
    }

    fn reduce(&self) -> Result<(), StepFailure> {
        let mut data = vec![0; if self.comm.rank() == self.root { self.elements } else { 0 }];
        self.comm.reduce(&self.elements(self.comm.rank(), self.elements), &mut data, Op::Sum, self.root)?;
        self.check(&data, |i| self.sum(self.comm.size(), i))
    }

    fn allreduce(&self) -> Result<(), StepFailure> {
        let mut data = vec![0; self.elements];
        self.comm.allreduce(&self.elements(self.comm.rank(), self.elements), &mut data, Op::Sum)?;
        self.check(&data, |i| self.sum(self.comm.size(), i))
    }

    fn gather(&self) -> Result<(), StepFailure> {
        let (size, part) = (self.comm.size(), self.part());
        let mut data = vec![0; if self.comm.rank() == self.root { part * size } else { 0 }];
        self.comm.gather(&self.elements(self.comm.rank(), part), &mut data, self.root)?;
        self.check(&data, |i| self.element(i / part, i % part))
    }

    fn allgather(&self) -> Result<(), StepFailure> {
        let part = self.part();
        let mut data = vec![0; part * self.comm.size()];
        self.comm.allgather(&self.elements(self.comm.rank(), part), &mut data)?;
        self.check(&data, |i| self.element(i / part, i % part))
    }

    fn scatter(&self) -> Result<(), StepFailure> {
        let (rank, size, part) = (self.comm.rank(), self.comm.size(), self.part());
        let all = if rank == self.root { self.elements(rank, part * size) } else { Vec::new() };
        let mut data = vec![0; part];
        self.comm.scatter(&all, &mut data, self.root)?;
        self.check(&data, |i| self.element(self.root, rank * part + i))
    }

    fn reduce_scatter(&self) -> Result<(), StepFailure> {
        let (rank, size, part) = (self.comm.rank(), self.comm.size(), self.part());
        let mut data = vec![0; part];
        self.comm.reduce_scatter(&self.elements(rank, part * size), &mut data, Op::Sum)?;
        self.check(&data, |i| self.sum(size, rank * part + i))
    }

    fn alltoall(&self) -> Result<(), StepFailure> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let part = self.part();
        let mut data = vec![0; part * size];
        self.comm.alltoall(&self.elements(rank, part * size), &mut data)?;
        self.check(&data, |i| self.element(i / part, rank * part + i % part))
    }

    fn scan(&self) -> Result<(), StepFailure> {
        let rank = self.comm.rank();
        let mut data = vec![0; self.elements];
        self.comm.scan(&self.elements(rank, self.elements), &mut data, Op::Sum)?;
        self.check(&data, |i| self.sum(rank + 1, i))
    }

    fn exscan(&self) -> Result<(), StepFailure> {
        let rank = self.comm.rank();
        let mut data = vec![0; self.elements];
        self.comm.exscan(&self.elements(rank, self.elements), &mut data, Op::Sum)?;
        // Rank 0 has no predecessor, so its array must stay unchanged: it contains zeros.
        self.check(&data, |i| self.sum(rank, i))
    }

    fn barrier(&self) -> Result<(), StepFailure> {
        Ok(self.comm.barrier()?)
    }

    /// Sends two messages to the next rank. Receives two from the previous rank, by their tags, in
    /// reverse order.
    fn ring(&self) -> Result<(), StepFailure> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let tag = self.offset as u32;
        let (mut word, mut data) = ([0], vec![0; self.elements]);
        let long = self.comm.start().send(&self.elements(rank, self.elements), next, tag)?;
        let short = self.comm.start().send(&[rank as u64 + self.offset], next, tag + 1)?;
        let received =
            self.comm.recv(&mut word, None, tag + 1).and_then(|_| self.comm.recv(&mut data, previous, tag));
        // The sends were called first, so their errors are returned first.
        long.wait()?;
        short.wait()?;
        received?;
        self.check(&word, |_| previous as u64 + self.offset)?;
        self.check(&data, |i| self.element(previous, i))
    }

    fn two_at_once(&self) -> Result<(), StepFailure> {
        let rank = self.comm.rank();
        let mut sums = vec![0; self.elements];
        let mut word = [if rank == self.root { self.offset } else { 0 }];
        let first = self.comm.start().allreduce(&self.elements(rank, self.elements), &mut sums, Op::Sum)?;
        let second = self.comm.start().bcast(&mut word, self.root)?;
        first.wait()?;
        second.wait()?;
        self.check(&word, |_| self.offset)?;
        self.check(&sums, |i| self.sum(self.comm.size(), i))
    }
}
