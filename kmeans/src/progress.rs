//! How far a clustering has come: what survivors of lost ranks, and later runs, go on from.

use crate::error::Error;
use crate::grid::Centroids;
use crate::lloyd::Clustering;
use crate::peers::Peers;
use cool::Op;

/// Numbers that an iteration is written as.
const NUMBERS: usize = 8;

/// The same, for a message of 16-bit integers.
const SHORTS: usize = NUMBERS * 4;

/// An iteration, as rank 0 saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Iteration {
    /// Its number, from 1.
    pub number: usize,
    /// Sum of squared distances of the points from the centroids it began with.
    pub inertia: f64,
    /// Points whose centroid is another than in the iteration before; all, in the first after ranks were lost.
    pub moved_points: u64,
    /// Distances of points from centroids that it measured.
    pub measured: u64,
    /// Centroids that it moved.
    pub moved_centroids: usize,
    /// Centroids without points.
    pub empty: usize,
    /// Time spent in computing.
    pub seconds_computing: f64,
    /// Time spent in collectives, with waiting for slower ranks.
    pub seconds_communicating: f64,
}

impl Iteration {
    /// As numbers that every rank and every file reads alike.
    pub(crate) fn bits(&self) -> [u64; NUMBERS] {
        [
            self.number as u64,
            self.inertia.to_bits(),
            self.moved_points,
            self.measured,
            self.moved_centroids as u64,
            self.empty as u64,
            self.seconds_computing.to_bits(),
            self.seconds_communicating.to_bits(),
        ]
    }

    /// From [`Iteration::bits`].
    pub(crate) fn from_bits(bits: &[u64; NUMBERS]) -> Self {
        let &[number, inertia, moved_points, measured, moved_centroids, empty, computing, communicating] =
            bits;
        Self {
            number: number as usize,
            inertia: f64::from_bits(inertia),
            moved_points,
            measured,
            moved_centroids: moved_centroids as usize,
            empty: empty as usize,
            seconds_computing: f64::from_bits(computing),
            seconds_communicating: f64::from_bits(communicating),
        }
    }
}

/// How far a clustering has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// After the iterations so far.
    pub centroids: Centroids,
    /// The iterations so far.
    pub iterations: Vec<Iteration>,
}

impl Progress {
    /// Whether the last iteration moved no centroid, or improved less than the tolerance.
    pub fn converged(&self, how: &Clustering) -> bool {
        let Some((last, before)) = self.iterations.split_last() else { return false };
        let little =
            |previous: &Iteration| previous.inertia - last.inertia < how.tolerance * previous.inertia;
        last.moved_centroids == 0 || how.tolerance > 0.0 && before.last().is_some_and(little)
    }

    /// Whether there is no more iteration to do.
    pub fn is_complete(&self, how: &Clustering) -> bool {
        self.converged(how) || self.iterations.len() >= how.iterations
    }

    /// Gives all ranks what any of them has that has come furthest; `None` if none has begun. Of how many coordinates
    /// centroids consist, all know.
    pub(crate) fn furthest(
        peers: &Peers<'_>,
        own: Option<&Progress>,
        empty: Centroids,
    ) -> Result<Option<Progress>, Error> {
        let (size, rank) = (peers.size() as u64, peers.rank() as u64);
        let done = own.map_or(0, |own| 1 + own.iterations.len() as u64);
        // The most iterations, then the smallest rank.
        let best = peers.combine(vec![done * size + (size - 1 - rank)], Op::Max)?[0];
        let (done, root) = (best / size, (size - 1 - best % size) as usize);
        if done == 0 {
            return Ok(None);
        }
        let mut history = vec![0u64; (done as usize - 1) * NUMBERS];
        let mut centroids = empty;
        if let Some(own) = own.filter(|_| peers.rank() == root) {
            history = own.iterations.iter().flat_map(Iteration::bits).collect();
            centroids = own.centroids.clone();
        }
        peers.bcast(&mut history, root)?;
        peers.bcast(&mut centroids.values, root)?;
        let iterations = history.as_chunks().0.iter().map(Iteration::from_bits).collect();
        Ok(Some(Progress { centroids, iterations }))
    }

    /// Gives all ranks rank 0's centroids, and its last iteration.
    pub(crate) fn broadcast(&mut self, peers: &Peers<'_>) -> Result<(), Error> {
        let last = self.iterations.last().copied().unwrap_or_default();
        let mut message: Vec<i16> = last.bits().iter().flat_map(|n| shorts(*n)).collect();
        message.extend_from_slice(&self.centroids.values);
        peers.bcast(&mut message, 0)?;
        let (iteration, centroids) = message.split_at(SHORTS);
        let mut bits = [0; NUMBERS];
        for (number, shorts) in bits.iter_mut().zip(iteration.as_chunks().0) {
            *number = whole(*shorts);
        }
        let iteration = Iteration::from_bits(&bits);
        if iteration.number == self.iterations.len() + 1 {
            self.iterations.push(iteration);
        }
        self.centroids.values.copy_from_slice(centroids);
        Ok(())
    }
}

fn shorts(number: u64) -> [i16; 4] {
    [0, 16, 32, 48].map(|shift| (number >> shift) as i16)
}

fn whole(shorts: [i16; 4]) -> u64 {
    shorts.iter().rev().fold(0, |number, short| number << 16 | u64::from(short.cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn iterations_come_through_messages_to_the_bit(numbers: [u64; NUMBERS]) {
            let there = Iteration::from_bits(&numbers.map(|n| whole(shorts(n))));
            prop_assert_eq!(there.bits(), numbers);
        }
    }
}
