//! The stages of a job as Python methods.

use super::map_failure::MapFailure;
use super::partitions::PyPartitions;
use super::pickled::Object;
use super::progress::PyProgress;
use super::table::{AnyMapOutput, MapOutput, PyTable};
use super::table_kind::{WithTable, with_kind};
use super::{in_job, in_task};
use crate::error::{argument_error, unsigned};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// A rank's part in the job that its thread runs. `cool.map.run` passes it to the program. All
/// ranks must call the same methods in the same order.
#[pyclass(module = "cool.map", name = "Job", frozen)]
pub(crate) struct PyJob;

/// The output of map tasks, merged as far as possible without other ranks. It is the input of
/// `Job.regroup`.
#[pyclass(module = "cool.map", name = "Mapped", frozen)]
pub(crate) struct PyMapped {
    tables: Mutex<Option<Box<dyn AnyMapOutput>>>,
}

#[pymethods]
impl PyJob {
    /// This rank.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<usize> {
        in_job(py, |job| Ok(job.rank()))
    }

    /// The number of ranks.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        in_job(py, |job| Ok(job.size()))
    }

    /// The number of threads of this rank.
    #[getter]
    fn threads(&self, py: Python<'_>) -> PyResult<usize> {
        in_job(py, |job| Ok(job.threads()))
    }

    /// Distributes the partitions that no rank holds: at first all of them, later those of lost
    /// ranks. `load(number)` must return a partition; several threads call it at the rank that gets
    /// the partition.
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 passes it by value")]
    fn deal(&self, py: Python<'_>, partitions: &Bound<'_, PyPartitions>, load: Py<PyAny>) -> PyResult<()> {
        let partitions = partitions.get();
        in_job(py, |job| job.deal(&mut *partitions.lock()?, |number| in_task(|py| load.call1(py, (number,)))))
    }

    /// Calls `task` with each partition of this rank, on its threads. The results are added to a
    /// table that begins as `empty`: for a `Keyed`, a mapping of keys to values; for `Rows`, a pair
    /// of row numbers and rows, or an array of all rows.
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 passes it by value")]
    fn map(
        &self,
        py: Python<'_>,
        partitions: &Bound<'_, PyPartitions>,
        empty: &Bound<'_, PyAny>,
        task: Py<PyAny>,
    ) -> PyResult<PyMapped> {
        with_kind(empty, MapStage { py, partitions: partitions.get(), empty, task: &task })
    }

    /// Sends the values of each key to the rank that owns the key, where they are merged in the
    /// order of partitions. Returns a table of this rank's keys.
    fn regroup(&self, py: Python<'_>, mapped: &Bound<'_, PyMapped>) -> PyResult<Py<PyAny>> {
        let tables = mapped.get().tables.lock().unwrap_or_else(PoisonError::into_inner).take();
        let tables = tables.ok_or_else(|| argument_error(py, "this was regrouped already"))?;
        in_job(py, |job| tables.regroup(job))
    }

    /// Collects the owners' tables at all ranks: those of `regroup`, or tables derived from them
    /// key by key.
    fn combine(&self, py: Python<'_>, mine: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
        with_kind(mine, CombineStage { py, mine, rank: None })
    }

    /// As `combine`, at one rank only. Returns None at other ranks.
    fn combine_at(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] rank: usize,
        mine: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Py<PyAny>>> {
        with_kind(mine, CombineStage { py, mine, rank: Some(rank) })
    }

    /// Sends an object of rank `root` to all ranks. The values of other ranks are ignored.
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

    /// Iterates: `step(state, iterations)` returns the next state, which must be the same at all
    /// ranks, until `most` iterations are complete or `until(state, iterations)` is true. Returns
    /// the last state.
    ///
    /// `first()` returns the first state. It is not called if a rank has reached a later state,
    /// before other ranks were lost or in an earlier run.
    #[pyo3(signature = (progress, first, step, most = None, until = None))]
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 passes it by value")]
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
            return Err(argument_error(py, "iterate: pass most or until, which determine the end"));
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

/// The map stage for a table of any kind.
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
                in_task(|py| table.add_result(task.call1(py, (&*part,))?.bind(py)))
            };
            let mapped = job.map(&mut *partitions.lock()?, &empty, task)?;
            empty.settle(job)?;
            Ok(PyMapped { tables: Mutex::new(Some(Box::new(MapOutput { empty, mapped }))) })
        })
    }
}

/// The combine stage for a table of any kind.
struct CombineStage<'a, 'py> {
    py: Python<'py>,
    mine: &'a Bound<'py, PyAny>,
    /// The receiving rank; `None` for all ranks.
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
