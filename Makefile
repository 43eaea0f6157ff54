# The two commands that do all, on a fresh Debian machine with Rust:
#   make demo   K-means over 16 emulated nodes in 4 racks, and a file to 15 of them, with a report in target/demo/
#   make test   every test: unit, property, simulator, and end to end in Mininet
# For developers: make test-quick (without root, a few minutes at most), make lint (both are part of CONTRIBUTING.md).
# To install it: make packages (Debian packages and the wheel for Python, in target/packages; PROFILE=quick to try them), make image
# Measurements: make bench-quick (under 10 minutes), make bench (BENCH=... gives its options); predictions beside
# measurements, written to docs/measurements/calibration.md: make calibrate; 500 random faults under running collectives, 25 minutes:
# make faults (FAULTS="--faults 100 --seed 7"); an hour of all that happens to a cluster under jobs of three users: make day

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
NETWORK_PACKAGES := gcc libc6-dev mininet openvswitch-switch ethtool iptables iproute2 procps python3
LAUNCHERS := openmpi-bin libopenmpi-dev slurmctld slurmd slurm-client
COPIERS := python3-libtorrent rsync clustershell openssh-client openssh-server slurmctld slurmd slurm-client udpcast uftp
PHOTOGRAPHS := lomiri-wallpapers-16.04
# Functions of make would split a path at its spaces, so the shell says it, and recipes quote it.
TARGET := $(shell realpath -m -- "$${CARGO_TARGET_DIR:-target}")
# Cargo subcommands of our own come last: whoever has them installed uses those.
export PATH := $(PATH):$(HOME)/.cargo/bin:$(TARGET)/tools/bin
# Tests start Python again and again, some of them with torch: what it compiles is kept, but not among the sources.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(TARGET)/pycache
# What the demonstration and the suites of others run on the emulated network.
QUICK := $(TARGET)/quick
# What `cargo build` is told to build of programs, without bindings and fuzz targets.
PROGRAMS := --workspace --exclude cool-fuzz --exclude cool-c --exclude cool-python --features cool-kmeans/parquet
# Modules of end-to-end tests that run side by side, on two processors; they wait for emulated links half of the time.
WORKERS := 3
# What an end-to-end run is limited to: modules or tests as pytest names them (make end-to-end TESTS=tests/e2e/jobs/test_jobs.py).
TESTS :=
# Whether the programs and packages that a phase needs are there, as the phases before it have made them.
READY :=

.PHONY: demo test test-quick build unit documented bindings-test python-tests end-to-end bench bench-quick bench-kmeans bench-copy bench-torch mpi-suite mpi-programs torch recovery faults day load solver calibrate lint release bindings packages image test-packages packages-demo packages-test packages-bench packages-packages

demo: packages-demo
	cargo build --profile quick --package cool-cli --package cool-controller --package cool-nodeagent --package cool-kmeans --bins
	mkdir -p target/demo
	$(SUDO) mininet/testbed.py --topology tree:4x4 --host-mbit 20 --uplink-mbit 20 --peer-timeout-ms 20000 --bin "$(QUICK)" --logs target/demo/logs -- mininet/demo.py

# All phases, each of the targets below, with a table of their durations at the end: CONTRIBUTING.md. Their long commands are
# run with exec: a signal that ends make then ends them, and not only the shell around them.
test:
	@tools/test-phases "$(MAKE)" "$(TARGET)"

# All that is compiled for tests, at once: of fewer targets or packages, dependencies would have other features and be compiled once more.
# The programs are those of the unit tests' build, with all their checks: building others would take longer than the tests gain by it.
build:
	cargo build --workspace --all-features --all-targets

unit: $(if $(READY),,packages-test)
	@tools/install-cargo-tools nextest
	exec $(SUDO) env "PATH=$$PATH" mininet/ovs.py cargo nextest run --no-fail-fast --workspace --all-features

documented:
	cargo test --quiet --workspace --all-features --doc

# libcool for C and Python as the tests use it, and PyTorch for them
bindings-test: $(if $(READY),,packages-test)
	tools/bindings
	tools/torch "$(TARGET)/bindings/python"

# COOL_TESTS_IN_THREAD=1 has these tests, and the end-to-end tests, run in a thread that is not the main one of their process.
python-tests: $(if $(READY),,bindings-test)
	exec env COOL_RUST_SUITE="$(TARGET)/bindings/suite-rust" "$(TARGET)/bindings/python/bin/python3" \
		$(if $(COOL_TESTS_IN_THREAD),tests/in_thread.py,-m pytest) libcool/python/tests --junitxml "$(TARGET)/python-tests.xml"

end-to-end: $(if $(READY),,packages-test build bindings-test)
	exec $(SUDO) env COOL_BIN="$(TARGET)/debug" CARGO_TARGET_DIR="$(TARGET)" "PYTHONPYCACHEPREFIX=$$PYTHONPYCACHEPREFIX" \
		COOL_TESTS_IN_THREAD="$(COOL_TESTS_IN_THREAD)" tests/run.py --workers $(WORKERS) $(TESTS)

# What a developer runs again and again: neither root nor an emulated network, and without what .config/nextest.toml counts as long.
test-quick:
	@tools/install-cargo-tools nextest
	cargo nextest run --workspace --all-features --profile quick

