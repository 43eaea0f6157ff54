//! Congestion control: the rate of a source's multicast and its pacing, the queueing delay of
//! chunks, and the window of chunks that a receiver requests.

pub(crate) mod queueing_delay;
pub(crate) mod rate_control;
pub(crate) mod token_bucket;
pub(crate) mod window;
