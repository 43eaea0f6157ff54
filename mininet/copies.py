"""Copies a file from the first host of an emulated network to all others, by `cool copy` or
BitTorrent, and records the progress of each host.

Compares every copy with the source. Times of `cool copy` count from the start of the command. Times
of BitTorrent count from the moment at which all peers connect, so they do not include the start of
its programs, the hash of the file and the torrent. Needs Debian's python3-libtorrent
(`has_torrent`).
"""
import contextlib
import filecmp
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Seconds after which a copy that has not completed fails.
PATIENCE = 600.0
# Seconds within which an interrupted command must end.
PATIENCE_FOR_END = 60.0


def has_torrent():
    """Returns whether BitTorrent is installed."""
    return importlib.util.find_spec("libtorrent") is not None


def no_disturbance(_kill, _start):
    """Returns a context that does nothing to the nodes during a copy."""
    return contextlib.nullcontext()


class EndTimeout(RuntimeError):
    """A process that did not end in time."""


class Distribution:
    """A file, the hosts of a testbed's description, and a directory for their copies.

    `by_cool` and `by_torrent` return a dictionary. Its `seconds` is the duration of the whole copy.
    Its `nodes` contains, by the host's name: `seconds` until the host's copy was complete, `own`
    seconds since the host's own start, and `progress`, a list of pairs (seconds, bytes that the
    host had received by then). Its `missing` contains the reason for each host without a copy; such
    a host is an error unless `may_fail` is true.
    """

    def __init__(self, path, folder, description, patience=PATIENCE):
        self.path, self.copies, self.size, self.patience = path, os.path.join(folder, "copies"), os.path.getsize(path), patience
        self.source, *self.receivers = description["hosts"]

    def clear(self):
        shutil.rmtree(self.copies, ignore_errors=True)

    def copy_of(self, host):
        """Returns the path of a host's copy, for methods that let the caller choose it."""
        return os.path.join(self.copies, host["name"], "copy")

    def check(self, host, copy):
        """Raises an error unless the host's copy equals the source."""
        if not filecmp.cmp(self.path, copy, shallow=False):
            raise RuntimeError("the copy of %s differs from the source" % host["name"])

    def by_cool(self, environment, *options, may_fail=False):
        """Copies by `cool copy` with these options. In the result, `via` is the plan that it used,
        and `sent` the number of bytes that were broadcast."""
        names = [host["name"] for host in self.receivers]
        command = ["cool", "copy", "--json", "--from", self.source["name"], "--nodes", ",".join(names), *options, self.path,
                   os.path.join(self.copies, "{node}", "copy")]
        try:
            status, out, errors = run_bounded(command, environment, self.patience)
        except EndTimeout as e:
            if not may_fail:
                raise
            return {"seconds": self.patience, "via": "", "sent": 0, "nodes": {}, "missing": dict.fromkeys(names, str(e))}
        if status and not (may_fail and out):
            raise RuntimeError("%s: status %d: %s" % (" ".join(command[:2]), status, errors.strip()[-300:]))
        outcome = json.loads(out)
        missing = {node["node"]: node["error"] for node in outcome["nodes"] if node["error"]}
        for host in self.receivers:
            if host["name"] not in missing:
                self.check(host, self.copy_of(host))
        nodes = {node["node"]: {**outcome_of([(s, self.size - missing_bytes) for s, missing_bytes in node["progress"]]), "own": node["seconds"]}
                 for node in outcome["nodes"] if not node["error"]}
        return {"seconds": outcome["seconds"], "via": outcome["via"], "sent": outcome["sent"], "nodes": nodes, "missing": missing}

    def by_torrent(self, piece, may_fail=False, late=(), disturbance=no_disturbance):
        """Copies by BitTorrent, in pieces of `piece` bytes. `disturbance` returns a context that is
        entered during the copy; its arguments are two functions, which kill and start the peer of a
        host by its name. Hosts in `late` have no peer until this context starts it."""
        with Torrent(self, self.make_torrent(piece)) as torrent:
            hosts = {host["name"]: host for host in [self.source, *self.receivers]}
            initial_names = [name for name in hosts if name not in late]
            for name in initial_names:
                torrent.start(hosts[name])
            for name in initial_names:
                torrent.await_ready(name)
            start_time = time.monotonic()
            with disturbance(torrent.kill, lambda name: torrent.join(hosts[name])):
                for name in initial_names:
                    torrent.connect(name)
                progress = {host["name"]: torrent.read_progress(host["name"]) for host in self.receivers}
            connect_times = torrent.connected
        missing = {name: "its peer has ended, or its copy is incomplete after %g s" % self.patience for name, present in progress.items() if not present}
        if missing and not may_fail:
            raise RuntimeError("no copy by BitTorrent: %s" % "; ".join("%s: %s" % item for item in missing.items()))
        nodes = {}
        for host in self.receivers:
            if host["name"] not in missing:
                self.check(host, os.path.join(self.copies, host["ip"], os.path.basename(self.path)))
                node = outcome_of([(round(s - start_time, 3), present) for s, present in progress[host["name"]]])
                nodes[host["name"]] = {**node, "own": round(node["seconds"] + start_time - connect_times[host["name"]], 3)}
        return {"seconds": max((node["seconds"] for node in nodes.values()), default=0.0), "nodes": nodes, "missing": missing}

    def make_torrent(self, piece):
        """Returns the path of a torrent file that describes the source."""
        import libtorrent
        files = libtorrent.file_storage()
        libtorrent.add_files(files, self.path)
        torrent = libtorrent.create_torrent(files, piece)
        libtorrent.set_piece_hashes(torrent, os.path.dirname(self.path))
        os.makedirs(self.copies, exist_ok=True)
        path = os.path.join(self.copies, "torrent")
        with open(path, "wb") as f:
            f.write(libtorrent.bencode(torrent.generate()))
        return path


