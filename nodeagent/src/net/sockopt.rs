//! Options of TCP sockets for which no crate has a safe call.
#![allow(unsafe_code, reason = "setsockopt(2) and getsockopt(2) take pointers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// TCP_RTO_MAX_MS of linux/tcp.h (Linux 6.15), which libc does not name yet.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Wakes the reader of a socket only when so many bytes have come, or the connection has ended: SO_RCVLOWAT of
/// socket(7).
///
/// # Errors
/// What the system says.
pub(super) fn set_low_water(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, (libc::SOL_SOCKET, libc::SO_RCVLOWAT), bytes)
}

/// A connection waits no longer than this before it sends again what was not acknowledged, however often that was lost.
///
/// # Errors
/// What the system says; one before Linux 6.15 that it has no such option.
pub(super) fn set_longest_retry(socket: impl AsFd, time: Duration) -> io::Result<()> {
    set(socket, (libc::IPPROTO_TCP, TCP_RTO_MAX_MS), u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
}

fn set(socket: impl AsFd, (level, option): (libc::c_int, libc::c_int), value: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is borrowed, so it is open; the pointer is to a c_int that lives until the call is over,
    // and its length is told.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How many segments a connection has sent again: tcpi_total_retrans of tcp(7).
///
/// # Errors
/// What the system says.
pub(super) fn retransmissions(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: the structure is made of numbers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed, so it is open; the pointer is to a structure that lives until the call is over
    // and that may be written as far as its length says.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(info.tcpi_total_retrans) } else { Err(io::Error::last_os_error()) }
}
