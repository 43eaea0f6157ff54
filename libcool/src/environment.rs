//! The environment of a rank (docs/design/architecture.md): its rank and group according to its
//! launcher, the socket of its agent, and the plans that the user forces.

use crate::Operation;
use crate::error::Error;
use crate::job_cluster::JobCluster;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Default directory of agents' sockets.
const SOCKETS: &str = "/run/cool";

/// Time for which ranks wait for each other, if another launcher than `cool run` started them.
const ALL_JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// A process as a rank: its agent, its number, and how it joins its group.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Environment {
    pub(crate) agent: RankAgent,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) mode: JoinMode,
}

/// The agent of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RankAgent {
    /// A running one, with this socket.
    Socket(PathBuf),
    /// One that the ranks of the job start.
    Job(JobCluster),
}

/// How a rank joins its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinMode {
    /// The group exists already.
    Member { group: u64 },
    /// The group is created once `size` ranks with the same key have enlisted.
    Enlist { key: String, size: u32, timeout: Duration },
}

/// The environment variables of a launcher.
#[derive(Debug)]
struct LauncherVariables {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    /// Variables that identify the job. The first one must be set; the others are used if they are.
    job: &'static [&'static str],
}

/// Known launchers, in the order of detection. A launcher that may run inside a job of another one
/// precedes it.
const LAUNCHERS: [&LauncherVariables; 5] = [
    &LauncherVariables { name: "job", rank: "COOL_RANK", size: "COOL_SIZE", job: &["COOL_JOB"] },
    &LauncherVariables {
        name: "Open MPI job",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        job: &["PMIX_NAMESPACE"],
    },
    &TORCHRUN,
    &PMI,
    &SLURM,
];

const TORCHRUN: LauncherVariables = LauncherVariables {
    name: "torchrun job",
    rank: "RANK",
    size: "WORLD_SIZE",
    job: &["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
};

/// MPICH provides no name of the job, so the user must set one.
const PMI: LauncherVariables =
    LauncherVariables { name: "PMI job", rank: "PMI_RANK", size: "PMI_SIZE", job: &["COOL_JOB"] };

const SLURM: LauncherVariables = LauncherVariables {
    name: "Slurm job",
    rank: "SLURM_PROCID",
    size: "SLURM_STEP_NUM_TASKS",
    job: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
};

/// Returns the launcher that started this process.
fn launcher(lookup: impl Fn(&str) -> Option<OsString>) -> Option<&'static LauncherVariables> {
    let started = |l: &LauncherVariables| lookup(l.rank).is_some() && lookup(l.size).is_some();
    // torchrun may itself be started by mpirun, once per node. Its workers inherit the variables of
    // mpirun, which are then equal at all workers of a node.
    if lookup("TORCHELASTIC_RUN_ID").is_some() && lookup("COOL_JOB").is_none() && started(&TORCHRUN) {
        return Some(&TORCHRUN);
    }
    let found = LAUNCHERS.into_iter().find(|l| started(l))?;
    // `srun --mpi=pmi2` sets both families of variables, and Slurm's identify the job. They differ
    // if MPICH's launcher runs inside a Slurm job.
    let equal = lookup(PMI.rank) == lookup(SLURM.rank) && lookup(PMI.size) == lookup(SLURM.size);
    let is_of_slurm = found.name == PMI.name && lookup("COOL_JOB").is_none() && equal;
    Some(if is_of_slurm { &SLURM } else { found })
}

impl Environment {
    /// Returns the identity of this process, or `None` if no launcher started it.
    pub(crate) fn from_process() -> Result<Option<Environment>, Error> {
        Environment::read(|name| std::env::var_os(name), Path::new(SOCKETS))
    }

    /// Returns the socket of this process's agent.
    pub(crate) fn socket() -> Result<PathBuf, Error> {
        socket(|name| std::env::var_os(name), Path::new(SOCKETS))
    }

