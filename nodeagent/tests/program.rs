//! Tests of the program's command line.

use std::process::Command;

/// The example configuration that is shipped.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/cool.toml");

fn agent(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cool-nodeagent"));
    for name in ["COOL_ALLOW_ROOT", "COOL_CONFIG", "COOL_CONTROLLER", "COOL_CERTS", "RUST_LOG"] {
        command.env_remove(name);
    }
    let output = command.args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn the_example_file_is_valid_except_for_the_nodes_name() {
    let (status, errors) = agent(&["--config", EXAMPLE, "--name", "h1", "--check-config"]);
    assert_eq!(status, Some(0), "{errors}");
    let (status, errors) = agent(&["--config", EXAMPLE, "--check-config"]);
    assert!(status == Some(2) && errors.contains("--name"), "{errors}");
}

#[test]
fn errors_in_a_file_are_reported_with_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cool.toml").display().to_string();
    std::fs::write(&path, "[agent]\nname = \"h1\"\nslots = \"many\"\nhttp = 7\n").unwrap();
    let (status, errors) = agent(&["--config", &path]);
    assert_eq!(status, Some(2));
    let lines: Vec<&str> = errors.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with(&format!("{path}:3: ")), "{errors}");
    assert!(lines[1].starts_with(&format!("{path}:4: ")), "{errors}");
}
