//! Python code that tests import must not change the state of the whole process, so that tests work
//! in any thread and in any order. Signal handlers can be set in the main thread only, and all
//! threads of a process share its working directory, environment and limits.

use std::path::Path;

use crate::workspace::texts;

/// Directories with Python code that tests import.
const DIRECTORIES: [&str; 4] = ["bench", "libcool/python/tests", "mininet", "tests"];

/// Calls that change the whole process or work in the main thread only.
const REJECTED: [&str; 34] = [
    "signal.signal(",
    "signal.alarm(",
    "signal.setitimer(",
    "signal.siginterrupt(",
    "signal.set_wakeup_fd(",
    "os.chdir(",
    "os.fchdir(",
    "os.chroot(",
    "contextlib.chdir(",
    "os.umask(",
    "os.putenv(",
    "os.unsetenv(",
    "os.environ.update(",
    "os.environ.setdefault(",
    "os.environ.pop(",
    "os.environ.popitem(",
    "os.environ.clear(",
    "del os.environ",
    "os.setuid(",
    "os.setgid(",
    "os.setreuid(",
    "os.setregid(",
    "os.setgroups(",
    "os.nice(",
    "resource.setrlimit(",
    "locale.setlocale(",
    "time.tzset(",
    "socket.setdefaulttimeout(",
    // Runs Python between fork and exec, where locks of other threads are never released.
    "preexec_fn",
    // Changes the environment, working directory or modules of the process until the test ends.
    "monkeypatch",
    // The rule finds the calls above by their full names only.
    "from os import",
    "from signal import",
    "from resource import",
    "from locale import",
];

/// Files that may contain such calls, each with the reason.
const EXEMPT: [(&str, &str); 8] = [
    (
        "mininet/signal_cleanup.py",
        "programs call it first in their main function, and nothing when it is imported",
    ),
    (
        "tests/e2e/hostile.py",
        "a program on a host that gives up its rights; tests import only the function that starts it",
    ),
    ("tests/external/torch_cases.py", "a program that PyTorch's Python runs; nothing imports it"),
    ("tests/external/torch_peers.py", "a program that PyTorch's Python runs; nothing imports it"),
    ("tests/warm_python_server.py", "a program whose processes become other programs; nothing imports it"),
    ("bench/torch_ranks.py", "a program that PyTorch's Python runs; nothing imports it"),
    ("bench/kmeans.py", "a program whose main function limits its libraries' threads; nothing imports it"),
    (
        "libcool/python/tests/embedded.py",
        "libcool reads the number of embedded ranks from the environment of the process, and each call sets it",
    ),
];

/// Returns the Python files that tests may import: their paths and texts.
fn sources() -> Vec<(String, String)> {
    let is_imported =
        |path: &str| DIRECTORIES.iter().any(|directory| path.starts_with(&format!("{directory}/")));
    let found: Vec<_> = texts(&["py"]).into_iter().filter(|(path, _)| is_imported(path)).collect();
    assert!(found.len() > 80, "only {} files", found.len());
    found
}

/// Returns a Python text without strings and comments, because strings contain programs for other
/// processes.
fn code(text: &str) -> String {
    let (mut rest, mut code) = (text, String::new());
    while let Some(at) = rest.find(['"', '\'', '#']) {
        code.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = if rest.starts_with('#') { rest.find('\n').unwrap_or(rest.len()) } else { string(rest) };
        // Line breaks are kept, so that line numbers do not change.
        code.extend(rest[..length].chars().filter(|c| *c == '\n'));
        rest = &rest[length..];
    }
    code + rest
}

/// Returns the length of the string literal at the start of a text.
fn string(text: &str) -> usize {
    let quote = &text[..1];
    let quote = if text.starts_with(&quote.repeat(3)) { quote.repeat(3) } else { quote.to_owned() };
    let mut at = quote.len();
    while !text[at..].starts_with(&quote) {
        let Some(next) = text[at..].chars().next() else { return text.len() };
        // The character after a backslash does not end the string.
        let escaped = if next == '\\' { text[at + 1..].chars().next().map_or(0, char::len_utf8) } else { 0 };
        at += next.len_utf8() + escaped;
    }
    at + quote.len()
}

/// Returns whether a line contains a word that is not the end of a longer one.
fn has(line: &str, word: &str) -> bool {
    let part_of_longer = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(part_of_longer))
}

/// Returns whether a line sets environment variables: by `os.environ[NAME] = VALUE`, or by
/// `os.environ |= ...`.
fn sets_a_variable(line: &str) -> bool {
    let mut targets = line.match_indices("os.environ").map(|(at, name)| &line[at + name.len()..]);
    targets.any(|after| {
        let after = match after.strip_prefix('[').and_then(|index| index.split_once(']')) {
            Some((_, after)) => after.trim_start(),
            None => after.trim_start(),
        };
        after.starts_with("|=") || (after.starts_with('=') && !after.starts_with("=="))
    })
}

/// Returns the calls that change the whole process, with their line numbers.
fn changes(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(code(text).lines()) {
        found.extend(REJECTED.into_iter().filter(|word| has(line, word)).map(|word| (number, word)));
        if sets_a_variable(line) {
            found.push((number, "os.environ[...] ="));
        }
    }
    found
}

#[test]
fn nothing_that_tests_import_changes_the_whole_process() {
    let mut complaints = String::new();
    let mut needless: Vec<&str> = EXEMPT.iter().map(|(file, _)| *file).collect();
    for (file, text) in sources() {
        let found = changes(&text);
        if EXEMPT.iter().any(|(exempt, _)| *exempt == file) {
            needless.retain(|exempt| *exempt != file || found.is_empty());
            continue;
        }
        for (line, call) in found {
            complaints += &format!(
                "{file}:{line}: {call}; pass the setting to the child process, or bound the wait in another way\n"
            );
        }
    }
    assert!(complaints.is_empty(), "{complaints}");
    assert!(needless.is_empty(), "exempt without need: {needless:?}");
}

#[test]
fn a_program_that_is_exempt_is_not_imported() {
    let all = sources();
    for (file, _) in EXEMPT.iter().filter(|(_, why)| why.contains("nothing imports it")) {
        let module = Path::new(file).file_stem().unwrap().to_str().unwrap();
        let of_it = [format!("import {module}"), format!("from {module} import")];
        // A module of a package may have the same name, for example cool.kmeans.
        let imports = |line: &str| {
            of_it.iter().any(|import| line.trim() == import || line.starts_with(&format!("{import} ")))
        };
        let importers: Vec<&str> = all
            .iter()
            .filter(|(_, text)| code(text).lines().any(imports))
            .map(|(name, _)| name.as_str())
            .collect();
        assert!(importers.is_empty(), "{file} is imported by {importers:?}");
    }
}

#[test]
fn calls_are_found_and_those_in_strings_and_comments_are_not() {
    let text = r##"
signal.signal(signal.SIGTERM, f)
daemon.signal(signal.SIGTERM)
os.environ["A"] = "1"
if os.environ["A"] == "1": pass
environment = {**os.environ, "A": "1"}
PROGRAM = """
os.chdir("/")  # it's a child's
"""
x = 'os.umask(0) \' os.umask(0)'  # os.umask(0)
subprocess.Popen(command, umask=0o27, preexec_fn=os.setsid)
"##;
    let found: Vec<_> = changes(text);
    assert_eq!(found, [(2, "signal.signal("), (4, "os.environ[...] ="), (11, "preexec_fn")]);
}
