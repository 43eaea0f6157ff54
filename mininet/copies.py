"""A file from the first host of an emulated network to all others, by `cool copy` or by BitTorrent: when each has what of it.

Every copy is compared with the source. Times of `cool copy` count from the command; BitTorrent's from when all peers connect, so the start
of its programs, the hash of the file and the torrent are left out. It needs Debian's python3-libtorrent (`has_torrent`).
"""
import contextlib
import filecmp
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def has_torrent():
    """Whether BitTorrent can be tried."""
    return importlib.util.find_spec("libtorrent") is not None


class Spread:
    """A file, the hosts of a testbed's description, and a folder for their copies.

    Each way of it returns `seconds` of the whole, and `nodes`: by the host's name, `seconds` until its copy was there, and `progress`, pairs
    of seconds and the bytes that it had then."""

    def __init__(self, path, folder, description):
        self.path, self.copies, self.size = path, os.path.join(folder, "copies"), os.path.getsize(path)
        self.source, *self.receivers = description["hosts"]

    def clear(self):
        shutil.rmtree(self.copies, ignore_errors=True)

    def check(self, host, copy):
        """The host's copy has to be the same."""
        if not filecmp.cmp(self.path, copy, shallow=False):
            raise RuntimeError("the copy of %s is not as the source" % host["name"])

    def by_cool(self, environment, *options):
        """By `cool copy` with some options; `via` is the plan that it took."""
        names = [host["name"] for host in self.receivers]
        command = ["cool", "copy", "--json", "--from", self.source["name"], "--nodes", ",".join(names), *options, self.path,
                   os.path.join(self.copies, "{node}", "copy")]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError("%s: status %d: %s" % (" ".join(command[:2]), done.returncode, done.stderr.strip()[-300:]))
        for host in self.receivers:
            self.check(host, os.path.join(self.copies, host["name"], "copy"))
        outcome = json.loads(done.stdout)
        nodes = {node["node"]: outcome_of([(s, self.size - lacks) for s, lacks in node["progress"]]) for node in outcome["nodes"]}
        return {"seconds": outcome["seconds"], "via": outcome["via"], "nodes": nodes}

    def by_torrent(self, piece):
        """By BitTorrent, in pieces of `piece` bytes."""
        torrent = self.make_torrent(piece)
        addresses = ",".join(host["ip"] for host in [self.source, *self.receivers])
        with contextlib.ExitStack() as stack:
            def start(host, seed):
                command = ["mnexec", "-a", str(host["pid"]), sys.executable, os.path.join(HERE, "torrent_peer.py"), self.copies, torrent, host["ip"], seed, addresses]
                peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                stack.callback(peer.wait)
                stack.callback(peer.kill)
                return peer

            seed, *peers = [start(self.source, self.path), *(start(host, "-") for host in self.receivers)]
            if any(peer.stdout.readline() != "ready\n" for peer in [seed, *peers]):
                raise RuntimeError("a BitTorrent peer does not start")
            began = time.monotonic()
            for peer in [seed, *peers]:
                peer.stdin.write("\n")
                peer.stdin.flush()
            progress = [json.loads(peer.stdout.readline() or "[]") for peer in peers]
        if not all(progress):
            raise RuntimeError("a BitTorrent peer has ended")
        for host in self.receivers:
            self.check(host, os.path.join(self.copies, host["ip"], os.path.basename(self.path)))
        nodes = {host["name"]: outcome_of([(round(s - began, 3), has) for s, has in points]) for host, points in zip(self.receivers, progress)}
        return {"seconds": max(node["seconds"] for node in nodes.values()), "nodes": nodes}

    def make_torrent(self, piece):
        """The path of a file that tells what is in the source."""
        import libtorrent
        files = libtorrent.file_storage()
        libtorrent.add_files(files, self.path)
        made = libtorrent.create_torrent(files, piece)
        libtorrent.set_piece_hashes(made, os.path.dirname(self.path))
        os.makedirs(self.copies, exist_ok=True)
        path = os.path.join(self.copies, "torrent")
        with open(path, "wb") as f:
            f.write(libtorrent.bencode(made.generate()))
        return path


def outcome_of(progress):
    """A node's: the last point is when its copy is there."""
    return {"seconds": progress[-1][0], "progress": progress}
