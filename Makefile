# Main targets, for Debian 12 with Rust:
#   make demo           clusters pictures on 16 emulated nodes, copies a file to 15, and writes
#                       a report to target/demo/
#   make test           runs every test, including the end-to-end tests in Mininet
#   make test-quick     runs the tests that need no root: a few minutes after compilation
#   make lint           checks format, clippy, documentation and dependencies
#   make sanitize       runs tests under AddressSanitizer and ThreadSanitizer, in target/sanitize
#   make seeds          runs simulations in which any step can fail, from a million seeds each
#                       (SEEDS=FIRST:COUNT SIMULATION=NAME)
#   make book           writes the documents as a web site to target/book
#   make packages       builds Debian packages and the wheel for Python in target/packages
#   make wheel          builds only the wheel, which contains the programs, too
#   make image          builds a container image with these packages
#   make bench-quick    measures collectives next to Open MPI and MPICH: under 10 minutes
#   make bench          runs the main measurements (options: BENCH=...)
#   make bench-networks measures collectives on each kind of network
#   make bench-wire     measures collectives on links without shaping
#   make calibrate      compares predictions with measurements, and writes
#                       docs/measurements/calibration.md: about 7 minutes
#   make faults         500 random faults under running collectives: about 25 minutes
#                       (FAULTS="--faults 100 --seed 7")
#   make inject         errors of system calls in ranks and agents, by seed: about 20 minutes
#                       (INJECT="--seeds 17:1")
#   make day            disturbs a cluster for an hour while users run jobs
# CONTRIBUTING.md describes them. The line above each target below states what the target does.

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
NETWORK_PACKAGES := gcc libc6-dev mininet openvswitch-switch ethtool iptables iproute2 procps python3
LAUNCHERS := openmpi-bin libopenmpi-dev slurmctld slurmd slurm-client
COPIERS := python3-libtorrent rsync clustershell openssh-client openssh-server slurmctld slurmd slurm-client udpcast uftp
PHOTOGRAPHS := lomiri-wallpapers-16.04
# The shell computes this path, because functions of make split paths at spaces; recipes quote it.
TARGET := $(shell realpath -m -- "$${CARGO_TARGET_DIR:-target}")
# The directory of tools/install-cargo-tools comes last: installed cargo subcommands take precedence.
export PATH := $(PATH):$(HOME)/.cargo/bin:$(TARGET)/tools/bin
# Tests start Python many times, so compiled modules are kept, but outside of the source tree.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(TARGET)/pycache
# The programs that the demonstration and the suites of other projects run.
QUICK := $(TARGET)/quick
# Arguments of `cargo build` for the programs, without bindings and fuzz targets.
PROGRAMS := --workspace --exclude cool-fuzz --exclude cool-c --exclude cool-python --features cool-kmeans/parquet
# Limits an end-to-end run to modules or tests, in pytest's notation. For example:
#   make end-to-end TESTS=tests/e2e/jobs/test_jobs.py
TESTS :=
# Not empty if earlier phases have already built the programs and installed the packages.
READY :=

.PHONY: demo test test-quick build unit documented bindings-test python-tests end-to-end \
	bench bench-quick bench-networks bench-wire bench-kmeans bench-copy bench-torch mpi-suite mpi-programs torch recovery \
	faults inject day load solver calibrate lint sanitize seeds book release bindings packages wheel image test-packages \
	packages-demo packages-test packages-bench packages-packages

# Clusters pictures and copies a file on an emulated network; writes a report to target/demo.
demo: packages-demo
	cargo build --profile quick --package cool-cli --package cool-controller --package cool-nodeagent --package cool-kmeans --bins
	mkdir -p target/demo
	$(SUDO) mininet/testbed.py --topology tree:4x4 --host-mbit 20 --uplink-mbit 20 --peer-timeout-ms 20000 --bin "$(QUICK)" --logs target/demo/logs -- mininet/demo.py

# Runs every test in phases (the targets build to end-to-end), and reports the duration of each.
# Long commands of phases run with exec, so that a signal that ends make ends them too.
test:
	@tools/test-phases "$(MAKE)" "$(TARGET)"

# Phase: compiles everything for tests at once, because dependencies of a smaller selection would
# have other features and be compiled again. End-to-end tests use these programs, with all their checks.
# The crates for other systems are downloaded, too, because a unit test examines the metadata of all
# crates by cbindgen, and unit tests have no access to other networks.
build:
	cargo fetch --locked
	cargo build --workspace --all-features --all-targets

# Phase: runs unit, property and simulator tests of all crates. Their programs are compiled first,
# because the tests have no access to other networks.
unit: $(if $(READY),,packages-test build)
	@tools/install-cargo-tools nextest
	exec $(SUDO) env "PATH=$$PATH" mininet/apart cargo nextest run --offline --no-fail-fast --workspace --all-features

