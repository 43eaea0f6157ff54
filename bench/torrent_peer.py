#!/usr/bin/python3
"""One BitTorrent peer for bench/copy.py, tuned for a cluster: TCP alone, all peers told, every one unchoked at once.

    torrent_peer.py FOLDER TORRENT IP SEED IP,IP,...

A seed (SEED is the path of the file) serves it, others (SEED is -) get it into FOLDER/IP. When a line comes on the standard input all connect;
`done SECONDS` is printed, by the machine's monotonic clock, when everything is there and checked.
"""
import os
import sys
import time

import libtorrent

PORT = 6881
PATIENCE_MS = 1000
SETTINGS = {
    "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
    "enable_outgoing_utp": False, "enable_incoming_utp": False, "allow_multiple_connections_per_ip": True,
    "unchoke_slots_limit": -1, "connections_limit": 2000, "connection_speed": 500, "mixed_mode_algorithm": 0, "hashing_threads": 1,
    "alert_mask": libtorrent.alert.category_t.status_notification | libtorrent.alert.category_t.error_notification,
}


def main():
    folder, torrent, ip, seed, peers = sys.argv[1:]
    session = libtorrent.session(dict(SETTINGS, listen_interfaces="%s:%d" % (ip, PORT)))
    what = libtorrent.add_torrent_params()
    what.ti = libtorrent.torrent_info(torrent)
    what.save_path = os.path.join(folder, ip) if seed == "-" else os.path.dirname(seed)
    os.makedirs(what.save_path, exist_ok=True)
    if seed != "-":
        what.flags |= libtorrent.torrent_flags.seed_mode
    handle = session.add_torrent(what)
    print("ready", flush=True)
    sys.stdin.readline()
    for peer in peers.split(","):
        if peer != ip:
            handle.connect_peer((peer, PORT))
    while seed == "-" and not handle.status().is_seeding:
        session.wait_for_alert(PATIENCE_MS)
        for alert in session.pop_alerts():
            if alert.category() & libtorrent.alert.category_t.error_notification:
                print(alert.message(), file=sys.stderr, flush=True)
    print("done %.6f" % time.monotonic(), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
