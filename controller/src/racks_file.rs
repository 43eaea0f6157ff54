//! The file of `--racks`.

use cool_fabric::RackTable;
use cool_topology::rack_table::RackTableError;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RacksFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}; name a readable text file", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A line is invalid.
    #[error("{}, {error}", .path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// The error, with the number of the line.
        error: RackTableError,
    },
}

/// Reads a table of racks from a file.
///
/// # Errors
/// Returns an error that names the file, the line and a remedy if the file cannot be read or a line
/// is invalid.
pub fn read(path: &str) -> Result<Arc<RackTable>, RacksFileError> {
    let path = PathBuf::from(path);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            RackTable::parse(&text).map(Arc::new).map_err(|error| RacksFileError::Line { path, error })
        }
        Err(error) => Err(RacksFileError::Read { path, error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file_the_line_and_a_remedy() {
        let missing = read("/nonexistent/racks").unwrap_err().to_string();
        assert!(missing.starts_with("cannot read /nonexistent/racks: "), "{missing}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(path, "west h[1-2]\n").unwrap();
        assert_eq!(read(path).unwrap().rack("h2"), Some("west"));
        std::fs::write(path, "west h[1-2]\neast\n").unwrap();
        let invalid = read(path).unwrap_err().to_string();
        assert!(invalid.starts_with(&format!("{path}, line 2: rack east has no nodes; write")), "{invalid}");
    }
}