# Phase: runs the examples in the documentation of the code.
documented:
	cargo test --quiet --workspace --all-features --doc

# Phase: builds libcool for C and Python for the tests, and installs PyTorch, Helm and schemas of Kubernetes.
bindings-test: $(if $(READY),,packages-test)
	tools/bindings
	tools/torch "$(TARGET)/bindings/python"
	tools/kubernetes-tools "$(TARGET)/kubernetes-tools"

# Phase: tests libcool's Python module. With COOL_TESTS_IN_THREAD=1, these and the end-to-end tests
# run in a thread other than the main one.
python-tests: $(if $(READY),,bindings-test)
	exec env COOL_RUST_SUITE="$(TARGET)/bindings/suite-rust" "$(TARGET)/bindings/python/bin/python3" \
		$(if $(COOL_TESTS_IN_THREAD),tests/in_thread.py,-m pytest) libcool/python/tests --junitxml "$(TARGET)/python-tests.xml"

# Phase: runs the end-to-end tests on emulated networks (tests/README.md).
end-to-end: $(if $(READY),,packages-test build bindings-test)
	exec $(SUDO) env COOL_BIN="$(TARGET)/debug" CARGO_TARGET_DIR="$(TARGET)" "PYTHONPYCACHEPREFIX=$$PYTHONPYCACHEPREFIX" \
		COOL_KUBERNETES_TOOLS="$(TARGET)/kubernetes-tools" COOL_TESTS_IN_THREAD="$(COOL_TESTS_IN_THREAD)" tests/run.py $(TESTS)

# Runs the tests that need neither root nor an emulated network, without the slow ones
# (.config/nextest.toml): a few minutes after compilation.
test-quick:
	@tools/install-cargo-tools nextest
	cargo nextest run --workspace --all-features --profile quick

# Builds Debian packages and the wheel for Python (docs/guide/deployment.md); PROFILE=quick compiles
# faster, for tests of the packages.
PROFILE := release
packages: packages-packages
	tools/packages $(PROFILE)

# Builds only the wheel, which contains the programs, too.
wheel: packages-packages
	tools/packages $(PROFILE) wheel

# Builds a container image with the packages. BASE is a Debian 12 image, and IMAGE contains more
# options (--isolation chroot where containers cannot run).
BASE := docker.io/library/debian:bookworm-slim
image: packages
	@tools/install-packages podman uidmap slirp4netns
	podman build $(IMAGE) --build-arg BASE=$(BASE) -f deploy/Containerfile -t cool "$(TARGET)/packages"

# Installs, upgrades and removes the packages on machines that boot Debian on an emulated network,
# by the commands of docs/guide/deployment.md.
test-packages: packages-test packages
	@tools/install-packages mmdebstrap lintian
	$(SUDO) tools/debian-root "$(TARGET)/debian-root"
	$(SUDO) env COOL_PACKAGES="$(TARGET)/packages" COOL_DEBIAN="$(TARGET)/debian-root" tests/run.py tests/e2e/jobs/test_packages.py

# Builds libcool for C and Python, for installation, in target/bindings.
bindings: packages-test
	tools/bindings --release

# Runs the main measurements: collectives, loss, scaling, loopback (bench/README.md).
bench: packages-bench release
	$(SUDO) bench/bench.py $(BENCH)
	$(SUDO) bench/loss.py
	$(SUDO) bench/scaling.py
	$(SUDO) bench/loopback.py

# Measures collectives next to Open MPI and MPICH: under 10 minutes after compilation.
bench-quick: packages-bench release
	$(SUDO) bench/bench.py --quick $(BENCH)

# Measures collectives on each kind of network next to Open MPI and MPICH: about 20 minutes.
bench-networks: packages-bench release
	@tools/install-packages smcroute
	$(SUDO) bench/networks.py $(NETWORKS)

# Measures collectives on links without shaping next to Open MPI, MPICH and Gloo: some hours.
bench-wire: packages-bench release
	@tools/install-packages linux-perf
	$(SUDO) bench/wire.py $(WIRE)

# Measures K-means next to scikit-learn, FAISS and SuperKMeans, without an emulated network.
bench-kmeans: release
	@tools/install-packages python3-venv
	bench/kmeans.py --docs $(KMEANS)

# Measures a conjugate gradient solver on COOL, Open MPI and MPICH (docs/measurements/benchmarks.md).
solver: packages-bench release
	cargo build --release --package cool-c
	$(SUDO) bench/solver.py $(SOLVER)

# Measures the time from a failure to the last installed rule (docs/guide/deployment.md).
recovery: packages-bench release
	$(SUDO) bench/recovery.py $(RECOVERY)

