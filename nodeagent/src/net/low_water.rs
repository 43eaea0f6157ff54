//! How much must have come over a TCP connection before its reader is woken: SO_RCVLOWAT of socket(7), for which no
//! crate has a safe call.
#![allow(unsafe_code, reason = "setsockopt(2) takes a pointer")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Wakes the reader of a socket only when so many bytes have come, or the connection has ended.
///
/// # Errors
/// What the system says.
pub(super) fn set(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is borrowed, so it is open; the pointer is to a c_int that lives until the call is over,
    // and its length is told.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
