//! How fast, and how much at a time: the rate of a source's multicast and its pacing, how long chunks wait in queues,
//! and the window of chunks that a receiver asks for.

pub(crate) mod queueing_delay;
pub(crate) mod rate_control;
pub(crate) mod token_bucket;
pub(crate) mod window;
