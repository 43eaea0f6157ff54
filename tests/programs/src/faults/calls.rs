//! Calls of every operation with lengths and roots drawn from a seed, and what each must bring.

use cool::{Comm, Error, Op};

/// Why no more calls are made.
pub(crate) enum Stop {
    /// A call failed.
    Failed(Error),
    /// A call brought what it must not.
    Wrong(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// One step: the operations that it calls, and how.
type Kind = (&'static [&'static str], fn(&Step<'_>) -> Result<(), Stop>);

/// Every operation, messages round a ring, and two calls at once.
const KINDS: [Kind; 13] = [
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

/// Steps after which every operation has been called.
pub(crate) const ALL: u64 = KINDS.len() as u64;

/// The calls of a group, the same at every rank.
pub(crate) struct Calls<'c> {
    comm: &'c Comm,
    seed: u64,
    /// The longest message, in elements.
    longest: usize,
    made: u64,
}

impl<'c> Calls<'c> {
    pub(crate) fn new(comm: &'c Comm, seed: u64, bytes: usize) -> Calls<'c> {
        Calls { comm, seed: mixed(seed), longest: (bytes / 8).max(1), made: 0 }
    }

    /// Steps that went well.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    /// The operations of the step that is the next, or under way.
    pub(crate) fn operations(&self) -> &'static [&'static str] {
        self.kind().0
    }

    /// Makes the next step and checks what it brings.
    pub(crate) fn make(&mut self) -> Result<(), Stop> {
        let draw = mixed(self.seed ^ self.made);
        // As many short messages as long ones.
        let elements = 1 << (draw % (u64::from(self.longest.ilog2()) + 1));
        let root = (draw >> 32) as usize % self.comm.size();
        self.kind().1(&Step { comm: self.comm, salt: draw % 1009, root, elements })?;
        self.made += 1;
        Ok(())
    }

    /// Every operation in turn; each group begins with another.
    fn kind(&self) -> &'static Kind {
        &KINDS[((self.seed % ALL + self.made) % ALL) as usize]
    }
}

/// splitmix64
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A step as it is drawn.
struct Step<'c> {
    comm: &'c Comm,
    /// Makes the elements of every call others.
    salt: u64,
    root: usize,
    /// Of a whole message.
    elements: usize,
}

impl Step<'_> {
    fn element(&self, rank: usize, i: usize) -> u64 {
        (rank as u64 * 31 + i as u64 * 7 + self.salt) % 101
    }

    fn elements(&self, rank: usize, count: usize) -> Vec<u64> {
        (0..count).map(|i| self.element(rank, i)).collect()
    }

    /// The sum of what the first ranks have.
    fn sum(&self, ranks: usize, i: usize) -> u64 {
        (0..ranks).map(|rank| self.element(rank, i)).sum()
    }

    /// Elements of each rank's part.
    fn part(&self) -> usize {
        self.elements.div_ceil(self.comm.size())
    }

    fn check(&self, got: &[u64], expected: impl Fn(usize) -> u64) -> Result<(), Stop> {
        match (0..got.len()).find(|&i| got[i] != expected(i)) {
            None => Ok(()),
            Some(i) => Err(Stop::Wrong(format!(
                "element {i} of {} is {} instead of {}; the root is {} of {}",
                got.len(),
                got[i],
                expected(i),
                self.root,
                self.comm.size()
            ))),
        }
    }

    fn bcast(&self) -> Result<(), Stop> {
        let is_root = self.comm.rank() == self.root;
        let mut data = if is_root { self.elements(self.root, self.elements) } else { vec![0; self.elements] };
        self.comm.bcast(&mut data, self.root)?;
        self.check(&data, |i| self.element(self.root, i))
    }

    fn reduce(&self) -> Result<(), Stop> {
        let mut data = vec![0; if self.comm.rank() == self.root { self.elements } else { 0 }];
        self.comm.reduce(&self.elements(self.comm.rank(), self.elements), &mut data, Op::Sum, self.root)?;
        self.check(&data, |i| self.sum(self.comm.size(), i))
    }