class Torrent:
    """The peers of one torrent, each on its host. They are killed when this context ends, or when
    the distribution's `patience` has passed."""

    def __init__(self, distribution, torrent):
        self.distribution, self.torrent = distribution, torrent
        self.addresses = ",".join(host["ip"] for host in [distribution.source, *distribution.receivers])
        self.peers, self.connected, self.processes = {}, {}, []
        self.changed = threading.Condition()
        self.timer = threading.Timer(distribution.patience, self.end)

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, *_):
        self.timer.cancel()
        self.end()
        for peer in self.processes:
            peer.wait()

    def end(self):
        with self.changed:
            for peer in self.processes:
                peer.kill()

    def start(self, host):
        """Starts the peer of a host."""
        command = ["mnexec", "-a", str(host["pid"]), sys.executable, os.path.join(HERE, "torrent_peer.py"), self.distribution.copies, self.torrent, host["ip"],
                   self.distribution.path if host is self.distribution.source else "-", self.addresses]
        peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        with self.changed:
            self.processes.append(peer)
            self.peers[host["name"]] = peer

    def await_ready(self, name):
        """Waits until the peer can connect."""
        if self.peers[name].stdout.readline() != "ready\n":
            raise RuntimeError("the BitTorrent peer of %s does not start" % name)

    def join(self, host):
        """Adds a peer while others are already copying."""
        self.start(host)
        self.await_ready(host["name"])
        self.connect(host["name"])

    def connect(self, name):
        """Connects the peer of this name to all others, unless it has been killed."""
        with self.changed:
            self.connected[name] = time.monotonic()
            self.changed.notify_all()
        with contextlib.suppress(BrokenPipeError):
            self.peers[name].stdin.write("\n")
            self.peers[name].stdin.flush()

    def kill(self, name, starts_again=False):
        """Kills the peer of this name. If `starts_again` is true, `read_progress` waits for the
        peer that replaces it."""
        with self.changed:
            if starts_again:
                del self.connected[name]
            self.peers[name].kill()

    def read_progress(self, name):
        """Returns the progress of the peer of this name, or an empty list if the peer ended before
        its copy was complete, or never connected."""
        while True:
            with self.changed:
                if not self.changed.wait_for(lambda: name in self.connected, self.distribution.patience):
                    return []
                peer = self.peers[name]
            line = peer.stdout.readline()
            with self.changed:
                if line or name in self.connected and self.peers[name] is peer:
                    return json.loads(line or "[]")


def run_bounded(command, environment, seconds):
    """Returns a command's status, output and errors. If the command takes longer than `seconds`,
    interrupts it and raises EndTimeout."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=PATIENCE_FOR_END)
            raise EndTimeout("%s: no end within %g s" % (" ".join(command[:2]), seconds)) from None
        finally:
            process.kill()
    return process.returncode, out, errors


def outcome_of(progress):
    """Returns a node's outcome; the last point of its progress is the completion of the copy."""
    return {"seconds": progress[-1][0], "progress": progress}
