//! All timeouts of a stream in one table: retries, and the detection of failed nodes. RTO is the
//! retransmission timeout of RFC 6298, which `rtt` measures.

use core::time::Duration;

/// Shortest RTO. Below it, the timers of the operating system fire late anyway.
pub(crate) const RTO_MIN: Duration = Duration::from_millis(2);
/// Longest RTO. These protocols are not meant for networks with longer round trips. Where three
/// round trips in four fail, many retries must fit into the time after which a stream counts as
/// stalled.
pub(crate) const RTO_MAX: Duration = Duration::from_millis(250);
/// Most doublings of a timeout (compare RFC 6298, section 5.5, with its bound of a minute). It
/// stops growing early, because a retry costs only one packet.
pub(crate) const BACKOFF_DOUBLINGS_MAX: u32 = 2;

/// Shortest reordering window (RFC 8985, section 6.2). A chunk counts as missing once the window
/// has passed.
pub(crate) const REORDER_WINDOW_MIN: Duration = Duration::from_micros(500);
/// The reordering window starts at a quarter of the shortest round trip, as in RACK, and doubles
/// with each NAK that was not needed, up to this factor (`reo_wnd_mult` in RACK).
pub(crate) const REORDER_WINDOW_MULT_MAX: u32 = 16;
/// RTOs after which a chunk is requested again although its NAK was confirmed (NAK_RDATA_IVL of
/// PGM, RFC 3208).
pub(crate) const CONFIRMED_RTOS: u32 = 4;

/// Unanswered RTOs until a node that has answered before is skipped and the next one upstream
/// receives the NAKs.
pub(crate) const UPSTREAM_TRIES_PROVEN: u32 = 4;
/// Like [`UPSTREAM_TRIES_PROVEN`], for a node that has never answered.
pub(crate) const UPSTREAM_TRIES: u32 = 2;
/// RTOs until a skipped predecessor is tried again.
pub(crate) const PREDECESSOR_RETRY_RTOS: u32 = 16;

/// Unanswered reports until the ACK parent is skipped and reports are sent to the source.
pub(crate) const ACK_PARENT_TRIES: u32 = 3;
/// How long a round waits for the report of a receiver that has reported before. It must exceed the
/// longest queueing delay that is supported.
pub(crate) const REPORT_TIMEOUT: Duration = Duration::from_millis(250);
/// RTOs that a settled receiver stays open to answer nodes that missed the settled packet. Later
/// requests go to the source.
pub(crate) const LINGER_RTOS: u32 = 32;

/// Chunk times without a packet after which a receiver takes the multicast tree for silent, unless
/// [`SILENT_RTOS`] is longer. It reports the tree if as many chunks in a row have arrived along the
/// chain. This is generous, because requesting all chunks when a busy machine paused costs more
/// than a late detection. The end of a stream is announced in any case.
pub(crate) const SILENT_CHUNKS: u32 = 64;
/// RTOs without a packet; see [`SILENT_CHUNKS`].
pub(crate) const SILENT_RTOS: u32 = 4;
/// RTOs without a report of a new round after which the source gives up the multicast tree, if also
/// [`DEAD_ROUNDS`] rounds have passed and the nodes that send NAKs do not receive the multicast.
pub(crate) const DEAD_RTOS: u32 = 6;
/// Rounds without a report; see [`DEAD_RTOS`].
pub(crate) const DEAD_ROUNDS: u32 = 4;