    /// Reads the variables through `lookup`.
    fn read(lookup: impl Fn(&str) -> Option<OsString>, sockets: &Path) -> Result<Option<Environment>, Error> {
        let socket = || socket(&lookup, sockets);
        if lookup("COOL_GROUP").is_some() {
            return Ok(Some(Environment {
                agent: RankAgent::Socket(socket()?),
                rank: number("COOL_RANK", &lookup)?,
                size: number("COOL_SIZE", &lookup)?,
                mode: JoinMode::Member { group: number("COOL_GROUP", &lookup)? },
            }));
        }
        let Some(launcher) = launcher(&lookup) else { return Ok(None) };
        let (rank, size) = (number(launcher.rank, &lookup)?, number(launcher.size, &lookup)?);
        let named = |variable: &&str| Some(lookup(variable)?.to_string_lossy().into_owned());
        if lookup(launcher.job[0]).is_none() {
            return Err(Error::Environment {
                variable: launcher.job[0],
                value: "not set".into(),
                expected: "a name for the job that no other running job has".into(),
            });
        }
        let job: Vec<String> = launcher.job.iter().filter_map(named).collect();
        let key = format!("{} {}", launcher.name, job.join(" "));
        let started = |explicit| JobCluster::from_variables(&lookup, &key, explicit).map(RankAgent::Job);
        let agent = match started(true).filter(|_| lookup("COOL_SOCKET").is_none()) {
            Some(agent) => agent,
            None => socket().map(RankAgent::Socket).or_else(|error| started(false).ok_or(error))?,
        };
        Ok(Some(Environment {
            agent,
            rank,
            size,
            mode: JoinMode::Enlist { key, size, timeout: ALL_JOIN_TIMEOUT },
        }))
    }
}

/// Returns the socket of this process's agent: `COOL_SOCKET`, or the only socket in /run/cool.
///
/// # Errors
/// If the variable is not set and /run/cool does not contain exactly one socket.
pub fn agent_socket() -> Result<PathBuf, Error> {
    Environment::socket()
}

/// Returns the socket in `COOL_SOCKET`, or the only one in a directory.
fn socket(lookup: impl Fn(&str) -> Option<OsString>, sockets: &Path) -> Result<PathBuf, Error> {
    lookup("COOL_SOCKET").map_or_else(|| only_socket(sockets), |socket| Ok(socket.into()))
}

