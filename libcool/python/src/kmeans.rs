//! `cool.kmeans`: the library `cool-kmeans` on NumPy arrays. The package's `kmeans.py` adds the
//! interface that users of scikit-learn expect.

use crate::comm::PyComm;
use crate::error::{exception_for, job_error, lost_error};
use cool_kmeans::Error;
use cool_kmeans::grid::Reals;
use cool_kmeans::in_memory::{Clustering, InputRows, nearest};
use cool_kmeans::options::{ClusteringOptions, Init};
use cool_kmeans::peer_ranks::PeerRanks;
use cool_kmeans::point_share::PointShare;
use cool_kmeans::progress::{ClusteringProgress, Iteration, ProgressObserver};
use cool_kmeans::tuning::Tuning;
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Options of a fit, passed as keywords.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct FitOptions {
    clusters: usize,
    /// "k-means||", "k-means++", "random", or the name of an .npy file.
    init: String,
    restarts: usize,
    iterations: usize,
    movement: f64,
    /// Seed of the random choices. All ranks use that of rank 0.
    seed: u64,
    /// "short" or "float".
    precision: String,
    /// Number of threads, or 0 for an even share of the node's CPUs.
    threads: usize,
    verbose: bool,
}

/// Prints iterations to standard error, if enabled.
struct IterationPrinter(bool);

impl ProgressObserver for IterationPrinter {
    fn loading(&self, _: u64) {}

    fn loaded(&self, _: u64) {}

    fn iteration(&self, iteration: &Iteration) {
        if self.0 {
            eprintln!(
                "iteration {}: inertia {}, {} points moved to another centroid",
                iteration.number, iteration.inertia, iteration.moved_points
            );
        }
    }
}

/// Result of a fit.
struct FitResult {
    found: Clustering,
    iterations: usize,
    converged: bool,
}

fn error(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::Collective(error) => exception_for(py, error),
        Error::Elsewhere { rank, .. } => job_error(py, error.to_string(), &[*rank]),
        Error::Job(cool_map::Error::Lost(text)) => lost_error(py, text.clone()),
        Error::Job(_) => job_error(py, error.to_string(), &[]),
        _ => PyValueError::new_err(error.to_string()),
    }
}

/// Centroids, labels of this rank's rows, inertia, number of iterations, and whether the algorithm
/// converged.
type FitTuple<'py> = (Bound<'py, PyArray2<f64>>, Bound<'py, PyArray1<i32>>, f64, usize, bool);

/// Clusters the rows of all ranks, which are uint8 or float64, with optional weights.
#[pyfunction]
fn kmeans_fit<'py>(
    py: Python<'py>,
    comm: Option<&Bound<'py, PyComm>>,
    rows: &Bound<'py, PyAny>,
    weights: Option<PyReadonlyArray1<'py, f64>>,
    options: FitOptions,
) -> PyResult<FitTuple<'py>> {
    let rank = comm.map(|comm| comm.get().get_rank(py)).transpose()?;
    let reals = rows.extract::<PyReadonlyArray2<'_, f64>>();
    let bytes = rows.extract::<PyReadonlyArray2<'_, u8>>();
    let (given, dims) = match (&reals, &bytes) {
        (Ok(reals), _) => (InputRows::Reals(reals.as_slice()?), reals.shape()[1]),
        (Err(_), Ok(bytes)) => (InputRows::Bytes(bytes.as_slice()?), bytes.shape()[1]),
        (Err(_), Err(_)) => return Err(PyValueError::new_err("rows are a table of uint8 or float64")),
    };
    let weights = weights.as_ref().map(PyReadonlyArray1::as_slice).transpose()?;
    let rows = RankRows { given, dims, weights };
    let fitted = py.detach(|| match &rank {
        Some(rank) => fit(&PeerRanks::from_comm(rank), rows, &options),
        None => fit(&PeerRanks::alone(), rows, &options),
    });
    let FitResult { found, iterations, converged } = fitted.map_err(|e| error(py, &e))?;
    let centroids = PyArray1::from_vec(py, found.centers).reshape([options.clusters, dims])?;
    let labels = PyArray1::from_iter(py, found.labels.into_iter().map(|label| label as i32));
    Ok((centroids, labels, found.inertia, iterations, converged))
}

/// The rows of a rank.
#[derive(Clone, Copy)]
struct RankRows<'a> {
    given: InputRows<'a>,
    dims: usize,
    weights: Option<&'a [f64]>,
}

fn fit(peers: &PeerRanks<'_>, rows: RankRows<'_>, options: &FitOptions) -> Result<FitResult, Error> {
    let mut seed = [options.seed];
    peers.bcast(&mut seed, 0)?;
    let threads = if options.threads > 0 { options.threads } else { peers.job().threads() };
    let reals = peers.agree(reals(&options.precision))?;
    let share = PointShare::from_memory(peers, rows.given, rows.dims, rows.weights, reals)?;
    let watch = IterationPrinter(options.verbose && peers.leads());
    let clustered = share.cluster(
        peers,
        &clustering(options, seed[0], threads),
        &watch,
        &mut ClusteringProgress::new(),
    )?;
    let found = share.in_input_units(peers, rows.given, &clustered, threads)?;
    Ok(FitResult { found, iterations: clustered.iterations.len(), converged: clustered.converged })
}

/// Returns the number format with a name.
fn reals(name: &str) -> Result<Reals, Error> {
    match name {
        "short" => Ok(Reals::Short),
        "float" => Ok(Reals::Float),
        other => Err(Error::Option(format!("precision {other:?}: \"short\" or \"float\""))),
    }
}

/// Minimum number of sampled points, from which k-means++ chooses.
const SAMPLE_POINTS_MIN: usize = 20_000;

fn clustering(options: &FitOptions, seed: u64, threads: usize) -> ClusteringOptions {
    ClusteringOptions {
        restarts: options.restarts,
        iterations: options.iterations,
        movement: options.movement,
        sample: SAMPLE_POINTS_MIN.div_ceil(options.clusters.max(1)).max(4),
        init: Some(Init::from_name(&options.init)),
        ..ClusteringOptions::new(options.clusters, seed, Tuning::with_threads(threads))
    }
}

/// Labels of rows and their squared distances from the nearest centroid.
type NearestCenters<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<f64>>);

/// Returns the nearest centroid of each row and the squared distance from it.
#[pyfunction]
fn kmeans_nearest<'py>(
    py: Python<'py>,
    rows: PyReadonlyArray2<'py, f64>,
    centroids: PyReadonlyArray2<'py, f64>,
    threads: usize,
) -> PyResult<NearestCenters<'py>> {
    let (numbers, centroids) = (rows.as_slice()?, centroids.as_slice()?);
    let dims = rows.shape()[1];
    let found = py.detach(|| nearest(numbers, centroids, dims, threads));
    let labels = PyArray1::from_iter(py, found.iter().map(|(label, _)| *label as i32));
    Ok((labels, PyArray1::from_iter(py, found.iter().map(|(_, squared)| *squared))))
}

/// Adds the functions to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(kmeans_fit, module)?)?;
    module.add_function(wrap_pyfunction!(kmeans_nearest, module)?)
}
