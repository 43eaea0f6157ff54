//! `cool.map`: Map-Collective jobs of `cool-map` with Python objects as partitions, keys, values
//! and states.
//!
//! A Rust job exists only while `run` runs, so Python's `Job` contains no reference to it: its
//! methods use the job of their thread. The interpreter lock is released while a stage works or
//! waits. Map tasks hold it in turn, and NumPy releases it.

mod job;
mod key;
mod keyed;
mod map_failure;
mod partitions;
mod pickled;
mod progress;
mod rows;
mod table;
mod table_kind;

use crate::comm::PyComm;
use crate::error::{argument_error, duration};
use cool_map::{Job, MapEvent, Options};
use map_failure::MapFailure;
use pyo3::prelude::*;
use scoped_tls_hkt::scoped_thread_local;

scoped_thread_local!(
    /// The job that runs in this thread; `None` within a map task.
    static JOB: for<'a> Option<&'a Job<'a>>
);

/// Executes `work` with the job of this thread, without the interpreter lock.
fn in_job<R: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Job<'_>) -> Result<R, MapFailure> + Send,
) -> PyResult<R> {
    let done = py.detach(|| if JOB.is_set() { JOB.with(|job| job.map(work)) } else { None });
    let reason = "a job's methods must be called by the thread that runs its program, while it runs; map tasks \
                  return their results";
    done.ok_or_else(|| argument_error(py, reason))?.map_err(PyErr::from)
}

/// Executes `work`, which several threads may do concurrently, without access to the job.
fn in_task<R>(work: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R, MapFailure> {
    JOB.set(None, || Python::attach(work)).map_err(MapFailure::from)
}

/// Runs `program(job)` as a rank of a group, or in this process alone if `comm` is None, and
/// returns its result.
///
/// If other ranks are lost, the program runs again on the surviving ranks. Work is not repeated if
/// it is kept in `Partitions` and `Progress` objects that were created outside of the program.
///
/// `threads` is the number of threads of this rank, by default an even share of the node's CPUs.
/// `patience` is how many seconds a rank may load or map while other ranks wait for it. At rank 0,
/// `watch` is called with a line of text for each iteration, and when ranks are lost.
#[pyfunction]
#[pyo3(name = "run_job", signature = (comm, program, threads = 0, patience = 3600.0, watch = None))]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 passes it by value")]
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

/// Exceptions of `watch` are printed, because no caller waits for them.
fn notify_watch(watch: Option<&Py<PyAny>>, event: &MapEvent<'_>) {
    let Some(watch) = watch else { return };
    Python::attach(|py| {
        if let Err(error) = watch.call1(py, (event.to_string(),)) {
            error.write_unraisable(py, Some(watch.bind(py)));
        }
    });
}

/// Adds the functions and classes to the module. The package's `map.py` exports them.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_class::<job::PyJob>()?;
    module.add_class::<job::PyMapped>()?;
    module.add_class::<partitions::PyPartitions>()?;
    module.add_class::<progress::PyProgress>()
}
