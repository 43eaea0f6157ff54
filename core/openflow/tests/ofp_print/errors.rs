//! Every error code that the standard names must have the same name in Open vSwitch.

use std::io::Write;
use std::process::{Command, Stdio};

use rs_openflow::{Body, ErrorMessage, ErrorType, Message};

/// Names of the standard, each with the name that Open vSwitch uses instead: that of another
/// version of the standard, or its own.
const SYNONYMS: [(&str, &str); 6] = [
    ("BAD_MULTIPART", "BAD_STAT"),
    ("BAD_EXPERIMENTER", "BAD_VENDOR"),
    ("BAD_EXP_TYPE", "BAD_SUBTYPE"),
    ("BAD_EXP_TYPE", "BAD_VENDOR_TYPE"),
    ("IS_SLAVE", "IS_SECONDARY"),
    ("BAD_ARGUMENT", "BAD_VALUE"),
];

/// Returns Open vSwitch's text of each message of a stream.
fn ofp_parse(stream: &[u8]) -> Vec<String> {
    let mut process = Command::new("ovs-ofctl")
        .args(["ofp-parse", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("ovs-ofctl runs; Debian has it in openvswitch-switch");
    process.stdin.take().unwrap().write_all(stream).unwrap();
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| line.contains("OFPT_ERROR")).map(str::to_owned).collect()
}

#[test]
fn error_codes_have_the_names_that_open_vswitch_gives_them() {
    let failures: Vec<_> = (0..=13)
        .flat_map(|kind| (0..20).map(move |code| ErrorMessage::new(ErrorType(kind), code, Vec::new())))
        .filter(|failure| failure.code_name().is_some())
        .collect();
    let stream: Vec<u8> = failures
        .iter()
        .flat_map(|failure| Message::new(1, Body::Error(failure.clone())).encode().unwrap())
        .collect();
    let lines = ofp_parse(&stream);
    assert_eq!(lines.len(), failures.len());
    for (failure, line) in failures.iter().zip(lines) {
        let name = failure.code_name().unwrap().to_uppercase();
        // "... OFPBRC_BAD_VERSION": the part before the name stands for the type.
        let (_, theirs) = line.rsplit(' ').next().unwrap().split_once('_').unwrap();
        let known_otherwise = SYNONYMS.contains(&(name.as_str(), theirs));
        assert!(theirs == name || known_otherwise, "{failure} is {line} there");
    }
}