    fn allreduce(&self) -> Result<(), Stop> {
        let mut data = vec![0; self.elements];
        self.comm.allreduce(&self.elements(self.comm.rank(), self.elements), &mut data, Op::Sum)?;
        self.check(&data, |i| self.sum(self.comm.size(), i))
    }

    fn gather(&self) -> Result<(), Stop> {
        let (size, part) = (self.comm.size(), self.part());
        let mut data = vec![0; if self.comm.rank() == self.root { part * size } else { 0 }];
        self.comm.gather(&self.elements(self.comm.rank(), part), &mut data, self.root)?;
        self.check(&data, |i| self.element(i / part, i % part))
    }

    fn allgather(&self) -> Result<(), Stop> {
        let part = self.part();
        let mut data = vec![0; part * self.comm.size()];
        self.comm.allgather(&self.elements(self.comm.rank(), part), &mut data)?;
        self.check(&data, |i| self.element(i / part, i % part))
    }

    fn scatter(&self) -> Result<(), Stop> {
        let (rank, size, part) = (self.comm.rank(), self.comm.size(), self.part());
        let all = if rank == self.root { self.elements(rank, part * size) } else { Vec::new() };
        let mut data = vec![0; part];
        self.comm.scatter(&all, &mut data, self.root)?;
        self.check(&data, |i| self.element(self.root, rank * part + i))
    }

    fn reduce_scatter(&self) -> Result<(), Stop> {
        let (rank, size, part) = (self.comm.rank(), self.comm.size(), self.part());
        let mut data = vec![0; part];
        self.comm.reduce_scatter(&self.elements(rank, part * size), &mut data, Op::Sum)?;
        self.check(&data, |i| self.sum(size, rank * part + i))
    }

    fn alltoall(&self) -> Result<(), Stop> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let part = self.part();
        let mut data = vec![0; part * size];
        self.comm.alltoall(&self.elements(rank, part * size), &mut data)?;
        self.check(&data, |i| self.element(i / part, rank * part + i % part))
    }

    fn scan(&self) -> Result<(), Stop> {
        let rank = self.comm.rank();
        let mut data = vec![0; self.elements];
        self.comm.scan(&self.elements(rank, self.elements), &mut data, Op::Sum)?;
        self.check(&data, |i| self.sum(rank + 1, i))
    }

    fn exscan(&self) -> Result<(), Stop> {
        let rank = self.comm.rank();
        let mut data = vec![0; self.elements];
        self.comm.exscan(&self.elements(rank, self.elements), &mut data, Op::Sum)?;
        // Nothing comes before the first rank, whose array stays as it was.
        self.check(&data, |i| self.sum(rank, i))
    }

    fn barrier(&self) -> Result<(), Stop> {
        Ok(self.comm.barrier()?)
    }

    /// Two messages to the next rank and two from the one before, received by their tags in the other order.
    fn ring(&self) -> Result<(), Stop> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let tag = self.salt as u32;
        let (mut word, mut data) = ([0], vec![0; self.elements]);
        let long = self.comm.start().send(&self.elements(rank, self.elements), next, tag)?;
        let short = self.comm.start().send(&[rank as u64 + self.salt], next, tag + 1)?;
        let received =
            self.comm.recv(&mut word, None, tag + 1).and_then(|_| self.comm.recv(&mut data, before, tag));
        // What was called first has failed first.
        long.wait()?;
        short.wait()?;
        received?;
        self.check(&word, |_| before as u64 + self.salt)?;
        self.check(&data, |i| self.element(before, i))
    }

    fn two_at_once(&self) -> Result<(), Stop> {
        let rank = self.comm.rank();
        let mut sums = vec![0; self.elements];
        let mut word = [if rank == self.root { self.salt } else { 0 }];
        let first = self.comm.start().allreduce(&self.elements(rank, self.elements), &mut sums, Op::Sum)?;
        let second = self.comm.start().bcast(&mut word, self.root)?;
        first.wait()?;
        second.wait()?;
        self.check(&word, |_| self.salt)?;
        self.check(&sums, |i| self.sum(self.comm.size(), i))
    }
}
