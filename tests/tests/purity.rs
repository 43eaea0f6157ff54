//! Protocols and schedules do no I/O: nothing below their crates could.

use std::process::Command;

const PURE: [&str; 14] = [
    "cool-types",
    "cool-mpi",
    "cool-machine",
    "rs-openflow",
    "cool-topology",
    "cool-content",
    "cool-collective",
    "cool-quick",
    "cool-transport",
    "cool-membership",
    "cool-engine",
    "cool-swarm",
    "cool-classify",
    "cool-sim",
];
const DOES_IO: [&str; 8] = ["tokio", "mio", "socket2", "pnet", "rustix", "libc", "getrandom", "memmap2"];

#[test]
fn no_crate_that_does_io_is_below_a_pure_one() {
    for pure in PURE {
        let tree = Command::new(env!("CARGO"))
            // Of one target, since some crates ask the system for the processor's abilities on others.
            .args(["tree", "--offline", "--target", "x86_64-unknown-linux-gnu", "--edges", "normal"])
            .args(["--prefix", "none", "--package", pure])
            .output()
            .expect("cargo tree runs");
        let text = String::from_utf8_lossy(&tree.stdout);
        assert!(tree.status.success(), "{pure}: {}", String::from_utf8_lossy(&tree.stderr));
        assert!(text.starts_with(pure), "{pure}: {text}");
        let below: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        let found: Vec<&&str> = DOES_IO.iter().filter(|name| below.contains(name)).collect();
        assert!(found.is_empty(), "below {pure}: {found:?}");
    }
}
