"""What is used of Mininet. Where it is missing, whoever imports this ends with one line that says what to do."""
import sys

try:
    from mininet.link import Link
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.node import OVSSwitch, Switch
    from mininet.topo import Topo
except ModuleNotFoundError as e:
    sys.exit("%s: %s has no Mininet (%s): install Debian's package mininet, and run this with /usr/bin/python3" % (sys.argv[0], sys.executable, e))

__all__ = ["Link", "Mininet", "OVSSwitch", "Switch", "Topo", "setLogLevel"]
