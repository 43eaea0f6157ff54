//! Fuzz targets: properties that must hold for any bytes from outside. The same targets are tests
//! on seeded bytes and on earlier findings, a program of libFuzzer, and a command that runs one of
//! them on files.
//!
//! All targets are part of one library, because each further test or program would take seconds to
//! link.

mod bytes;
mod cluster;
mod file;
mod hostile_rank;
#[cfg(test)]
mod mutate;
mod targets;

use bytes::Bytes;
use file::File;

/// A named check of bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Name of the target, of its file, and of its directory in `corpus/`.
    pub name: &'static str,
    /// Panics if a property does not hold for these bytes.
    pub check: fn(&[u8]),
}

/// Returns the target with this name.
///
/// # Errors
/// Returns an error that lists all names if there is none.
pub fn find(name: &str) -> Result<FuzzTarget, String> {
    targets::TARGETS.iter().find(|target| target.name == name).copied().ok_or_else(|| {
        let names: Vec<&str> = targets::TARGETS.iter().map(|target| target.name).collect();
        format!("there is no fuzz target {name:?}; the targets are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tool_seeds;
#[cfg(test)]
mod tries;
