"""The demonstration's report is complete, also on another network and without BitTorrent."""
import json
import os
import random
import struct
import xml.dom.minidom
import zlib

from conftest import ROOT, succeed

import copies
import demo_page


def write_picture(path, side):
    """Writes a PNG of gray noise."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + random.Random(row).randbytes(side) for row in range(side))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return str(path)


def check_panels(page, ways, nodes):
    """Checks that each method has a panel that a browser can draw, with a line and a dot for each
    node."""
    panels = [section.split("</svg>")[0] + "</svg>" for section in page.split("<section><h3>")[1:]]
    assert len(panels) == ways
    for panel in panels:
        document = xml.dom.minidom.parseString(panel[panel.index("<svg"):])
        assert len(document.getElementsByTagName("circle")) == nodes


def test_the_report_shows_each_nodes_progress_by_every_way(make_bed, tmp_path):
    bed = make_bed("tree:2x2", host_mbit=50, uplink_mbit=50)
    picture, file = write_picture(tmp_path / "picture.png", 400), tmp_path / "file"
    file.write_bytes(random.Random(1).randbytes(24 << 20))
    out = succeed(bed, os.path.join(ROOT, "mininet", "demo.py"), "--out", str(tmp_path), "--clusters", "8", "--iterations", "2", "--photographs", picture,
                  "--file", str(file))
    with open(tmp_path / "summary.json") as f:
        figures = json.load(f)["copies"]
    ways = figures["ways"]
    assert [way["name"] for way in ways] == ["cool copy", "cool copy --via swarm"] + ["BitTorrent"] * copies.has_torrent()
    assert all(way["name"] in out for way in ways), out
    for way in ways:
        assert sorted(node["node"] for node in way["nodes"]) == ["h2", "h3", "h4"]
        # Reported times of nodes are rounded to a millisecond.
        assert way["over_limit"] > 1 and way["seconds"] > max(node["seconds"] for node in way["nodes"]) - 0.001, way
        for node in way["nodes"]:
            seconds, sizes = zip(*node["progress"])
            assert list(seconds) == sorted(seconds) and list(sizes) == sorted(sizes), node
            assert (seconds[-1], sizes[-1]) == (node["seconds"],
                                              figures["bytes"]) and len(sizes) > 4, "it shows the progress: %r" % node
    check_panels((tmp_path / "report.html").read_text(), len(ways), 3)


def test_without_bittorrent_the_report_states_how_to_install_it():
    nodes = [{"node": name, "rack": 0, "seconds": 2.0, "progress": [[1.0, 5 << 20], [2.0, 9 << 20]]} for name in ("h2", "h3")]
    way = {"name": "cool copy", "seconds": 2.1, "over_limit": None, "most": 1.1, "nodes": nodes}
    page = "\n".join(demo_page.copied({"file": "cool", "bytes": 9 << 20, "from": "h1", "mbit": 0, "limit": None, "ways": [way]}))
    assert "python3-libtorrent" in page and "dashed" not in page and "None" not in page
    check_panels(page, 1, 2)
