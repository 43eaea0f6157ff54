# The two commands that do all, on a fresh Debian machine with Rust:
#   make demo   K-means over 16 emulated nodes in 4 racks, with a report in target/demo/
#   make test   every test: unit, property, simulator, and end to end in Mininet

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
NETWORK_PACKAGES := gcc libc6-dev mininet openvswitch-switch ethtool iptables iproute2 procps python3
PHOTOGRAPHS := lomiri-wallpapers-16.04
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: demo test lint release packages-demo packages-test nextest unit end-to-end

demo: packages-demo release
	mkdir -p target/demo
	$(SUDO) mininet/testbed.py --topology tree:4x4 --host-mbit 50 --uplink-mbit 50 --logs target/demo/logs -- mininet/demo.py

test: unit end-to-end

unit: packages-test nextest
	$(SUDO) env "PATH=$$PATH" mininet/ovs.py cargo nextest run --workspace --all-features
	cargo test --quiet --workspace --all-features --doc

end-to-end: packages-test release
	$(SUDO) /usr/bin/python3 -m pytest tests -v

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings

release:
	cargo build --release --workspace --exclude cool-fuzz

packages-demo:
	@tools/install-packages $(NETWORK_PACKAGES) $(PHOTOGRAPHS)

packages-test:
	@tools/install-packages $(NETWORK_PACKAGES) python3-pytest

nextest:
	@cargo nextest --version >/dev/null 2>&1 || cargo install --locked cargo-nextest
