//! Iterations: each computes a new state from the previous one. All ranks hold the state.

use crate::checkpoint::{Checkpoint, IterationState};
use crate::error::Error;
use crate::job::Job;
use crate::report::{MapEvent, Report};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::time::Instant;

/// The state of a job's iterations. It must be created outside of the program that is passed to
/// [`run`](crate::run), because it has to survive the loss of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress<S> {
    /// The state after the iterations so far.
    reached: Option<IterationState<S>>,
    checkpoint: Option<Checkpoint>,
    /// Reports of the iterations that this rank has executed in this run.
    reports: Vec<Report>,
}

impl<S> Default for Progress<S> {
    fn default() -> Self {
        Self { reached: None, checkpoint: None, reports: Vec::new() }
    }
}

impl<S> Progress<S> {
    /// Creates the progress of a job that has no state yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes rank 0 store the state in a file after each further iteration. All ranks must call
    /// this.
    pub fn keep_in(&mut self, checkpoint: Checkpoint) {
        self.checkpoint = Some(checkpoint);
    }

    /// Returns the state after the iterations so far, or `None` before the first state.
    pub fn state(&self) -> Option<&S> {
        self.reached.as_ref().map(|reached| &reached.state)
    }

    /// Returns the number of iterations so far, including those of earlier runs.
    pub fn iterations(&self) -> usize {
        self.reached.as_ref().map_or(0, |reached| reached.iterations as usize)
    }

    /// Returns the reports of the iterations that this rank has executed in this run, in order.
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }
}

impl Job<'_> {
    /// Iterates until `until` returns true, and returns the final state. `until` receives the state
    /// and the number of iterations so far; it is called before each iteration, after the state of
    /// the previous one has been stored. `step` receives the same and must return the next state,
    /// which must be equal at all ranks. `first` returns the initial state. It is not called if any
    /// rank has a state, from before a loss of ranks or from an earlier run (see
    /// [`Checkpoint::resume`]).
    ///
    /// For example, `until` can be `|_, done| done == 10` for ten iterations.
    ///
    /// # Errors
    /// Returns an error of `first` or `step`, or an error if ranks are lost or the checkpoint
    /// cannot be read or written.
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

    /// Sends the state of the most advanced rank to all ranks.
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
