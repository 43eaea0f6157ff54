//! OpenFlow controller: discovery, forwarding, multicast trees, groups and jobs.

pub mod allocate;