/// Returns the only socket in a directory.
fn only_socket(directory: &Path) -> Result<PathBuf, Error> {
    let wrong = |found: String| Error::Environment {
        variable: "COOL_SOCKET",
        value: format!("not set, and {} has {found}", directory.display()),
        expected: "the socket of this node's agent (cool-nodeagent --socket)".into(),
    };
    let entries = std::fs::read_dir(directory).map_err(|_| wrong("no sockets".into()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut sockets: Vec<PathBuf> = paths.filter(|p| p.extension().is_some_and(|e| e == "sock")).collect();
    match (sockets.pop(), sockets.len()) {
        (Some(socket), 0) => Ok(socket),
        (None, _) => Err(wrong("no sockets".into())),
        (Some(_), more) => Err(wrong(format!("{} sockets", more + 1))),
    }
}

/// The plans that `COOL_PLAN` forces, as a comma-separated list of `OPERATION=PLAN`. The agent
/// decides whether a plan is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForcedPlans {
    text: String,
    plans: Vec<(Operation, String)>,
}

impl ForcedPlans {
    /// Returns the plans in the environment of this process.
    pub(crate) fn from_environment() -> Result<ForcedPlans, Error> {
        let text = std::env::var_os("COOL_PLAN").unwrap_or_default();
        ForcedPlans::parse(&text.to_string_lossy())
    }

    fn parse(text: &str) -> Result<ForcedPlans, Error> {
        let mut plans = ForcedPlans { text: text.to_owned(), plans: Vec::new() };
        // A plan may contain commas, so a part without `=` continues the previous plan.
        for part in text.split(',').filter(|_| !text.is_empty()) {
            match (part.split_once('='), plans.plans.last_mut()) {
                (Some((operation, plan)), _) if !plan.is_empty() => {
                    let operation: Operation =
                        operation.trim().parse().map_err(|e| plans.error(format!("{e}")))?;
                    if plans.plans.iter().any(|(known, _)| *known == operation) {
                        return Err(plans.error(format!("{operation} is listed twice")));
                    }
                    plans.plans.push((operation, plan.to_owned()));
                }
                (None, Some((_, plan))) => {
                    plan.push(',');
                    plan.push_str(part);
                }
                _ => return Err(plans.error(format!("{part:?} is not OPERATION=PLAN"))),
            }
        }
        Ok(plans)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Operation, String)> {
        self.plans.iter()
    }

    /// Returns an error that quotes the variable.
    pub(crate) fn error(&self, reason: String) -> Error {
        Error::Plan { value: self.text.clone(), reason }
    }
}

fn number<N: FromStr>(variable: &'static str, lookup: impl Fn(&str) -> Option<OsString>) -> Result<N, Error> {
    let value = lookup(variable);
    let parsed = value.as_ref().and_then(|v| v.to_str()).and_then(|v| v.parse().ok());
    parsed.ok_or_else(|| Error::Environment {
        variable,
        value: value.map_or("not set".into(), |v| v.to_string_lossy().into_owned()),
        expected: "a number".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Environment>, String> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        Environment::read(find, Path::new("/nonexistent")).map_err(|e| e.to_string())
    }

    const ALL: [(&str, &str); 4] =
        [("COOL_SOCKET", "/run/cool/h1.sock"), ("COOL_GROUP", "9"), ("COOL_RANK", "3"), ("COOL_SIZE", "4")];

    #[test]
    fn a_process_that_no_launcher_started_is_no_rank() {
        assert_eq!(read(&[("COOL_SOCKET", "/run/cool/h1.sock"), ("SLURM_JOB_ID", "7")]), Ok(None));
        let e = Error::NotLaunched.to_string();
        assert!(e.contains("cool run -n N -- PROGRAM") && e.contains("`embedded`"), "{e}");
    }

    #[test]
    fn a_variable_that_is_missing_or_no_number_is_named() {
        assert_eq!(read(&ALL).unwrap().unwrap().rank, 3);
        assert!(read(&ALL[..2]).unwrap_err().contains("COOL_RANK is not set"));
        let e = read(&[ALL[0], ALL[1], ("COOL_RANK", "-1")]).unwrap_err();
        assert!(e.contains("COOL_RANK is -1, but should be a number"), "{e}");
        let e = read(&[ALL[0], ("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap_err();
        assert!(e.contains("COOL_JOB is not set, but should be a name for the job"), "{e}");
        let e = read(&[("COOL_JOB", "a"), ("COOL_RANK", "0"), ("COOL_SIZE", "2")]).unwrap_err();
        assert!(e.contains("COOL_SOCKET is not set, and /nonexistent has no sockets"), "{e}");
    }

    #[test]
    fn each_launchers_processes_find_their_job_and_rank() {
        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_JOB_ID", "31"),
            ("SLURM_STEP_ID", "0"),
        ];
        let torch = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h1"), ("MASTER_PORT", "29500")];
        let ompi =
            [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "3"), ("PMIX_NAMESPACE", "prte-7@1")];
        let found = |variables: &[(&str, &str)]| {
            let found = read(&[variables, &ALL[..1]].concat()).unwrap().unwrap();
            let JoinMode::Enlist { key, size, .. } = found.mode else { panic!("{:?}", found.mode) };
            assert_eq!(size, found.size);
            (found.rank, found.size, key)
        };
        assert_eq!(found(&slurm), (5, 8, "Slurm job 31 0".into()));
        assert_eq!(found(&torch), (1, 2, "torchrun job h1 29500".into()));
        assert_eq!(found(&ompi), (0, 3, "Open MPI job prte-7@1".into()));
        // mpirun and torchrun inside a Slurm job take precedence over Slurm.
        assert_eq!(found(&[&slurm[..], &ompi[..]].concat()).0, 0);
        assert_eq!(found(&[&slurm[..], &torch[..]].concat()).0, 1);
        // torchrun inside mpirun, which starts it once per node, takes precedence over mpirun.
        let elastic = [&torch[..], &[("TORCHELASTIC_RUN_ID", "r")]].concat();
        assert_eq!(found(&[&ompi[..], &elastic].concat()), (1, 2, "torchrun job h1 29500 r".into()));
        let by_hand = [("COOL_JOB", "mine"), ("COOL_RANK", "1"), ("COOL_SIZE", "2")];
        assert_eq!(found(&by_hand), (1, 2, "job mine".into()));
    }

    #[test]
    fn slurm_identifies_the_job_of_its_pmi_variables() {
        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_JOB_ID", "31"),
            ("SLURM_STEP_ID", "0"),
        ];
        let key = |pmi: &[(&str, &str)]| {
            let found = read(&[&slurm, pmi, &ALL[..1]].concat())?.unwrap();
            let JoinMode::Enlist { key, .. } = found.mode else { panic!("{:?}", found.mode) };
            Ok::<_, String>((found.rank, found.size, key))
        };
        // As `srun --mpi=pmi2` sets them.
        let same = [("PMI_RANK", "5"), ("PMI_SIZE", "8"), ("PMI_FD", "3"), ("PMI_JOBID", "31.0")];
        assert_eq!(key(&same), Ok((5, 8, "Slurm job 31 0".into())));
        // As MPICH's launcher sets them, in a job of Slurm that has one task per node.
        let mpich = [("PMI_RANK", "40"), ("PMI_SIZE", "64")];
        assert!(key(&mpich).unwrap_err().contains("COOL_JOB is not set"));
        let named = [mpich[0], mpich[1], ("COOL_JOB", "mine")];
        assert_eq!(key(&named), Ok((40, 64, "PMI job mine".into())));
    }

    #[test]
    fn the_only_socket_of_a_node_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let error = || only_socket(directory.path()).unwrap_err().to_string();
        assert!(error().contains("has no sockets"), "{}", error());
        let path = directory.path().join("h1.sock");
        std::fs::write(&path, "").unwrap();
        std::fs::write(directory.path().join("other"), "").unwrap();
        assert_eq!(only_socket(directory.path()).unwrap(), path);
        std::fs::write(directory.path().join("h2.sock"), "").unwrap();
        assert!(error().contains("has 2 sockets"), "{}", error());
    }

    #[test]
    fn plans_are_given_by_operation_and_may_have_commas() {
        let plans =
            ForcedPlans::parse("allreduce=rack:binomial,center:ring,bcast=flat:binomial/4096").unwrap();
        let all = [
            (Operation::Allreduce, "rack:binomial,center:ring".to_owned()),
            (Operation::Bcast, "flat:binomial/4096".to_owned()),
        ];
        assert!(plans.iter().eq(&all), "{plans:?}");
        assert_eq!(ForcedPlans::parse("").unwrap(), ForcedPlans::default());
    }

    #[test]
    fn plans_that_make_no_sense_are_quoted() {
        for (text, reason) in [
            ("cool-p-p", "\"cool-p-p\" is not OPERATION=PLAN"),
            ("bcast=", "\"bcast=\" is not"),
            ("bcast=multicast,bcast=cool-p-p", "bcast is listed twice"),
            ("gatherv=cool-p-p", "no operation \"gatherv\""),
        ] {
            let e = ForcedPlans::parse(text).unwrap_err().to_string();
            assert!(e.contains(&format!("COOL_PLAN is {text:?}")) && e.contains(reason), "{e}");
        }
    }
}
