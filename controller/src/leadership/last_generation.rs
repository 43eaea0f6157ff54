//! The generation of a single controller, kept in a file.
//!
//! A generation is the start time of a controller, because each must exceed all earlier ones. A
//! clock that is set back between two starts would break this: switches and agents would refuse the
//! controller until the clock has caught up. The file therefore contains the last generation, and
//! the next one exceeds it.

use super::state_store::{read_file, replace_file};
use cool_proto::job_ids;
use std::io;
use std::path::Path;
use tracing::warn;

/// Name of the file in the state directory.
const FILE_NAME: &str = "generation";

/// Returns the generation of a controller that starts now, and records it. Without a directory, or
/// if the file cannot be used, it is the time `now`, in nanoseconds since 1970.
pub(super) fn next(directory: Option<&Path>, now: u64) -> u64 {
    let Some(directory) = directory else { return now };
    let generation = match read(directory) {
        Ok(Some(last)) => after(last, now),
        Ok(None) => now,
        Err(error) => {
            let path = directory.join(FILE_NAME);
            warn!(path = %path.display(), %error, "cannot read the last generation; using the clock");
            now
        }
    };
    if generation > now {
        warn!("the clock was set back since the last start; continuing from the last generation");
    }
    if let Err(error) = replace_file(directory, FILE_NAME, &generation.to_string()) {
        let path = directory.join(FILE_NAME);
        warn!(path = %path.display(), %error, "cannot record the generation; do not set the clock back");
    }
    generation
}

/// Returns the generation of a controller that starts at `now` after one with the generation
/// `last`. It is larger by a full unit, because ids of jobs and groups are derived from it.
pub(super) fn after(last: u64, now: u64) -> u64 {
    now.max(last.saturating_add(tick_nanos()))
}

/// Minimum difference between two generations.
pub(super) fn tick_nanos() -> u64 {
    u64::try_from(job_ids::TICK.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the last generation, or `None` if none was recorded.
fn read(directory: &Path) -> io::Result<Option<u64>> {
    let parse = |text: String| text.trim().parse::<u64>();
    let last = read_file(directory, FILE_NAME)?.map(parse).transpose();
    last.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn generations_increase_though_the_clock_is_set_back() {
        let directory = TempDir::new().unwrap();
        let path = Some(directory.path());
        let hour = 3_600_000_000_000;
        assert_eq!(next(path, 2 * hour), 2 * hour);
        let second = next(path, hour);
        assert!(job_ids::before_first(second) >= job_ids::before_first(2 * hour) && second > 2 * hour);
        assert_eq!(next(path, 3 * hour), 3 * hour);
        assert_eq!(next(None, hour), hour);
    }

    #[test]
    fn an_unusable_file_is_replaced() {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join(FILE_NAME), "x").unwrap();
        assert_eq!((next(Some(directory.path()), 7), read(directory.path()).unwrap()), (7, Some(7)));
        assert_eq!(next(Some(Path::new("/nonexistent/directory")), 8), 8);
    }
}
