//! Options of TCP sockets for which no crate has a safe call.
#![allow(unsafe_code, reason = "setsockopt(2) and getsockopt(2) take pointers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Of linux/tcp.h (Linux 6.15), which libc does not name yet.
const TCP_RTO_MAX_MS: libc::c_int = 44;
const TCP_RTO_MIN_US: libc::c_int = 45;
const TCP_DELACK_MAX_US: libc::c_int = 46;

/// Wakes the reader of a socket only when `bytes` have come, or the connection has ended: SO_RCVLOWAT of
/// socket(7).
///
/// # Errors
/// What the system says.
pub fn set_low_water(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, (libc::SOL_SOCKET, libc::SO_RCVLOWAT), number(bytes.into()))
}

/// When a connection sends again what was not acknowledged: no sooner than the shortest time after its round trip, no
/// later than the longest, however often it was lost. What comes is acknowledged within a third of the shortest.
///
/// # Errors
/// What the system says; one before Linux 6.15 that it has no such options.
pub(crate) fn set_retries(socket: impl AsFd, shortest: Duration, longest: Duration) -> io::Result<()> {
    set(&socket, (libc::IPPROTO_TCP, TCP_RTO_MAX_MS), number(longest.as_millis()))?;
    set(&socket, (libc::IPPROTO_TCP, TCP_DELACK_MAX_US), number(shortest.as_micros() / 3))?;
    set(&socket, (libc::IPPROTO_TCP, TCP_RTO_MIN_US), number(shortest.as_micros()))
}

/// A connection sends no more payload per second than this: SO_MAX_PACING_RATE of socket(7). The most there is is no
/// bound.
///
/// # Errors
/// What the system says.
pub(crate) fn set_pace(socket: impl AsFd, bytes_per_second: u32) -> io::Result<()> {
    set(socket, (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE), bytes_per_second.cast_signed())
}

fn number(number: u128) -> libc::c_int {
    libc::c_int::try_from(number).unwrap_or(libc::c_int::MAX)
}

fn set(socket: impl AsFd, (level, option): (libc::c_int, libc::c_int), value: libc::c_int) -> io::Result<()> {
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
pub(crate) fn retransmissions(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: the structure is made of numbers, for which zero is a value, and so is whatever the system writes.
    let info: libc::tcp_info = unsafe { get(socket, (libc::IPPROTO_TCP, libc::TCP_INFO)) }?;
    Ok(info.tcpi_total_retrans)
}

/// What [`set_pace`] has set.
#[cfg(test)]
pub(crate) fn pace(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: any bits are a number.
    unsafe { get(socket, (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE)) }
}

/// # Safety
/// Any bits must be a `T`.
unsafe fn get<T>(socket: impl AsFd, (level, option): (libc::c_int, libc::c_int)) -> io::Result<T> {
    // SAFETY: as the caller promises.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed, so it is open; the pointer is to a value that lives until the call is over and
    // that may be written as far as its length says.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