# Debian packages and the wheel for Python: docs/guide/deployment.md
PROFILE := release
packages: packages-packages
	tools/packages $(PROFILE)

# An image with the packages; BASE is one of Debian 12, IMAGE are more options (--isolation chroot, where containers cannot run)
BASE := docker.io/library/debian:bookworm-slim
image: packages
	@tools/install-packages podman uidmap slirp4netns
	podman build $(IMAGE) --build-arg BASE=$(BASE) -f deploy/Containerfile -t cool "$(TARGET)/packages"

# Installs the packages on machines of an emulated network that boot Debian, as docs/guide/deployment.md says
test-packages: packages-test packages
	@tools/install-packages mmdebstrap lintian
	$(SUDO) tools/debian-root "$(TARGET)/debian-root"
	$(SUDO) env COOL_PACKAGES="$(TARGET)/packages" COOL_DEBIAN="$(TARGET)/debian-root" tests/run.py tests/e2e/jobs/test_packages.py

# libcool for C and Python, for installation: target/bindings
bindings: packages-test
	tools/bindings --release

bench: packages-bench release
	$(SUDO) bench/bench.py $(BENCH)
	$(SUDO) bench/loss.py
	$(SUDO) bench/scaling.py
	$(SUDO) bench/loopback.py

bench-quick: packages-bench release
	$(SUDO) bench/bench.py --quick $(BENCH)

# K-means beside scikit-learn, FAISS and SuperKMeans, on this machine alone
bench-kmeans: release
	@tools/install-packages python3-venv
	bench/kmeans.py --docs $(KMEANS)

# A conjugate gradient solver on COOL, Open MPI and MPICH: docs/measurements/benchmarks.md
solver: packages-bench release
	cargo build --release --package cool-c
	$(SUDO) bench/solver.py $(SOLVER)

# From a failure to the last rule installed: docs/guide/deployment.md
recovery: packages-bench release
	$(SUDO) bench/recovery.py --failure port
	$(SUDO) bench/recovery.py --failure silent

# MPICH's own tests of collectives over libcool_mpi.so, on each MPI library: docs/guide/mpi.md
mpi-suite: packages-test
	@tools/install-packages dpkg-dev make
	cargo build --profile quick $(PROGRAMS) --bins --lib
	$(SUDO) tests/external/mpi_suite.py --prepare
	$(SUDO) env COOL_BIN="$(QUICK)" mininet/apart /usr/bin/python3 tests/external/mpi_suite.py $(MPI_SUITE)

# Whole programs over libcool_mpi.so, unchanged: docs/guide/mpi.md
mpi-programs: packages-test
	@tools/install-packages hpcc scalapack-mpi-test
	cargo build --profile quick $(PROGRAMS) --bins --lib
	$(SUDO) tests/external/mpi_programs.py --prepare
	$(SUDO) env COOL_BIN="$(QUICK)" /usr/bin/python3 tests/external/mpi_programs.py $(MPI_PROGRAMS)

# torch's own tests of backends, accelerate's and Lightning, with Gloo and with COOL: docs/guide/torch.md
torch: packages-test
	cargo build --profile quick $(PROGRAMS) --bins --lib
	tools/bindings
	tools/torch "$(TARGET)/bindings/python"
	$(SUDO) env COOL_BIN="$(QUICK)" tests/external/torch_suite.py --docs $(TORCH_SUITE)

# Training with PyTorch over COOL and over Gloo, in turn: docs/guide/torch.md
bench-torch: packages-bench release
	@tools/install-packages dataset-fashion-mnist
	tools/bindings --release
	tools/torch "$(TARGET)/bindings/python"
	$(SUDO) bench/torch_train.py --docs $(TORCH)

# Files to all nodes by every way of `cool copy`, and by BitTorrent: docs/measurements/copies.md. COPY=... gives options, as COPY="--slow 10":
# bench/copying.py --help has those of each table, also beside rsync, ClusterShell, sbcast, udpcast and UFTP
bench-copy: packages-bench release
	@tools/install-packages $(COPIERS)
	$(SUDO) bench/copying.py $(COPY)

# 500 played switches and 10,000 agents, and packet-ins beside os-ken: docs/measurements/scale.md
load: release
	@tools/install-packages python3-venv
	bench/load.py $(LOAD)

# Who is told what and when after random faults, and whether the survivors go on: docs/guide/guide.md
faults: packages-bench release
	$(SUDO) bench/faults.py $(FAULTS)

# Controllers, agents, links, certificates, logs and a hostile user, while jobs run: bench/day.py --help
day: packages-test release
	$(SUDO) bench/day.py $(DAY)

calibrate: packages-bench release
	$(SUDO) bench/calibrate.py $(CALIBRATE)

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	@tools/install-cargo-tools deny
	tools/check-dependencies

release:
	cargo build --release $(PROGRAMS)

packages-demo:
	@tools/install-packages $(NETWORK_PACKAGES) $(PHOTOGRAPHS)

packages-test:
	@tools/install-packages $(NETWORK_PACKAGES) python3-pytest python3-venv python3-yaml pkg-config chromium etcd-server etcd-client openssl dataset-fashion-mnist $(LAUNCHERS)

packages-bench:
	@tools/install-packages $(NETWORK_PACKAGES) python3-venv iperf3

packages-packages:
	@tools/install-packages gcc libc6-dev debhelper dpkg-dev python3-venv
