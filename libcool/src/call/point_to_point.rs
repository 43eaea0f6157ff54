//! One message from or to another rank as a value, after its arguments were checked.

use crate::Type;
use cool_proto::local::Probe;

/// A message whose ranks make sense.
#[derive(Debug)]
pub(crate) struct PointToPointCall<'s> {
    pub(crate) name: &'static str,
    /// Whether `data` goes out; else what comes overwrites it.
    pub(crate) sends: bool,
    /// Of a send: it waits for its receive.
    pub(crate) synchronous: bool,
    /// Of what would be a receive: whether it only asks.
    pub(crate) probe: Probe,
    pub(crate) data: &'s [u8],
    pub(crate) peer: Option<u32>,
    pub(crate) tag: Option<u32>,
    pub(crate) dtype: Type,
}