# Runs MPICH's own tests of collectives over libcool_mpi.so, on each MPI library (docs/guide/mpi.md).
mpi-suite: packages-test
	@tools/install-packages dpkg-dev make
	cargo build --profile quick $(PROGRAMS) --bins --lib
	$(SUDO) tests/external/mpi_suite.py --prepare
	$(SUDO) env COOL_BIN="$(QUICK)" mininet/apart /usr/bin/python3 tests/external/mpi_suite.py $(MPI_SUITE)

# Runs unchanged MPI programs over libcool_mpi.so (docs/guide/mpi.md).
mpi-programs: packages-test
	@tools/install-packages hpcc scalapack-mpi-test
	cargo build --profile quick $(PROGRAMS) --bins --lib
	$(SUDO) tests/external/mpi_programs.py --prepare
	$(SUDO) env COOL_BIN="$(QUICK)" /usr/bin/python3 tests/external/mpi_programs.py $(MPI_PROGRAMS)

# Runs the tests of torch, accelerate and Lightning with Gloo and with COOL (docs/guide/torch.md).
torch: packages-test
	cargo build --profile quick $(PROGRAMS) --bins --lib
	tools/bindings
	tools/torch "$(TARGET)/bindings/python"
	$(SUDO) env COOL_BIN="$(QUICK)" tests/external/torch_suite.py --docs $(TORCH_SUITE)

# Measures training with PyTorch over COOL and over Gloo (docs/guide/torch.md).
bench-torch: packages-bench release
	@tools/install-packages dataset-fashion-mnist
	tools/bindings --release
	tools/torch "$(TARGET)/bindings/python"
	$(SUDO) bench/torch_train.py --docs $(TORCH)

# Measures copies of files to all nodes by each method of `cool copy` and by BitTorrent
# (docs/measurements/copies.md). COPY=... passes options, for example COPY="--slow 10";
# bench/copying.py --help lists those of each table.
bench-copy: packages-bench release
	@tools/install-packages $(COPIERS)
	$(SUDO) bench/copying.py $(COPY)

# Loads the controller with 500 simulated switches and 10,000 agents (docs/measurements/scale.md).
load: release
	@tools/install-packages python3-venv
	bench/load.py $(LOAD)

# Injects random faults under running collectives, and checks the reports that each process receives
# and that survivors continue (docs/guide/guide.md): about 25 minutes.
faults: packages-bench release
	$(SUDO) bench/faults.py $(FAULTS)

# Makes system calls of ranks and agents fail, by seed, and checks that each call returns the right
# data or an error and that other jobs go on (bench/inject.py).
inject: packages-bench release
	$(SUDO) bench/inject.py $(INJECT)

# Disturbs controllers, agents, links, certificates and logs while jobs run: one hour (bench/day.py).
day: packages-test release
	$(SUDO) bench/day.py $(DAY)

# Compares predictions of the simulator with measurements: about 7 minutes; writes
# docs/measurements/calibration.md.
calibrate: packages-bench release
	$(SUDO) bench/calibrate.py $(CALIBRATE)

# Checks format, clippy, documentation, and licenses and sources of dependencies.
lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	@tools/install-cargo-tools deny
	tools/check-dependencies

# Runs the tests of libcool, the agent, their protocols and shared memory, and libcool_mpi.so under
# AddressSanitizer, and those within one process under ThreadSanitizer (CONTRIBUTING.md), in
# target/sanitize. SANITIZE="-p cool-shm" selects crates or tests, in the notation of nextest.
sanitize:
	@tools/install-cargo-tools nextest
	tools/sanitize address $(SANITIZE)
	tools/sanitize thread $(SANITIZE)

# Runs each simulation over many seeds on all CPUs, and prints each failing seed with the command that
# repeats it (tools/seeds --help lists the simulations). For example:
#   make seeds SEEDS=2000000:50000 SIMULATION=many_seeded_quick_calls
SEEDS := 0:1000000
seeds:
	tools/seeds $(SEEDS) $(SIMULATION)

# Writes the documents as a web site to target/book.
book:
	@tools/install-cargo-tools mdbook
	mdbook build docs

# Builds the programs with optimization, for measurements.
release:
	cargo build --release $(PROGRAMS)

# The targets below install the Debian packages that the targets above need.
packages-demo:
	@tools/install-packages $(NETWORK_PACKAGES) $(PHOTOGRAPHS)

packages-test:
	@tools/install-packages $(NETWORK_PACKAGES) strace python3-pytest python3-venv python3-yaml pkg-config chromium etcd-server etcd-client openssl systemd libpam-systemd dataset-fashion-mnist smcroute udpcast $(LAUNCHERS)

packages-bench:
	@tools/install-packages $(NETWORK_PACKAGES) python3-venv iperf3 strace

packages-packages:
	@tools/install-packages gcc libc6-dev debhelper dpkg-dev python3-venv
