//! Iterations: each makes a new state out of the last, which all ranks have.

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::job::Job;
use crate::report::{MapEvent, Report};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::time::Instant;

/// How far a job has come. It stands outside of the program given to [`run`](crate::run), so that it is still there
/// when ranks are lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress<S> {
    /// The state after the iterations so far.
    reached: Option<IterationState<S>>,
    checkpoint: Option<Checkpoint>,
    /// Of the iterations that this rank has seen in this run.
    reports: Vec<Report>,
}

#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
pub(crate) struct IterationState<S> {
    pub(crate) iterations: u64,
    pub(crate) state: S,
}

impl<S> Default for Progress<S> {
    fn default() -> Self {
        Self { reached: None, checkpoint: None, reports: Vec::new() }
    }
}

impl<S> Progress<S> {
    /// Of a job that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rank 0 keeps the state in a file, after each iteration from now on; all ranks say so.
    pub fn keep_in(&mut self, checkpoint: Checkpoint) {
        self.checkpoint = Some(checkpoint);
    }

    /// The state after the iterations so far; none before the first state was there.
    pub fn state(&self) -> Option<&S> {
        self.reached.as_ref().map(|reached| &reached.state)
    }

    /// The iterations so far, those of earlier runs too.
    pub fn iterations(&self) -> usize {
        self.reached.as_ref().map_or(0, |reached| reached.iterations as usize)
    }

    /// What the iterations did that this rank has seen in this run, in their order.
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }
}

impl Job<'_> {
    /// Iterates until `until` is true of the state and the number of iterations that led to it; the last state. It is
    /// asked before each iteration, when the one before is kept. `step` is given the same and makes the next state;
    /// states are the same at all ranks. The first one is made by `first`, unless any rank has come further before
    /// others were lost, or a run before this one ([`Checkpoint::resume`]).
    ///
    /// # Errors
    /// An error of `first` or `step`; if ranks are lost, or a checkpoint cannot be read or written.
    pub fn iterate<'p, S, E>(
        &self,
        progress: &'p mut Progress<S>,
        first: impl FnOnce() -> Result<S, E>,
        mut until: impl FnMut(&S, usize) -> bool,
        mut step: impl FnMut(&S, usize) -> Result<S, E>,
    ) -> Result<&'p S, E>
    where
        S: Serialize + DeserializeOwned,
        E: From<Error> + Display,
    {
        let Progress { reached, checkpoint, reports } = progress;
        let begins = reached.is_none() && self.is_driver();
        let resumed = checkpoint.as_ref().filter(|_| begins).map_or(Ok(None), Checkpoint::resumed);
        *reached = self.agree(resumed)?.or(reached.take());
        self.catch_up(reached)?;
        let current = match reached {
            Some(reached) => reached,
            None => reached.insert(IterationState { iterations: 0, state: first()? }),
        };
        self.take_stages();
        while !until(&current.state, current.iterations as usize) {
            let start = Instant::now();
            let state = step(&current.state, current.iterations as usize)?;
            *current = IterationState { iterations: current.iterations + 1, state };
            let iteration = current.iterations as usize;
            let seconds = start.elapsed().as_secs_f64();
            let report = Report { iteration, stages: self.take_stages(), seconds };
            if let Some(file) = checkpoint {
                self.agree(if self.is_driver() { file.write(current) } else { Ok(()) })?;
            }
            if let Some(watch) = self.options.watch.filter(|_| self.is_driver()) {
                watch(&MapEvent::Iteration(&report));
            }
            reports.push(report);
        }
        Ok(&current.state)
    }

    /// Gives all ranks what that of them has which has come furthest.
    fn catch_up<S: Serialize + DeserializeOwned>(
        &self,
        reached: &mut Option<IterationState<S>>,
    ) -> Result<(), Error> {
        let mine = reached.as_ref().map_or(0, |reached| reached.iterations + 1);
        let all = self.allgather(&[mine])?;
        let Some(furthest) = all.iter().copied().max().filter(|furthest| *furthest > 0) else {
            return Ok(());
        };
        if all.iter().all(|one| *one == furthest) {
            return Ok(());
        }
        let root = all.iter().position(|one| *one == furthest).unwrap_or_default();
        let value = reached.take().filter(|_| self.rank() == root);
        *reached = Some(self.broadcast(root, value)?);
        Ok(())
    }
}
