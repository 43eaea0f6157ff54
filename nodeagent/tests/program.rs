//! The program as its operator meets it.

use std::process::Command;

/// The file that is shipped as an example.
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
fn the_example_of_a_file_is_right_and_lacks_only_the_nodes_name() {
    let (status, says) = agent(&["--config", EXAMPLE, "--name", "h1", "--check-config"]);
    assert_eq!(status, Some(0), "{says}");
    let (status, says) = agent(&["--config", EXAMPLE, "--check-config"]);
    assert!(status == Some(2) && says.contains("--name"), "{says}");
}

#[test]
fn what_is_wrong_in_a_file_is_told_with_its_line_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cool.toml").display().to_string();
    std::fs::write(&path, "[agent]\nname = \"h1\"\nslots = \"many\"\nhttp = 7\n").unwrap();
    let (status, says) = agent(&["--config", &path]);
    assert_eq!(status, Some(2));
    let lines: Vec<&str> = says.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with(&format!("{path}:3: ")), "{says}");
    assert!(lines[1].starts_with(&format!("{path}:4: ")), "{says}");
}
