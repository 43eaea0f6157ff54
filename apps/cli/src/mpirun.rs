//! `cool mpirun`: starts an MPI program with the user's own `mpirun`, and preloads libcool_mpi.so.

use crate::error::Error;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LIBRARY: &str = "libcool_mpi.so";

/// Run an unmodified MPI program, with long collectives handled by COOL
///
/// Executes the mpirun of Open MPI, MPICH or a derivative with all arguments, and preloads
/// libcool_mpi.so before the MPI library of each rank (LD_PRELOAD). Variables that begin with COOL_
/// are passed on to the ranks. The library must be at the same path on all nodes. See
/// docs/guide/mpi.md for the intercepted functions and for the variables COOL_MPI_*.
///
/// Example: cool mpirun -n 16 ./program
#[derive(Debug, clap::Args)]
pub(crate) struct MpirunOptions {
    /// Launcher of the MPI library
    #[arg(long, value_name = "PATH", default_value = "mpirun")]
    mpirun: PathBuf,

    /// Path of libcool_mpi.so [default: next to this program, or in ../lib]
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Arguments of the launcher: its options, the program, and the program's arguments
    #[arg(value_name = "ARGUMENT", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// The kind of launcher, which determines how variables are passed to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MpiLauncher {
    /// `-x NAME=VALUE`
    OpenMpi,
    /// `-genv NAME VALUE`: MPICH and its derivatives.
    Hydra,
}

impl MpiLauncher {
    /// Recognizes a launcher by the text of its --version.
    fn from_version(text: &str) -> Option<MpiLauncher> {
        let text = text.to_lowercase();
        let contains = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if contains(&["open mpi", "openmpi", "prte"]) {
            Some(MpiLauncher::OpenMpi)
        } else {
            contains(&["hydra", "mpich", "intel(r) mpi"]).then_some(MpiLauncher::Hydra)
        }
    }

    fn option(self, name: &OsStr, value: &OsStr) -> Vec<OsString> {
        match self {
            MpiLauncher::OpenMpi => {
                let mut pair = name.to_owned();
                pair.push("=");
                pair.push(value);
                vec!["-x".into(), pair]
            }
            MpiLauncher::Hydra => vec!["-genv".into(), name.to_owned(), value.to_owned()],
        }
    }
}

/// Executes the launcher in place of this process. Returns only if that fails.
pub(crate) fn run(options: &MpirunOptions) -> Result<(), Error> {
    let library = match &options.library {
        Some(path) => existing(path.clone()).ok_or_else(|| Error::NoLibrary(path.display().to_string())),
        None => beside_this_program(),
    }?;
    let launcher = &options.mpirun;
    let failed = |reason| Error::MpiLauncher { path: launcher.display().to_string(), reason };
    let version = Command::new(launcher).arg("--version").stdin(Stdio::null()).output().map_err(failed)?;
    let printed = String::from_utf8_lossy(&[version.stdout, version.stderr].concat()).into_owned();
    let kind = MpiLauncher::from_version(&printed).ok_or_else(|| Error::UnknownLauncher {
        path: launcher.display().to_string(),
        version: printed.lines().next().unwrap_or_default().to_owned(),
    })?;
    let mut command = Command::new(launcher);
    command
        .args(variables(library, std::env::vars_os()).flat_map(|(name, value)| kind.option(&name, &value)));
    Err(failed(command.args(&options.arguments).exec()))
}

/// Returns the variables of the ranks: LD_PRELOAD with the library in front of those of this
/// process, and all variables that begin with COOL_.
fn variables(
    library: PathBuf,
    ours: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    let mut preload = library.into_os_string();
    let mut variables = Vec::new();
    for (name, value) in ours {
        if name == "LD_PRELOAD" && !value.is_empty() {
            preload.push(":");
            preload.push(value);
        } else if name.as_encoded_bytes().starts_with(b"COOL_") {
            variables.push((name, value));
        }
    }
    std::iter::once(("LD_PRELOAD".into(), preload)).chain(variables)
}

/// Finds the library in the directory of this program, where it is built, or where packages install
/// it.
fn beside_this_program() -> Result<PathBuf, Error> {
    let program = std::env::current_exe().map_err(|e| Error::Executable(e.to_string()))?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    let multiarch = format!("../lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = [".", "../lib", &multiarch].map(|place| directory.join(place).join(LIBRARY));
    let tried = places.each_ref().map(|place| place.display().to_string()).join(", ");
    places.into_iter().find_map(existing).ok_or(Error::NoLibrary(tried))
}

/// Returns the absolute path of a file; `None` if it does not exist.
fn existing(path: PathBuf) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_recognized_by_their_versions() {
        let kind = MpiLauncher::from_version;
        assert_eq!(kind("mpirun (Open MPI) 4.1.4\n\nReport bugs to"), Some(MpiLauncher::OpenMpi));
        assert_eq!(kind("prterun (PRRTE) 3.0.11"), Some(MpiLauncher::OpenMpi));
        assert_eq!(kind("HYDRA build details:\n    Version: 5.0.2"), Some(MpiLauncher::Hydra));
        assert_eq!(kind("Intel(R) MPI Library for Linux* OS, Version 2021.19"), Some(MpiLauncher::Hydra));
        assert_eq!(kind("srun: slurm 22.05"), None);
    }

    #[test]
    fn ranks_get_the_library_first_and_the_variables_of_cool() {
        let ours = [("PATH", "/bin"), ("COOL_MPI_MIN", "64K"), ("LD_PRELOAD", "other.so")];
        let ours = ours.map(|(name, value)| (name.into(), value.into()));
        let of_ranks: Vec<_> = variables("/lib/libcool_mpi.so".into(), ours.into_iter()).collect();
        let expected = [("LD_PRELOAD", "/lib/libcool_mpi.so:other.so"), ("COOL_MPI_MIN", "64K")];
        assert_eq!(of_ranks, expected.map(|(name, value)| (OsString::from(name), OsString::from(value))));
        let (name, value) = (OsStr::new("COOL_MPI_MIN"), OsStr::new("64K"));
        assert_eq!(MpiLauncher::OpenMpi.option(name, value), ["-x", "COOL_MPI_MIN=64K"]);
        assert_eq!(MpiLauncher::Hydra.option(name, value), ["-genv", "COOL_MPI_MIN", "64K"]);
    }

    #[test]
    fn all_further_arguments_are_the_launchers() {
        use clap::Parser;
        let line = ["cool", "mpirun", "--mpirun", "mpiexec", "-n", "16", "./program", "--library", "x"];
        let options = crate::CoolOptions::try_parse_from(line).unwrap();
        let crate::CoolCommand::Mpirun(options) = options.command else { panic!("another command") };
        assert_eq!(options.mpirun, Path::new("mpiexec"));
        assert_eq!(options.arguments, ["-n", "16", "./program", "--library", "x"]);
        assert_eq!(options.library, None);
    }
}
