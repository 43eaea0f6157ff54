//! Reliable multicast with chain repair, and unicast messages, as state machines.
