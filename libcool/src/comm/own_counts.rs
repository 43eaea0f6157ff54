//! Calls with parts of unequal lengths in which each rank knows only the lengths of its own parts,
//! as in MPI's v-forms. A short call first exchanges the lengths, because every agent needs all of
//! them to compile the schedule.

use super::Comm;
use crate::Operation;
use crate::call::{Arrays, Collective};
use crate::element::Element;
use crate::error::Error;

/// The lengths of parts that a rank knows, in elements.
#[derive(Clone, Copy, Debug)]
pub enum OwnCounts<'c> {
    /// For a gather or scatter: the counts of all ranks. Only those of the root are used; other
    /// ranks may pass an empty slice.
    OfRoot(&'c [usize]),
    /// For an alltoall: the number of elements that this rank sends to each rank, and receives from
    /// each.
    OfRank(&'c [usize], &'c [usize]),
}

impl Comm {
    /// Executes a gather, scatter or alltoall for which not every rank knows all counts. The counts
    /// in `collective` are ignored.
    ///
    /// For a gather or scatter, the root first broadcasts the counts (8 bytes for each rank). For
    /// an alltoall, all ranks first exchange theirs (16 bytes for each pair of ranks; for example,
    /// each of 1,000 ranks receives 16 MB). Short exchanges are quick calls.
    ///
    /// # Errors
    /// As [`Comm::gatherv`], [`Comm::scatterv`] and [`Comm::alltoallv`]. Also if, in an alltoall,
    /// one rank sends another number of elements than its peer expects; every rank returns this
    /// error.
    pub fn collective_of_own(&self, collective: Collective<'_, '_>, own: OwnCounts<'_>) -> Result<(), Error> {
        let counts = self.exchange_counts(&collective, own)?;
        self.collective(Collective { counts: Some(&counts), ..collective })
    }

    /// As [`Comm::gatherv`], but only the root must know the counts. The root broadcasts them
    /// first.
    ///
    /// # Errors
    /// As [`Comm::gatherv`].
    pub fn gatherv_of_own<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        let arrays = Arrays::Apart(Some(send.into()), Some(recv.into()));
        let collective = Collective { root, ..Collective::new(Operation::Gather, arrays) };
        self.collective_of_own(collective, OwnCounts::OfRoot(counts))
    }

    /// As [`Comm::scatterv`], but only the root must know the counts. The root broadcasts them
    /// first.
    ///
    /// # Errors
    /// As [`Comm::scatterv`].
    pub fn scatterv_of_own<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        let arrays = Arrays::Apart(Some(send.into()), Some(recv.into()));
        let collective = Collective { root, ..Collective::new(Operation::Scatter, arrays) };
        self.collective_of_own(collective, OwnCounts::OfRoot(counts))
    }

    /// As [`Comm::alltoallv`], but each rank must know only the number of elements that it sends to
    /// and receives from each rank. All ranks exchange their counts first.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// // Rank i sends j elements to rank j, so rank j receives j elements from every rank.
    /// let sent: Vec<usize> = (0..comm.size()).collect();
    /// let received = vec![comm.rank(); comm.size()];
    /// let mut recv = vec![0; comm.rank() * comm.size()];
    /// comm.alltoallv_of_own(&vec![1u8; sent.iter().sum()], &mut recv, &sent, &received)?;
    /// assert!(recv.iter().all(|element| *element == 1));
    /// # Ok(())
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Comm::alltoallv`]. Also if one rank sends another number of elements than its peer
    /// expects; every rank returns this error.
    pub fn alltoallv_of_own<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        sent: &[usize],
        received: &[usize],
    ) -> Result<(), Error> {
        let arrays = Arrays::Apart(Some(send.into()), Some(recv.into()));
        let collective = Collective::new(Operation::Alltoall, arrays);
        self.collective_of_own(collective, OwnCounts::OfRank(sent, received))
    }

    /// Returns the counts of all ranks, given those that each rank knows.
    fn exchange_counts(
        &self,
        collective: &Collective<'_, '_>,
        own: OwnCounts<'_>,
    ) -> Result<Vec<usize>, Error> {
        let (operation, root, size) = (collective.operation, collective.root, self.size());
        // The name of the operation in errors.
        let name = Collective { counts: Some(&[]), ..Collective::new(operation, Arrays::None) }.name();
        let wrong = |reason: String| self.inner.argument_error(name, reason);
        let one_each = |counts: &[usize]| match counts.len() == size {
            true => Ok(counts.iter().map(|count| *count as u64).collect::<Vec<u64>>()),
            false => {
                let len = counts.len();
                Err(wrong(format!("counts has {len} numbers, but must have {size}, one for each rank")))
            }
        };
        let told = match (operation, own) {
            (Operation::Gather | Operation::Scatter, OwnCounts::OfRoot(counts)) => {
                let mut told = if self.rank() == root { one_each(counts)? } else { vec![0; size] };
                self.bcast(&mut told, root)?;
                told
            }
            (Operation::Alltoall, OwnCounts::OfRank(sent, received)) => {
                let mine = [one_each(sent)?, one_each(received)?].concat();
                let mut all = vec![0; 2 * size * size];
                self.allgather(&mine, &mut all)?;
                // Each rank's entry contains the counts it sends, followed by those it receives.
                let of = |rank: usize, received: bool, peer: usize| {
                    all.get(2 * size * rank + if received { size } else { 0 } + peer).copied().unwrap_or(0)
                };
                let pairs = || (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
                if let Some((from, to)) =
                    pairs().find(|(from, to)| of(*from, false, *to) != of(*to, true, *from))
                {
                    let (sent, received) = (of(from, false, to), of(to, true, from));
                    return Err(wrong(format!(
                        "rank {from} sends {sent} elements to rank {to}, which receives {received} from it"
                    )));
                }
                pairs().map(|(from, to)| of(from, false, to)).collect()
            }
            _ => {
                return Err(wrong(
                    "it does not take counts of this kind; pass all counts at every rank".to_owned(),
                ));
            }
        };
        let counts = told.into_iter().map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        Ok(counts.collect())
    }
}
