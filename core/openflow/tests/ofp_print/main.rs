//! Open vSwitch's own decoder must read every kind of message that this crate writes with the same
//! meaning. The tests need `ovs-ofctl` (Debian: openvswitch-switch), and fail without it.

mod errors;
mod flows;
mod requests;
mod state;

use std::process::Command;

use rs_openflow::{Body, Message};

/// Returns Open vSwitch's text of `body` on one line.
fn ofp_print(body: Body) -> String {
    let bytes = Message::new(0x1234, body).encode().unwrap();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    // At verbosity 2 the text is complete.
    let output = Command::new("ovs-ofctl")
        .args(["ofp-print", &hex, "2"])
        .output()
        .expect("ovs-ofctl runs; Debian has it in openvswitch-switch");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Asserts that Open vSwitch reads `body` as OpenFlow 1.3 with the transaction that [`ofp_print`]
/// sets, and prints exactly `expected`.
#[track_caller]
fn means(body: Body, expected: &str) {
    let shown = body.to_string();
    let printed = ofp_print(body);
    let (name, rest) = printed
        .split_once(" (OF1.3) (xid=0x1234):")
        .unwrap_or_else(|| panic!("{shown} is read as {printed}"));
    assert_eq!(format!("{name}:{rest}"), expected, "for {shown}");
}
