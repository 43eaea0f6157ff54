//! The state of a clustering in a file that is whole at any time: a new one takes the place of the old one when all of
//! it is on the disk. A line of JSON says what the file belongs to; the centroids follow as 16-bit integers.

use crate::error::Error;
use crate::files;
use crate::grid::Centroids;
use crate::lloyd::{Clustering, Share};
use crate::progress::{Iteration, Progress};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::Path;

const FORMAT: &str = "cool-kmeans checkpoint 2";

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    run: Identity,
    /// As [`Iteration::bits`].
    iterations: Vec<[u64; 8]>,
}

/// What must be the same, so that going on gives what the first run would have given.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Identity {
    k: usize,
    seed: u64,
    /// Where the first centroids came from.
    init: String,
    sample: usize,
    rows: u64,
    points: u64,
    dims: usize,
    /// Stands for the grid (FNV-1a).
    grid: u64,
}

impl Identity {
    fn of(share: &Share, how: &Clustering) -> Self {
        let numbers = share.grid.origin.iter().chain([&share.grid.step]);
        let bytes = numbers.flat_map(|number| number.to_bits().to_le_bytes());
        let grid = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let (rows, points) = (share.source.rows(), share.chosen.len());
        let init = format!("{:?}", how.init());
        Self {
            k: how.k,
            seed: how.seed,
            init,
            sample: how.sample,
            rows,
            points,
            dims: share.points.dims,
            grid,
        }
    }
}

/// Writes a checkpoint.
pub(crate) fn write(path: &Path, share: &Share, how: &Clustering, progress: &Progress) -> Result<(), Error> {
    let header = Header {
        format: FORMAT.to_owned(),
        run: Identity::of(share, how),
        iterations: progress.iterations.iter().map(Iteration::bits).collect(),
    };
    let mut bytes = serde_json::to_vec(&header).map_err(std::io::Error::from).map_err(Error::file(path))?;
    bytes.push(b'\n');
    bytes.extend(progress.centroids.values.iter().flat_map(|v| v.to_le_bytes()));
    files::replace(path, &bytes)
}

/// Reads a checkpoint of this clustering; `None` if there is none.
pub(crate) fn read(path: &Path, share: &Share, how: &Clustering) -> Result<Option<Progress>, Error> {
    let bytes = match std::fs::read(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.map_err(Error::file(path))?,
    };
    let wrong = |problem: String| Error::Checkpoint { path: path.to_owned(), problem };
    let none = || wrong(format!("not a \"{FORMAT}\""));
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(none)?;
    let header: Header = serde_json::from_slice(&bytes[..end]).map_err(|_| none())?;
    if header.format != FORMAT {
        return Err(none());
    }
    let run = Identity::of(share, how);
    if header.run != run {
        return Err(wrong(format!("it is of {:?}, but this run is of {run:?}", header.run)));
    }
    let (values, rest) = bytes[end + 1..].as_chunks();
    if values.len() != how.k * share.points.dims || !rest.is_empty() {
        return Err(wrong(format!("it has {} bytes of centroids", bytes.len() - end - 1)));
    }
    let values = values.iter().map(|bytes| i16::from_le_bytes(*bytes)).collect();
    let (precision, dims) = (share.points.precision(), share.points.dims);
    let iterations = header.iterations.iter().map(Iteration::from_bits).collect();
    Ok(Some(Progress { centroids: Centroids { precision, dims, values }, iterations }))
}
