//! Explains why a rank's program could not be started, with a remedy.

use crate::account::PATH;
use cool_proto::launcher::Start;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The execute permissions of a file for its owner, its group and others.
const EXECUTABLE: u32 = 0o111;

/// Exit statuses of a shell (POSIX.1-2017, Shell Command Language, 2.8.2) for a program that does
/// not exist, and for one that cannot be executed.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

/// Returns the exit status that a shell would return for a program that does not exist or cannot be
/// executed, or -1 for any other error. A working directory without access also results in 126,
/// because the system reports the same error for it.
pub(crate) fn exit_status(start: &Start, error: &io::Error) -> i32 {
    match error.kind() {
        io::ErrorKind::NotFound if !is_directory_missing(&start.workdir) => NOT_FOUND,
        io::ErrorKind::PermissionDenied => NOT_EXECUTABLE,
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => NOT_EXECUTABLE,
        _ => -1,
    }
}

/// Returns the reason why a program could not be started. The system reports the same error for a
/// missing directory, a missing program and a missing interpreter, so this function checks which of
/// them is missing.
pub(crate) fn explain(start: &Start, error: &io::Error) -> String {
    let (program, workdir) = (start.program.as_str(), start.workdir.as_str());
    match error.kind() {
        io::ErrorKind::NotFound if is_directory_missing(workdir) => {
            format!("the directory {workdir} does not exist; create it, or choose another --workdir")
        }
        io::ErrorKind::NotFound if program.contains('/') => match Path::new(workdir).join(program).exists() {
            true => format!("the interpreter that {program} names in its first line does not exist"),
            false => {
                "there is no such program; correct its path, or copy it to the node with --stage".to_owned()
            }
        },
        io::ErrorKind::NotFound => {
            let path = start.env.get("PATH").map_or(PATH, String::as_str);
            format!(
                "there is no such program in {path} (PATH); give its path, or copy it to the node with --stage"
            )
        }
        io::ErrorKind::PermissionDenied if is_not_executable(&Path::new(workdir).join(program)) => {
            format!("{program} is not executable; run chmod +x on it")
        }
        _ => error.to_string(),
    }
}

fn is_directory_missing(workdir: &str) -> bool {
    !workdir.is_empty() && !Path::new(workdir).is_dir()
}

fn is_not_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & EXECUTABLE == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(program: &str, workdir: &str) -> Start {
        Start { program: program.to_owned(), workdir: workdir.to_owned(), ..Start::default() }
    }

    fn why(program: &str, workdir: &str, kind: io::ErrorKind) -> String {
        explain(&start(program, workdir), &kind.into())
    }

    #[test]
    fn exit_statuses_are_those_of_a_shell() {
        let status = |workdir, error: io::Error| exit_status(&start("./x", workdir), &error);
        assert_eq!(status("/", io::ErrorKind::NotFound.into()), 127);
        assert_eq!(status("/", io::ErrorKind::PermissionDenied.into()), 126);
        assert_eq!(status("/", io::Error::from_raw_os_error(libc::ENOEXEC)), 126);
        assert_eq!(status("/no/such/place", io::ErrorKind::NotFound.into()), -1);
        assert_eq!(status("/", io::ErrorKind::OutOfMemory.into()), -1);
    }

    #[test]
    fn the_missing_directory_program_or_interpreter_is_named() {
        let missing = |program, workdir| why(program, workdir, io::ErrorKind::NotFound);
        assert!(missing("./x", "/no/such/place").contains("the directory /no/such/place does not exist"));
        assert!(missing("./x", "/").contains("no such program") && missing("./x", "/").contains("--stage"));
        assert!(missing("x", "").contains("in /usr/local/bin:/usr/bin:/bin (PATH)"));
        assert!(missing("bin/sh", "/").contains("interpreter"));
    }

    #[test]
    fn a_file_without_execute_permission_is_named_with_the_remedy() {
        let denied = |program, workdir| why(program, workdir, io::ErrorKind::PermissionDenied);
        assert!(denied("etc/passwd", "/").contains("chmod +x"));
        assert!(!denied("bin/sh", "/").contains("chmod"));
    }
}
