//! The network as a graph: LLDP discovery, racks, leaders, paths, multicast trees.
