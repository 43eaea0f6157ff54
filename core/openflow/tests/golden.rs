//! Tests messages that were captured from Open vSwitch 3.1 (see `golden/capture.py`). All of them
//! must be readable, be written back byte for byte, and print as they did when they were captured
//! (`golden/words.txt`).

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use rs_openflow::{
    Body, FlowRemovedReason, Framer, Message, MultipartReply, PacketInReason, PortNo, PortReason, TableId,
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Returns the names of the captured streams, in order.
fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with("-switch"))
        .collect();
    names.sort();
    assert!(!names.is_empty(), "no captured streams in {}", folder().display());
    names
}

fn read(name: &str) -> (Vec<u8>, Vec<Message>) {
    let bytes = fs::read(folder().join(name)).unwrap();
    let mut framer = Framer::default();
    framer.push(&bytes);
    let messages =
        framer.by_ref().collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(framer.pending(), 0, "{name} ends inside a message");
    (bytes, messages)
}

#[test]
fn captured_messages_are_written_back_byte_for_byte() {
    for name in names() {
        let (bytes, messages) = read(&name);
        let again: Vec<u8> = messages.iter().flat_map(|message| message.encode().unwrap()).collect();
        assert!(again == bytes, "{name} comes back otherwise");
    }
}

#[test]
fn captured_messages_decode_to_the_known_values() {
    let mut words = String::new();
    for name in names() {
        writeln!(words, "== {name}").unwrap();
        for message in read(&name).1 {
            writeln!(words, "{message}").unwrap();
        }
    }
    let file = folder().join("words.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, &words).unwrap();
    }
    let expected = fs::read_to_string(&file).unwrap();
    for (line, (now, then)) in words.lines().zip(expected.lines()).enumerate() {
        assert_eq!(now, then, "line {} of {}", line + 1, file.display());
    }
    assert_eq!(words.lines().count(), expected.lines().count());
}

#[test]
fn a_captured_handshake_has_the_switch_and_its_ports() {
    let (_, messages) = read("show.from-switch");
    let hello = messages.iter().find_map(|message| match &message.body {
        Body::Hello(hello) => Some(hello),
        _ => None,
    });
    // Open vSwitch offers OpenFlow 1.5 and, without a bitmap, all lower versions.
    assert!(hello.is_some_and(|hello| hello.version == 6 && hello.speaks(4)));

    let features = messages.iter().find_map(|message| match &message.body {
        Body::FeaturesReply(features) => Some(features),
        _ => None,
    });
    assert_eq!(features.map(|features| features.tables), Some(254));

    let ports = messages.iter().find_map(|message| match &message.body {
        Body::MultipartReply(reply) => match &reply.body {
            MultipartReply::PortDesc(ports) => Some(ports),
            _ => None,
        },
        _ => None,
    });
    let names: Vec<_> = ports.unwrap().iter().map(|port| (port.port, port.name.text())).collect();
    let expected = [(1, "ofcap1"), (2, "ofcap2"), (PortNo::LOCAL.0, "ofcap0")];
    assert!(expected.iter().all(|(port, name)| names.contains(&(PortNo(*port), (*name).to_owned()))));
}

#[test]
fn asynchronous_messages_of_a_switch_are_decoded() {
    let (_, messages) = read("controller.from-switch");
    let mut seen = [false; 3];
    for message in messages {
        match message.body {
            Body::PacketIn(packet) => {
                assert_eq!((packet.in_port(), packet.cookie), (Some(PortNo(1)), 5));
                assert_eq!((packet.reason, packet.data.len()), (PacketInReason::ACTION, 42));
                seen[0] = true;
            }
            Body::FlowRemoved(removed) => {
                assert_eq!((removed.cookie, removed.table), (5, TableId(0)));
                assert_eq!(removed.reason, FlowRemovedReason::HARD_TIMEOUT);
                seen[1] = true;
            }
            Body::PortStatus(status) => {
                assert_eq!((status.reason, status.port.name.text().as_str()), (PortReason::ADD, "ofcap9"));
                seen[2] = true;
            }
            _ => {}
        }
    }
    assert_eq!(seen, [true; 3], "packet-in, flow removed, port status");
}
