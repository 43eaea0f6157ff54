//! A message from or to another rank as a value, after its arguments were checked.

use crate::Type;
use cool_proto::local::Probe;

/// A message with valid ranks.
#[derive(Debug)]
pub(crate) struct PointToPointCall<'s> {
    pub(crate) name: &'static str,
    /// Whether `data` is sent; otherwise the received message overwrites it.
    pub(crate) sends: bool,
    /// For a send: whether it completes only when a receive has matched it.
    pub(crate) synchronous: bool,
    /// For a receive: whether it only reports the message.
    pub(crate) probe: Probe,
    pub(crate) data: &'s [u8],
    pub(crate) peer: Option<u32>,
    pub(crate) tag: Option<u32>,
    pub(crate) dtype: Type,
}
