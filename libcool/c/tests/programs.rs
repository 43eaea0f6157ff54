//! Builds C programs with the installed header, libraries and pkg-config file, as a user would, and
//! runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the directory in which this test and the libraries were built.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    output
}

/// An installation of the library.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new() -> Installed {
        let prefix = tempfile::tempdir().unwrap();
        let tool = folder().join("../../tools/install-c");
        run(Command::new(tool).arg(prefix.path()).arg(built()));
        Installed(prefix)
    }

    fn flags(&self, of: &[&str]) -> Vec<String> {
        let path = self.0.path().join("lib/pkgconfig");
        let output = run(Command::new("pkg-config").env("PKG_CONFIG_PATH", path).args(of).arg("cool"));
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles an example, with the given linker flags.
    fn compile(&self, example: &str, link: &[String]) -> PathBuf {
        let program = self.0.path().join(example);
        run(Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-o"])
            .arg(&program)
            .arg(folder().join("examples").join(example).with_extension("c"))
            .args(self.flags(&["--cflags"]))
            .args(link));
        program
    }

    /// Returns the output of a program with `ranks` ranks in one process.
    fn output(&self, program: &Path, ranks: usize) -> String {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.0.path().join("lib")).env("COOL_EMBEDDED", ranks.to_string());
        String::from_utf8(run(&mut command).stdout).unwrap()
    }
}

#[test]
fn c_programs_print_the_same_as_the_rust_program() {
    let installed = Installed::new();
    let program = installed.compile("suite", &installed.flags(&["--libs"]));
    let rust = built().parent().unwrap().join("examples/suite");
    if !rust.exists() {
        run(Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "libcool", "--example", "suite"])
            .args(["--features", "libcool/embedded", "--target-dir"])
            .arg(built().ancestors().nth(2).unwrap()));
    }
    for ranks in [1, 5] {
        let rust = run(Command::new(&rust).env("COOL_EMBEDDED", ranks.to_string()));
        assert_eq!(installed.output(&program, ranks), String::from_utf8(rust.stdout).unwrap());
    }
}

#[test]
fn the_static_library_needs_no_other_file() {
    let installed = Installed::new();
    for shared in ["lib/libcool.so", "lib/libcool.so.0"] {
        std::fs::remove_file(installed.0.path().join(shared)).unwrap();
    }
    let program = installed.compile("hello", &installed.flags(&["--static", "--libs"]));
    let output = installed.output(&program, 3);
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    let line = |rank| format!("rank {rank} of 3: the sum of all ranks is 3");
    assert_eq!(lines, [line(0), line(1), line(2)]);
}

#[test]
fn misuse_returns_a_code_and_a_message() {
    let installed = Installed::new();
    let program = installed.compile("misuse", &installed.flags(&["--libs"]));
    let output = installed.output(&program, 2);
    for text in [
        "no launcher: 2 this process is not a rank",
        "\ngroup 1\n",
        "rank 1: node 1, rack 1\n",
        "place of none: 1 there is no rank 2",
        "null send: 1 send is null, but must have 32 bytes",
        "overlap: 1 send and recv overlap, and neither lies within the other; pass COOL_IN_PLACE",
        "root: 1 rank 0: bcast: there is no rank 99",
        "op: 1 rank 1: allreduce: elements of type f64 have no bit_and; they have sum",
        "immense: 1 18446744073709551615 elements exceed the size of any array",
        "join beyond: 1 rank 2: join: there is no rank 2 in a group of 2",
        "join nobody: 3 rank 0: join: no agent at /no/agent.sock",
        "no queue: 1 there is no queue",
        "use after free: 1 there is no communicator",
        "wait twice: 1 there is no request",
        "forked: 1 rank 0: barrier: this process was forked from process",
    ] {
        assert!(output.contains(text), "{text}\n{output}");
    }
}

#[test]
fn processes_with_the_same_key_form_a_group() {
    let installed = Installed::new();
    let program = installed.compile("join", &installed.flags(&["--libs"]));
    let agents = cool_rust::embedded::EmbeddedAgents::start(2, 1).unwrap();
    let start = |(rank, socket)| {
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", installed.0.path().join("lib")).env("COOL_SOCKET", socket);
        command.args(["k", &format!("{rank}"), "2"]).stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<_> = agents.sockets().enumerate().map(start).collect();
    for (rank, process) in ranks.into_iter().enumerate() {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("rank {rank} of 2\n"));
    }
}

#[test]
fn the_header_is_that_of_the_library() {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(folder()).with_config(config).generate().unwrap();
    let mut header = Vec::new();
    bindings.write(&mut header);
    let header = String::from_utf8(header).unwrap();
    let path = folder().join("include/cool.h");
    if std::env::var_os("COOL_WRITE_HEADER").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let remedy = "COOL_WRITE_HEADER=1 cargo test -p cool-c the_header makes it anew";
    assert!(header == there, "{} is not current: {remedy}", path.display());
}
