//! The program as its operator meets it.

use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

fn controller(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cool-controller"));
    command.args(arguments).env_remove("RUST_LOG").env("COOL_INSECURE_PLAINTEXT", "1").stderr(Stdio::piped());
    command
}

fn one_line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn a_port_in_use_is_an_error_of_one_line_that_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, other) in [("--openflow", "--grpc"), ("--grpc", "--openflow")] {
        let output = controller(&[flag, &address, other, "127.0.0.1:0"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = one_line(&output);
        assert!(text.contains(&address) && text.ends_with(&format!("{flag}\n")), "{text}");
    }
}

#[test]
fn nonsense_for_an_address_or_a_log_filter_is_refused() {
    assert_eq!(controller(&["--grpc", "nowhere"]).output().unwrap().status.code(), Some(2));
    let output = controller(&["--grpc", "127.0.0.1:0", "--openflow", "127.0.0.1:0"])
        .env("RUST_LOG", "=")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(one_line(&output).contains("RUST_LOG"));
}

#[test]
fn without_certificates_it_starts_only_if_plain_text_is_asked_for() {
    let output =
        controller(&["--grpc", "127.0.0.1:0", "--openflow", "127.0.0.1:0", "--certs", "/nonexistent"])
            .env_remove("COOL_INSECURE_PLAINTEXT")
            .output()
            .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = one_line(&output);
    for part in ["/nonexistent/ca.pem", "cool certs", "--insecure-plaintext"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn interrupts_and_terminations_end_it_in_order() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut program =
            controller(&["--grpc", "127.0.0.1:0", "--openflow", "127.0.0.1:0"]).spawn().unwrap();
        let mut log = BufReader::new(program.stderr.take().unwrap()).lines();
        assert!(log.by_ref().map(Result::unwrap).any(|line| line.contains("listening")));
        rustix::process::kill_process(rustix::process::Pid::from_child(&program), signal).unwrap();
        assert!(program.wait().unwrap().success());
        assert!(log.last().unwrap().unwrap().contains("bye"));
    }
}
