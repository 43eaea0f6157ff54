//! Collective communication for clusters with programmable networks.
