//! The program `cool-controller`, as its operator uses it.

use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

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
fn a_port_in_use_is_reported_in_one_line() {
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
fn an_invalid_address_or_log_filter_is_refused() {
    assert_eq!(controller(&["--grpc", "nowhere"]).output().unwrap().status.code(), Some(2));
    let output = controller(&["--grpc", "127.0.0.1:0", "--openflow", "127.0.0.1:0"])
        .env("RUST_LOG", "=")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("invalid value '=' for '--log"), "{text}");
}

#[test]
fn without_certificates_it_starts_only_with_the_plaintext_flag() {
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
fn it_notifies_the_service_manager_and_reloads_on_sighup() {
    let directory = tempfile::tempdir().unwrap();
    let [socket, file, events, old] =
        ["notify", "cool.toml", "events", "events.1"].map(|name| directory.path().join(name));
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let wait_for_notification = |awaited: &str| loop {
        let mut buffer = [0; 256];
        let len = manager.recv(&mut buffer).unwrap();
        if buffer[..len].trim_ascii() == awaited.as_bytes() {
            break;
        }
    };
    let write_options = |more: &str| {
        let listen = "grpc = \"127.0.0.1:0\"\nopenflow = \"127.0.0.1:0\"\n";
        let text = format!("[controller]\n{listen}event-log = \"{}\"\n{more}", events.display());
        std::fs::write(&file, text).unwrap();
    };
    write_options("");
    let mut program = controller(&["--config", file.to_str().unwrap()])
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "100000")
        .spawn()
        .unwrap();
    let pid = rustix::process::Pid::from_child(&program);
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    let mut log = BufReader::new(program.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut logged = |what: &str| log.by_ref().find(|line| line.contains(what)).unwrap();
    wait_for_notification("READY=1");
    wait_for_notification("WATCHDOG=1");
    write_options("log = \"debug\"\njobs-per-user = 1\nlldp-interval-ms = 500\n");
    std::fs::rename(&events, &old).unwrap();
    signal(Signal::HUP);
    assert!(logged("take effect at the next start").contains("[\"lldp-interval-ms\"]"));
    assert!(logged("options reloaded").contains("\"log\""));
    write_options("log = \"loud\nspeed = 1\n");
    signal(Signal::HUP);
    assert!(logged("stay in effect").contains("cool.toml:5"));
    wait_for_notification("WATCHDOG=1");
    signal(Signal::TERM);
    wait_for_notification("STOPPING=1");
    assert!(program.wait().unwrap().success());
    let [old, new] = [old, events].map(|path| std::fs::read_to_string(path).unwrap());
    assert!(old.contains("\"listening\"") && !old.contains("options reloaded"), "{old}");
    assert!(new.contains("options reloaded") && new.contains("\"bye\""), "{new}");
}

#[test]
fn it_shuts_down_on_interrupt_and_termination() {
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

#[test]
fn a_standby_serves_no_agents_and_exits_without_etcd() {
    let etcd = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://{}", etcd.local_addr().unwrap());
    drop(etcd);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let agents = free.local_addr().unwrap();
    drop(free);
    let grpc = agents.to_string();
    let arguments = ["--grpc", &grpc, "--openflow", "127.0.0.1:0", "--lead-by", &closed];
    let mut program = controller(&arguments).spawn().unwrap();
    let mut log = BufReader::new(program.stderr.take().unwrap()).lines();
    assert!(log.by_ref().map(Result::unwrap).any(|line| line.contains("etcd does not respond")));
    assert!(TcpStream::connect(agents).is_err());
    rustix::process::kill_process(rustix::process::Pid::from_child(&program), Signal::TERM).unwrap();
    assert!(program.wait().unwrap().success());
    let rest: Vec<String> = log.map(Result::unwrap).collect();
    assert!(!rest.iter().any(|line| line.contains("listening")) && rest.last().unwrap().contains("bye"));
}

#[test]
fn contradictory_flags_for_etcd_are_reported_in_one_line() {
    let start = ["--grpc", "127.0.0.1:0", "--openflow", "127.0.0.1:0", "--lead-by"];
    let wrong: [(&[&str], &str); 5] = [
        (&["etcd:2379"], "write it as https://HOST:PORT"),
        (&["https://a:2379,http://b:2379"], "choose one"),
        (&["https://a:2379"], "--lead-by-ca"),
        (&["https://a:2379", "--lead-by-ca", "/nonexistent"], "/nonexistent: "),
        (&["http://a:2379", "--lead-by-cert", "/nonexistent"], "--lead-by-key"),
    ];
    for (flags, complaint) in wrong {
        let output = controller(&[&start[..], flags].concat()).env("RUST_LOG", "off").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{flags:?}");
        let text = one_line(&output);
        assert!(text.contains(complaint), "{text}");
    }
}

#[test]
fn flags_that_contradict_observe_are_reported_in_one_line() {
    let start = ["--grpc", "127.0.0.1:0", "--openflow", "127.0.0.1:0", "--observe"];
    let wrong: [(&[&str], &str); 2] = [
        (&["--network", "plain"], "with --network plain none are used"),
        (&["--lead-by", "http://a:2379"], "--observe and --lead-by"),
    ];
    for (flags, complaint) in wrong {
        let output = controller(&[&start[..], flags].concat()).env("RUST_LOG", "off").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{flags:?}");
        let text = one_line(&output);
        assert!(text.contains(complaint), "{text}");
    }
}

#[test]
fn the_example_of_a_file_is_right() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/cool.toml");
    let output = controller(&["--config", example, "--check-config"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn flags_override_the_file_and_its_errors_have_lines() {
    let path = std::env::temp_dir().join(format!("cool-controller-{}.toml", std::process::id()));
    let file = path.display().to_string();
    std::fs::write(&path, "[controller]\ngrpc = \"127.0.0.1:0\"\nopenflow = \"nowhere\"\n\nspeed = 1\n")
        .unwrap();
    let output = controller(&["--config", &file]).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with(&format!("{file}:3: ")) && lines[0].contains("nowhere"), "{text}");
    assert!(lines[1].starts_with(&format!("{file}:5: unknown option speed")), "{text}");
}

#[test]
fn events_go_to_a_file_as_lines_of_json() {
    let path = std::env::temp_dir().join(format!("cool-controller-{}.jsonl", std::process::id()));
    let file = path.display().to_string();
    let arguments = ["--grpc", "127.0.0.1:0", "--openflow", "127.0.0.1:0", "--event-log", &file];
    let mut program = controller(&arguments).spawn().unwrap();
    let mut log = BufReader::new(program.stderr.take().unwrap()).lines();
    assert!(log.by_ref().map(Result::unwrap).any(|line| line.contains("listening")));
    rustix::process::kill_process(rustix::process::Pid::from_child(&program), Signal::TERM).unwrap();
    assert!(program.wait().unwrap().success());
    let events = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let events: Vec<serde_json::Value> = events.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(
        events.iter().any(|event| event["message"] == "listening" && event["grpc"].is_string()),
        "{events:?}"
    );
    assert_eq!(events.last().unwrap()["message"], "bye");
}
