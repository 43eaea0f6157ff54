//! One seeded clock and network that drives the protocols.
