//! `cool.map`: Map-Collective jobs of `cool-map` whose partitions, keys, values and states are Python's objects.
//!
//! A job is borrowed for as long as `run` runs, so Python's `Job` is but a name for it: its methods find the job of their
//! thread. The interpreter lock is free while a stage works or waits; map tasks take it in turn, and NumPy frees it.

mod job;
mod key;
mod keyed;
mod map_failure;
mod partitions;
mod pickled;
mod progress;
mod rows;
mod table;

use crate::comm::PyComm;
use crate::error::{argument_error, duration};
use cool_map::{Job, MapEvent, Options};
use map_failure::MapFailure;
use pyo3::prelude::*;
use scoped_tls_hkt::scoped_thread_local;

scoped_thread_local!(
    /// The job whose program this thread runs; none within a map task.
    static JOB: for<'a> Option<&'a Job<'a>>
);

/// Does something with the job that this thread runs, while other threads may have the interpreter.
fn in_job<R: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Job<'_>) -> Result<R, MapFailure> + Send,
) -> PyResult<R> {
    let done = py.detach(|| if JOB.is_set() { JOB.with(|job| job.map(work)) } else { None });
    let reason = "a job's methods are for the thread that runs its program, while it runs; map tasks return what they have \
                  found";
    done.ok_or_else(|| argument_error(py, reason))?.map_err(PyErr::from)
}

/// Does what may be done by several threads at once, in which there is no job.
fn in_task<R>(work: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R, MapFailure> {
    JOB.set(None, || Python::attach(work)).map_err(MapFailure::from)
}

/// Runs `program(job)` as a rank of a group, or, without one, in this process alone. If other ranks are lost meanwhile, it
/// runs again as one of those that are left: what need not be done again are `Partitions` and `Progress` that
/// were made outside of it. Returns what it returns.
///
/// `threads` are those of this rank, by default an even share of its node's processors; `patience` is how many seconds a rank
/// may load or map while others wait for it; `watch` is called with a line of text for each iteration, and when ranks are
/// lost_error, at rank 0.
#[pyfunction]
#[pyo3(name = "run_job", signature = (comm, program, threads = 0, patience = 3600.0, watch = None))]
#[allow(clippy::needless_pass_by_value, reason = "as it comes from Python")]
fn run(
    py: Python<'_>,
    comm: Option<&Bound<'_, PyComm>>,
    program: Py<PyAny>,
    threads: usize,
    patience: f64,
    watch: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    if JOB.is_set() {
        return Err(argument_error(py, "a program of a job cannot run another job"));
    }
    let rank = comm.map(|comm| comm.get().get_rank(py)).transpose()?;
    let patience = duration(py, "patience", patience)?;
    let notify_watch = |event: &MapEvent<'_>| notify_watch(watch.as_ref(), event);
    let options = Options {
        threads,
        patience,
        watch: if watch.is_some() { Some(&notify_watch) } else { None },
        ..Options::default()
    };
    let program =
        |job: &Job<'_>| JOB.set(Some(job), || Python::attach(|py| Ok(program.call1(py, (job::PyJob,))?)));
    let done: Result<_, MapFailure> = py.detach(|| match rank {
        Some(rank) => cool_map::run(rank, options, program),
        None => program(&Job::alone(options)),
    });
    done.map_err(PyErr::from)
}

/// What `watch` raises is printed, since nobody waits for it.
fn notify_watch(watch: Option<&Py<PyAny>>, event: &MapEvent<'_>) {
    let Some(watch) = watch else { return };
    Python::attach(|py| {
        if let Err(error) = watch.call1(py, (event.to_string(),)) {
            error.write_unraisable(py, Some(watch.bind(py)));
        }
    });
}

/// Adds it to the module, from which the package's `map.py` takes it.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_class::<job::PyJob>()?;
    module.add_class::<job::PyMapped>()?;
    module.add_class::<partitions::PyPartitions>()?;
    module.add_class::<progress::PyProgress>()
}
