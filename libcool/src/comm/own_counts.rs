//! Calls with parts of unequal lengths whose ranks know the lengths of their own parts only, as MPI's v-forms have them: a short call
//! tells the others, then the call itself goes, of which every agent makes the whole schedule.

use super::Comm;
use crate::Operation;
use crate::call::{Arrays, Collective};
use crate::element::Element;
use crate::error::Error;

/// What a rank knows of the lengths of parts, in elements.
#[derive(Clone, Copy, Debug)]
pub enum OwnCounts<'c> {
    /// Of a gather or scatter: those of all ranks' parts. Only the root's are looked at; the others may have none.
    OfRoot(&'c [usize]),
    /// Of an alltoall: what goes from this rank to each, and what comes to it from each.
    OfRank(&'c [usize], &'c [usize]),
}

impl Comm {
    /// A gather, scatter or alltoall whose counts are not known to all ranks; what `collective` has as counts is not looked at. Of a
    /// gather or scatter the root tells the others (a bcast of 8 bytes for each rank), of an alltoall all tell all (an allgather
    /// of 16 bytes for each pair of ranks, so that of 1,000 ranks each gets 16 MB): short calls are quick ones.
    ///
    /// # Errors
    /// As those of [`Comm::gatherv`], [`Comm::scatterv`] and [`Comm::alltoallv`]; or if one rank of an alltoall sends another
    /// not as many elements as that receives, which all are told.
    pub fn collective_of_own(&self, collective: Collective<'_, '_>, own: OwnCounts<'_>) -> Result<(), Error> {
        let counts = self.exchange_counts(&collective, own)?;
        self.collective(Collective { counts: Some(&counts), ..collective })
    }

    /// [`Comm::gatherv`] where only the root knows all counts: only its `counts` is looked at. It tells the others first.
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

    /// [`Comm::scatterv`] where only the root knows all counts: only its `counts` is looked at. It tells the others first.
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

    /// [`Comm::alltoallv`] where each rank knows only how much it sends to each, and receives from each. All tell all first.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// // Rank i sends j elements to rank j, so each receives as many as its rank from all.
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
    /// As [`Comm::alltoallv`], or if one rank sends another not as many elements as that receives, which all are told.
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

    /// The counts of all ranks, of what each knows.
    fn exchange_counts(
        &self,
        collective: &Collective<'_, '_>,
        own: OwnCounts<'_>,
    ) -> Result<Vec<usize>, Error> {
        let (operation, root, size) = (collective.operation, collective.root, self.size());
        // As it is called in errors.
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
                // Of each rank, what it sends and then what it receives.
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
            _ => return Err(wrong("it takes no such counts; give them to all ranks".to_owned())),
        };
        let counts = told.into_iter().map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        Ok(counts.collect())
    }
}
