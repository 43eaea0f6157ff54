//! Options of TCP sockets for which no crate has a safe call.
#![allow(unsafe_code, reason = "setsockopt(2) and getsockopt(2) take pointers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Constants of linux/tcp.h (Linux 6.15) that the crate libc does not define yet.
const TCP_RTO_MAX_MS: libc::c_int = 44;
const TCP_RTO_MIN_US: libc::c_int = 45;
const TCP_DELACK_MAX_US: libc::c_int = 46;

/// Wakes the reader of a socket only when `bytes` have arrived or the connection has ended:
/// SO_RCVLOWAT of socket(7).
///
/// # Errors
/// Returns the error of setsockopt(2).
pub fn set_low_water(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, (libc::SOL_SOCKET, libc::SO_RCVLOWAT), number(bytes.into()))
}

/// Sets the bounds of a connection's retransmission timeout: a segment is retransmitted no sooner
/// than `shortest` after its round trip and no later than `longest`, however often it was lost.
/// Received data is acknowledged within a third of `shortest`.
///
/// # Errors
/// Returns the error of setsockopt(2), for example before Linux 6.15, which does not have these
/// options.
pub(crate) fn set_retransmission_timeout(
    socket: impl AsFd,
    shortest: Duration,
    longest: Duration,
) -> io::Result<()> {
    set(&socket, (libc::IPPROTO_TCP, TCP_RTO_MAX_MS), number(longest.as_millis()))?;
    set(&socket, (libc::IPPROTO_TCP, TCP_DELACK_MAX_US), number(shortest.as_micros() / 3))?;
    set(&socket, (libc::IPPROTO_TCP, TCP_RTO_MIN_US), number(shortest.as_micros()))
}

/// Limits the payload that a connection sends per second: SO_MAX_PACING_RATE of socket(7). The
/// maximum of the type removes the limit.
///
/// # Errors
/// Returns the error of setsockopt(2).
pub(crate) fn set_rate_limit(socket: impl AsFd, bytes_per_second: u32) -> io::Result<()> {
    set(socket, (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE), bytes_per_second.cast_signed())
}

fn number(number: u128) -> libc::c_int {
    libc::c_int::try_from(number).unwrap_or(libc::c_int::MAX)
}

fn set(socket: impl AsFd, (level, option): (libc::c_int, libc::c_int), value: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, so it is open; the pointer refers to a c_int that lives
    // until the call returns, and the length is its size.
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

/// Returns the number of segments that a connection has retransmitted: tcpi_total_retrans of
/// tcp(7).
///
/// # Errors
/// Returns the error of getsockopt(2).
pub(crate) fn retransmissions(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: the structure consists of integers, for which all bit patterns are valid.
    let info: libc::tcp_info = unsafe { get(socket, (libc::IPPROTO_TCP, libc::TCP_INFO)) }?;
    Ok(info.tcpi_total_retrans)
}

/// Returns the limit that [`set_rate_limit`] has set.
#[cfg(test)]
pub(crate) fn rate_limit(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: all bit patterns are valid for an integer.
    unsafe { get(socket, (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE)) }
}

/// Returns a socket option.
///
/// # Safety
/// All bit patterns must be valid for `T`.
unsafe fn get<T>(socket: impl AsFd, (level, option): (libc::c_int, libc::c_int)) -> io::Result<T> {
    // SAFETY: the caller guarantees that zero is valid for `T`.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed, so it is open; the pointer refers to a value that lives
    // until the call returns and may be written up to its length.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
