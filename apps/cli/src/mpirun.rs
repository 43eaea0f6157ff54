//! `cool mpirun`: starts an MPI program by the user's own `mpirun`, with libcool_mpi.so before its MPI library.

use crate::error::Error;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LIBRARY: &str = "libcool_mpi.so";

/// Run an MPI program as it is, its long collectives by COOL
///
/// Finds libcool_mpi.so, and becomes the mpirun of Open MPI, MPICH or one of its relatives with all arguments, so that the
/// library is loaded before the MPI library of each rank (LD_PRELOAD), and the variables that begin with COOL_ and are set
/// here are set there. Nodes need the library at the same path. What is taken, and the variables COOL_MPI_..., say docs/guide/mpi.md.
///
/// As in: cool mpirun -n 16 ./program
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The launcher
    #[arg(long, value_name = "PATH", default_value = "mpirun")]
    mpirun: PathBuf,

    /// libcool_mpi.so; by default the one beside this program, or in ../lib
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// What the launcher is given: its options, the program and the program's
    #[arg(value_name = "ARGUMENT", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// How a launcher is told variables of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launcher {
    /// `-x NAME=VALUE`
    OpenMpi,
    /// `-genv NAME VALUE`: MPICH's, and those that were made of it.
    Hydra,
}

impl Launcher {
    /// By what it prints when it is asked for its version.
    fn of_version(text: &str) -> Option<Launcher> {
        let text = text.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if says(&["open mpi", "openmpi", "prte"]) {
            Some(Launcher::OpenMpi)
        } else {
            says(&["hydra", "mpich", "intel(r) mpi"]).then_some(Launcher::Hydra)
        }
    }

    fn option(self, name: &OsStr, value: &OsStr) -> Vec<OsString> {
        match self {
            Launcher::OpenMpi => {
                let mut pair = name.to_owned();
                pair.push("=");
                pair.push(value);
                vec!["-x".into(), pair]
            }
            Launcher::Hydra => vec!["-genv".into(), name.to_owned(), value.to_owned()],
        }
    }
}

/// Becomes the launcher; returns only if that fails.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let library = match &options.library {
        Some(path) => there(path.clone()).ok_or_else(|| Error::NoLibrary(path.display().to_string())),
        None => beside_this_program(),
    }?;
    let launcher = &options.mpirun;
    let failed = |reason| Error::Launcher { path: launcher.display().to_string(), reason };
    let asked = Command::new(launcher).arg("--version").stdin(Stdio::null()).output().map_err(failed)?;
    let printed = String::from_utf8_lossy(&[asked.stdout, asked.stderr].concat()).into_owned();
    let kind = Launcher::of_version(&printed).ok_or_else(|| Error::UnknownLauncher {
        path: launcher.display().to_string(),
        says: printed.lines().next().unwrap_or_default().to_owned(),
    })?;
    let mut command = Command::new(launcher);
    command
        .args(variables(library, std::env::vars_os()).flat_map(|(name, value)| kind.option(&name, &value)));
    Err(failed(command.args(&options.arguments).exec()))
}

/// The variables of the ranks, of those of this process: the library, before what else is loaded so, and COOL's.
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

/// In the folder of this program, as they are built, or where libraries are installed that come with programs.
fn beside_this_program() -> Result<PathBuf, Error> {
    let program = std::env::current_exe().map_err(|e| Error::Executable(e.to_string()))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let multiarch = format!("../lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = [".", "../lib", &multiarch].map(|place| folder.join(place).join(LIBRARY));
    let tried = places.each_ref().map(|place| place.display().to_string()).join(", ");
    places.into_iter().find_map(there).ok_or(Error::NoLibrary(tried))
}

/// The whole path of a file, if it is there.
fn there(path: PathBuf) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_their_versions() {
        let kind = Launcher::of_version;
        assert_eq!(kind("mpirun (Open MPI) 4.1.4\n\nReport bugs to"), Some(Launcher::OpenMpi));
        assert_eq!(kind("prterun (PRRTE) 3.0.11"), Some(Launcher::OpenMpi));
        assert_eq!(kind("HYDRA build details:\n    Version: 5.0.2"), Some(Launcher::Hydra));
        assert_eq!(kind("Intel(R) MPI Library for Linux* OS, Version 2021.19"), Some(Launcher::Hydra));
        assert_eq!(kind("srun: slurm 22.05"), None);
    }

    #[test]
    fn ranks_have_the_library_first_and_what_is_set_of_cool() {
        let ours = [("PATH", "/bin"), ("COOL_MPI_MIN", "64K"), ("LD_PRELOAD", "other.so")];
        let ours = ours.map(|(name, value)| (name.into(), value.into()));
        let of_ranks: Vec<_> = variables("/lib/libcool_mpi.so".into(), ours.into_iter()).collect();
        let expected = [("LD_PRELOAD", "/lib/libcool_mpi.so:other.so"), ("COOL_MPI_MIN", "64K")];
        assert_eq!(of_ranks, expected.map(|(name, value)| (OsString::from(name), OsString::from(value))));
        let (name, value) = (OsStr::new("COOL_MPI_MIN"), OsStr::new("64K"));
        assert_eq!(Launcher::OpenMpi.option(name, value), ["-x", "COOL_MPI_MIN=64K"]);
        assert_eq!(Launcher::Hydra.option(name, value), ["-genv", "COOL_MPI_MIN", "64K"]);
    }

    #[test]
    fn what_follows_is_the_launchers() {
        use clap::Parser;
        let line = ["cool", "mpirun", "--mpirun", "mpiexec", "-n", "16", "./program", "--library", "x"];
        let options = crate::Options::try_parse_from(line).unwrap();
        let crate::Command::Mpirun(options) = options.command else { panic!("another command") };
        assert_eq!(options.mpirun, Path::new("mpiexec"));
        assert_eq!(options.arguments, ["-n", "16", "./program", "--library", "x"]);
        assert_eq!(options.library, None);
    }
}
