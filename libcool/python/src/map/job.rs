//! A job's stages, as Python calls them.

use super::map_failure::MapFailure;
use super::partitions::PyPartitions;
use super::pickled::Object;
use super::progress::PyProgress;
use super::table::{AnyMapped, MappedTo, PyTable, WithTable, with_kind};
use super::{in_job, in_task};
use crate::error::{argument_error, unsigned};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// A rank's part in the job that its thread runs; `cool.map.run` gives it to the program. All ranks call its methods alike.
#[pyclass(module = "cool.map", name = "Job", frozen)]
pub(crate) struct PyJob;

/// What partitions were mapped to, merged as far as can be without those of other ranks. `Job.regroup` takes it.
#[pyclass(module = "cool.map", name = "Mapped", frozen)]
pub(crate) struct PyMapped {
    tables: Mutex<Option<Box<dyn AnyMapped>>>,
}

#[pymethods]
impl PyJob {
    /// This rank.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<usize> {
        in_job(py, |job| Ok(job.rank()))
    }

    /// How many ranks there are.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        in_job(py, |job| Ok(job.size()))
    }

    /// Threads of this rank.
    #[getter]
    fn threads(&self, py: Python<'_>) -> PyResult<usize> {
        in_job(py, |job| Ok(job.threads()))
    }

    /// Deals out the partitions that no rank holds: all at first, later those of lost ranks. `load(number)` gives a
    /// partition, at the rank where it goes, by several threads.
    #[allow(clippy::needless_pass_by_value, reason = "as it comes from Python")]
    fn deal(&self, py: Python<'_>, partitions: &Bound<'_, PyPartitions>, load: Py<PyAny>) -> PyResult<()> {
        let partitions = partitions.get();
        in_job(py, |job| job.deal(&mut *partitions.lock()?, |number| in_task(|py| load.call1(py, (number,)))))
    }

    /// Calls `task` with each partition that this rank holds, on its threads. What it returns is added to a table
    /// that begins as `empty`: for a `Keyed`, a mapping of keys to values; for `Rows`, a pair of row numbers and
    /// rows, or an array of all rows.
    #[allow(clippy::needless_pass_by_value, reason = "as it comes from Python")]
    fn map(
        &self,
        py: Python<'_>,
        partitions: &Bound<'_, PyPartitions>,
        empty: &Bound<'_, PyAny>,
        task: Py<PyAny>,
    ) -> PyResult<PyMapped> {
        with_kind(empty, MapStage { py, partitions: partitions.get(), empty, task: &task })
    }

    /// Brings the values of each key together at the rank that owns it, merged in the order of partitions; a table of
    /// this rank's keys.
    fn regroup(&self, py: Python<'_>, mapped: &Bound<'_, PyMapped>) -> PyResult<Py<PyAny>> {
        let tables = mapped.get().tables.lock().unwrap_or_else(PoisonError::into_inner).take();
        let tables = tables.ok_or_else(|| argument_error(py, "this was regrouped already"))?;
        in_job(py, |job| tables.regroup(job))
    }

    /// Gives all ranks what the owners have: the tables of `regroup`, or what was made of them key by key.
    fn combine(&self, py: Python<'_>, mine: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
        with_kind(mine, CombineStage { py, mine, rank: None })
    }

    /// The same at one rank only; None at others.
    fn combine_at(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] rank: usize,
        mine: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Py<PyAny>>> {
        with_kind(mine, CombineStage { py, mine, rank: Some(rank) })
    }

    /// Gives all ranks an object of rank `root`; what others pass is not looked at.
    #[pyo3(signature = (value = None, root = 0))]
    fn broadcast(
        &self,
        py: Python<'_>,
        value: Option<Py<PyAny>>,
        #[pyo3(from_py_with = unsigned)] root: usize,
    ) -> PyResult<Py<PyAny>> {
        let value = Object(value.unwrap_or_else(|| py.None()));
        in_job(py, |job| {
            let mine = (job.rank() == root).then_some(value);
            Ok(job.broadcast(root, mine)?.0)
        })
    }

    /// Iterates: `step(state, iterations)` makes the next state out of the last, which is the same at all ranks, until there
    /// were `most` iterations or `until(state, iterations)` is true; the last state. The first one is made by `first()`,
    /// unless any rank has come further before others were lost_error, or a run before this one.
    #[pyo3(signature = (progress, first, step, most = None, until = None))]
    #[allow(clippy::needless_pass_by_value, reason = "as it comes from Python")]
    fn iterate(
        &self,
        py: Python<'_>,
        progress: &Bound<'_, PyProgress>,
        first: Py<PyAny>,
        step: Py<PyAny>,
        most: Option<usize>,
        until: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        if most.is_none() && until.is_none() {
            return Err(argument_error(py, "iterate: most or until must say when it ends"));
        }
        let progress = progress.get();
        in_job(py, |job| {
            let mut failed = None;
            let ends = |state: &Object, done: usize| {
                if most.is_some_and(|most| done >= most) {
                    return true;
                }
                let Some(until) = &until else { return false };
                let asked = Python::attach(|py| until.call1(py, (&state.0, done))?.is_truthy(py));
                asked.unwrap_or_else(|error| {
                    failed = Some(error);
                    true
                })
            };
            let first = || Python::attach(|py| Ok::<_, MapFailure>(Object(first.call0(py)?)));
            let step = |state: &Object, done: usize| {
                Python::attach(|py| Ok::<_, MapFailure>(Object(step.call1(py, (&state.0, done))?)))
            };
            let mut progress = progress.lock()?;
            let last = job.iterate(&mut progress, first, ends, step)?.clone_object();
            failed.map_or(Ok(last), |error| Err(error.into()))
        })
    }
}

/// Mapping, with a table of any kind.
struct MapStage<'a, 'py> {
    py: Python<'py>,
    partitions: &'a PyPartitions,
    empty: &'a Bound<'py, PyAny>,
    task: &'a Py<PyAny>,
}

impl WithTable for MapStage<'_, '_> {
    type Result = PyMapped;

    fn apply<T: PyTable>(self) -> PyResult<PyMapped> {
        let MapStage { py, partitions, empty, task } = self;
        let empty = T::from_object(empty)?.empty();
        in_job(py, |job| {
            let task = |part: &mut Py<PyAny>, table: &mut T| {
                in_task(|py| table.take(task.call1(py, (&*part,))?.bind(py)))
            };
            let mapped = job.map(&mut *partitions.lock()?, &empty, task)?;
            empty.settle(job)?;
            Ok(PyMapped { tables: Mutex::new(Some(Box::new(MappedTo { empty, mapped }))) })
        })
    }
}

/// Combining, with a table of any kind.
struct CombineStage<'a, 'py> {
    py: Python<'py>,
    mine: &'a Bound<'py, PyAny>,
    /// Where to; none for all.
    rank: Option<usize>,
}

impl WithTable for CombineStage<'_, '_> {
    type Result = Option<Py<PyAny>>;

    fn apply<T: PyTable>(self) -> PyResult<Self::Result> {
        let table = T::from_object(self.mine)?;
        let empty = table.empty();
        in_job(self.py, |job| {
            let all = match self.rank {
                None => Some(job.combine(table)?),
                Some(rank) => job.combine_at(rank, table)?,
            };
            empty.settle(job)?;
            Ok(all.map(|all| Python::attach(|py| all.object(py))).transpose()?)
        })
    }
}
