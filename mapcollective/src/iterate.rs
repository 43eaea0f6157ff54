//! Iterations: each makes a new state out of the last, which all ranks have.

use crate::error::Error;
use crate::job::Job;
use crate::report::{Event, Report};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::time::Instant;

/// How far a job has come. It stands outside of the program given to [`run`](crate::run), so that it is still there
/// when ranks are lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress<S> {
    /// The state after the iterations so far, and whether there is to be no more.
    reached: Option<Reached<S>>,
    /// Of the iterations that this rank has seen in this run.
    reports: Vec<Report>,
}

#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
pub(crate) struct Reached<S> {
    pub(crate) iterations: u64,
    pub(crate) ended: bool,
    pub(crate) state: S,
}

/// What an iteration leads to.
#[derive(Clone, Debug, PartialEq)]
pub enum Next<S> {
    /// A state for another.
    Again(S),
    /// The last state.
    Done(S),
}

impl<S> Default for Progress<S> {
    fn default() -> Self {
        Self { reached: None, reports: Vec::new() }
    }
}

impl<S> Progress<S> {
    /// Of a job that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// The state after the iterations so far; none before the first state was there.
    pub fn state(&self) -> Option<&S> {
        self.reached.as_ref().map(|reached| &reached.state)
    }

    /// The state after the last iteration.
    pub fn into_state(self) -> Option<S> {
        self.reached.map(|reached| reached.state)
    }

    /// The iterations so far, those of earlier runs too.
    pub fn iterations(&self) -> usize {
        self.reached.as_ref().map_or(0, |reached| reached.iterations as usize)
    }

    /// Whether an iteration was the last by what it said, not because there were enough.
    pub fn ended(&self) -> bool {
        self.reached.as_ref().is_some_and(|reached| reached.ended)
    }

    /// What the iterations did that this rank has seen in this run, in their order.
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }
}

impl Job<'_> {
    /// Iterates, up to `most` times in all: `step` is given the state that the last iteration led to, and the number
    /// of iterations before it, and makes a new state, the same at all ranks. The first state is made by `first`, unless any
    /// rank has come further before others were lost, or, with [`Checkpoint::resume`](crate::Checkpoint::resume), a run before this one.
    ///
    /// # Errors
    /// An error of `first` or `step`; if ranks are lost, or a checkpoint cannot be read or written.
    pub fn iterate<S, E>(
        &self,
        progress: &mut Progress<S>,
        most: usize,
        first: impl FnOnce() -> Result<S, E>,
        mut step: impl FnMut(&S, usize) -> Result<Next<S>, E>,
    ) -> Result<(), E>
    where
        S: Serialize + DeserializeOwned,
        E: From<Error> + Display,
    {
        let Progress { reached, reports } = progress;
        if reached.is_none() && self.is_driver() {
            *reached = self.agree(self.options.checkpoint.map_or(Ok(None), |file| file.resumed()))?;
        } else {
            self.agree(Ok::<_, Error>(()))?;
        }
        self.catch_up(reached)?;
        let current = match reached {
            Some(reached) => reached,
            None => reached.insert(Reached { iterations: 0, ended: false, state: first()? }),
        };
        self.take_stages();
        while !current.ended && (current.iterations as usize) < most {
            let start = Instant::now();
            let (state, ended) = match step(&current.state, current.iterations as usize)? {
                Next::Again(state) => (state, false),
                Next::Done(state) => (state, true),
            };
            *current = Reached { iterations: current.iterations + 1, ended, state };
            let iteration = current.iterations as usize;
            reports.push(Report {
                iteration,
                stages: self.take_stages(),
                seconds: start.elapsed().as_secs_f64(),
            });
            self.keep(current)?;
            if let (Some(watch), Some(report)) =
                (self.options.watch.filter(|_| self.is_driver()), reports.last())
            {
                watch(&Event::Iteration(report));
            }
        }
        Ok(())
    }

    /// Gives all ranks what that of them has which has come furthest.
    fn catch_up<S: Serialize + DeserializeOwned>(
        &self,
        reached: &mut Option<Reached<S>>,
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

    /// Writes a checkpoint, if the job keeps any.
    fn keep<S: Serialize>(&self, reached: &Reached<S>) -> Result<(), Error> {
        let Some(file) = self.options.checkpoint else { return Ok(()) };
        self.agree(if self.is_driver() { file.write(reached) } else { Ok(()) })
    }
}
