#!/usr/bin/python3
"""One BitTorrent peer (copies.py), tuned for a cluster: only TCP, all peers known, all unchoked at
once.

    torrent_peer.py DIR TORRENT IP SEED IP,IP,...

A seed (SEED is the path of the file) serves the file; others (SEED is -) download it into DIR/IP. A
line on standard input makes the peer connect to all others. A peer whose copy is complete prints
one line of JSON: pairs of seconds, by the machine's monotonic clock, and the bytes of verified
pieces at that time. The next line of input ends it.
"""
import json
import os
import sys
import time

import libtorrent

PORT = 6881
PATIENCE_MS = 1000
CATEGORIES = libtorrent.alert.category_t
SETTINGS = {
    "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
    "enable_outgoing_utp": False, "enable_incoming_utp": False, "allow_multiple_connections_per_ip": True,
    "unchoke_slots_limit": -1, "connections_limit": 2000, "connection_speed": 500, "mixed_mode_algorithm": 0, "hashing_threads": 1,
    "alert_mask": CATEGORIES.status_notification | CATEGORIES.error_notification | CATEGORIES.piece_progress_notification,
}


def download(session, handle, info):
    """Waits until the file is complete; returns the progress."""
    progress, present = [(time.monotonic(), 0)], 0
    while not handle.status().is_seeding:
        session.wait_for_alert(PATIENCE_MS)
        for alert in session.pop_alerts():
            if isinstance(alert, libtorrent.piece_finished_alert):
                present += info.piece_size(alert.piece_index)
                progress.append((time.monotonic(), present))
            elif alert.category() & CATEGORIES.error_notification:
                print(alert.message(), file=sys.stderr, flush=True)
    return [*progress, (time.monotonic(), info.total_size())]


def main():
    folder, torrent, ip, seed, peers = sys.argv[1:]
    session = libtorrent.session(dict(SETTINGS, listen_interfaces="%s:%d" % (ip, PORT)))
    parameters = libtorrent.add_torrent_params()
    parameters.ti = libtorrent.torrent_info(torrent)
    parameters.save_path = os.path.join(folder, ip) if seed == "-" else os.path.dirname(seed)
    os.makedirs(parameters.save_path, exist_ok=True)
    if seed != "-":
        parameters.flags |= libtorrent.torrent_flags.seed_mode
    handle = session.add_torrent(parameters)
    print("ready", flush=True)
    sys.stdin.readline()
    for peer in peers.split(","):
        if peer != ip:
            handle.connect_peer((peer, PORT))
    if seed == "-":
        print(json.dumps(download(session, handle, parameters.ti)), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
