//! The constants of retries and of failure detection between the nodes of a stream, in one table. RTO: the retransmission
//! timer of RFC 6298, measured by [`crate::rtt`].

use core::time::Duration;

/// The shortest RTO: below it, timers of the machines that run us fire late anyway.
pub(crate) const RTO_MIN: Duration = Duration::from_millis(2);
/// The longest RTO. A network with longer round trips is none that these protocols are for; and where three round trips in
/// four are lost, many tries must fit the time after which a stream counts as stalled.
pub(crate) const RTO_MAX: Duration = Duration::from_millis(250);
/// The most doublings of a timer (RFC 6298 section 5.5 is bounded by a minute): beyond, a retry is worth its packet.
pub(crate) const BACKOFF_DOUBLINGS_MAX: u32 = 2;

/// The shortest reordering window (RFC 8985 section 6.2), after which what was passed over counts as lost.
pub(crate) const REORDER_WINDOW_MIN: Duration = Duration::from_micros(500);
/// The reordering window starts from a quarter of the shortest round trip, as in RACK, and doubles with each NAK that
/// proves needless, up to this many times (RACK's `reo_wnd_mult`).
pub(crate) const REORDER_WINDOW_MULT_MAX: u32 = 16;
/// RTOs after which a chunk is asked for again whose NAK was confirmed (PGM's NAK_RDATA_IVL, RFC 3208).
pub(crate) const CONFIRMED_RTOS: u32 = 4;

/// Unanswered RTOs until a node that has answered before is passed over and the next one upstream is asked.
pub(crate) const UPSTREAM_TRIES_PROVEN: u32 = 4;
/// The same for a node that never has answered.
pub(crate) const UPSTREAM_TRIES: u32 = 2;
/// RTOs until a predecessor that was passed over is tried again.
pub(crate) const PREDECESSOR_RETRY_RTOS: u32 = 16;

/// Unanswered reports until the ACK parent is passed over and the source is told.
pub(crate) const ACK_PARENT_TRIES: u32 = 3;
/// How long a round waits for the report of a receiver that has reported before: above the longest queueing delay
/// supported.
pub(crate) const REPORT_TIMEOUT: Duration = Duration::from_millis(250);
/// RTOs that a settled receiver stays to answer those who have not heard that they are settled. Who asks later asks the
/// source.
pub(crate) const LINGER_RTOS: u32 = 32;

/// A receiver takes the multicast tree for silent after this many chunk times, or [`SILENT_RTOS`] if that is longer, without
/// a packet. Ample, since asking for everything because a busy machine paused costs more than finding out late: the end of a
/// stream is announced.
pub(crate) const SILENT_CHUNKS: u32 = 64;
/// RTOs without a packet; see [`SILENT_CHUNKS`].
pub(crate) const SILENT_RTOS: u32 = 4;
/// The source gives the multicast tree up when no receiver has reported a round for this many RTOs and for [`DEAD_ROUNDS`]
/// rounds, and who asks for chunks does not hear it.
pub(crate) const DEAD_RTOS: u32 = 6;
/// Rounds without a report; see [`DEAD_RTOS`].
pub(crate) const DEAD_ROUNDS: u32 = 4;
