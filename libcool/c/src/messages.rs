//! Messages between ranks.

use crate::arguments::{bytes_of, elements_of};
use crate::codes::{cool_comm, cool_request, cool_status, cool_type};
use crate::comm::find_comm;
use crate::error::{CError, guarded};
use crate::pointers::{bytes, bytes_mut, put};
use crate::requests::{REQUESTS, start_request};
use cool_rust::{Array, ArrayMut, Comm, Error, Message, Pending, Probed, Received};
use std::ffi::{c_int, c_void};

/// `COOL_ANY_SOURCE` of the header.
const ANY_SOURCE: usize = usize::MAX;
/// `COOL_ANY_TAG` of the header.
const ANY_TAG: u32 = u32::MAX;

/// A received message.
#[repr(C)]
pub struct cool_message {
    /// Rank that sent the message.
    pub source: usize,
    /// Tag of the message.
    pub tag: u32,
    /// Number of received elements.
    pub count: usize,
}

impl From<Received> for cool_message {
    fn from(Received { source, tag, count }: Received) -> cool_message {
        cool_message { source, tag, count }
    }
}

/// A queued message that a receive would match.
#[repr(C)]
pub struct cool_probed {
    /// Rank that sent the message.
    pub source: usize,
    /// Tag of the message.
    pub tag: u32,
    /// Length of the message in bytes, for any element type.
    pub bytes: usize,
}

impl From<Probed> for cool_probed {
    fn from(Probed { source, tag, bytes }: Probed) -> cool_probed {
        cool_probed { source, tag, bytes }
    }
}

fn start(comm: &Comm, message: Message<'_, 'static>) -> Result<Pending<'static>, Error> {
    comm.start().message(message)
}

/// Passes a send to `then`.
///
/// # Safety
/// `data` must have `count` elements, which stay valid until this returns.
unsafe fn sent<R>(
    data: *const c_void,
    count: usize,
    dtype: cool_type,
    (dest, tag, synchronous): (usize, u32, bool),
    comm: cool_comm,
    then: impl FnOnce(&Comm, Message<'_, 'static>) -> Result<R, Error>,
) -> Result<R, CError> {
    let comm = find_comm(comm)?;
    if tag == ANY_TAG {
        return Err(CError::Argument("COOL_ANY_TAG is for receives; send with another tag".to_owned()));
    }
    let dtype = elements_of(dtype)?;
    // SAFETY: the caller guarantees this.
    let data = unsafe { bytes("data", data, bytes_of(dtype.bytes(), count)?) }?;
    let data = Array::new(dtype, data).ok_or_else(|| CError::Argument("data is no array".to_owned()))?;
    Ok(match synchronous {
        true => then(&comm, Message::SynchronousSend { data, dest, tag })?,
        false => then(&comm, Message::Send { data, dest, tag })?,
    })
}

/// Passes a receive to `then`.
///
/// # Safety
/// `data` must have room for `count` elements, and no other code may access them until the message
/// is received.
unsafe fn received<R>(
    data: *mut c_void,
    count: usize,
    dtype: cool_type,
    source: usize,
    tag: u32,
    comm: cool_comm,
    then: impl FnOnce(&Comm, Message<'_, 'static>) -> Result<R, Error>,
) -> Result<R, CError> {
    let comm = find_comm(comm)?;
    let dtype = elements_of(dtype)?;
    // SAFETY: the caller guarantees this.
    let data = unsafe { bytes_mut("data", data, bytes_of(dtype.bytes(), count)?) }?;
    let data = ArrayMut::new(dtype, data).ok_or_else(|| CError::Argument("data is no array".to_owned()))?;
    let (source, tag) = any(source, tag);
    Ok(then(&comm, Message::Receive { data, source, tag })?)
}

/// Converts wildcards to `None`.
fn any(source: usize, tag: u32) -> (Option<usize>, Option<u32>) {
    ((source != ANY_SOURCE).then_some(source), (tag != ANY_TAG).then_some(tag))
}

/// Sends `count` elements to rank `dest`, which must receive them with the same type and tag.
///
/// Among the messages that match a receive, those from one rank are received in the order in which
/// they were sent.
///
/// # Safety
/// `data` must have `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_send(
    data: *const c_void,
    count: usize,
    dtype: cool_type,
    dest: usize,
    tag: u32,
    comm: cool_comm,
) -> cool_status {
    // SAFETY: the caller guarantees this.
    guarded(|| unsafe { sent(data, count, dtype, (dest, tag, false), comm, Comm::message) }.map(drop))
}

/// As cool_send, but returns only when a receive has matched the message.
///
/// # Safety
/// `data` must have `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ssend(
    data: *const c_void,
    count: usize,
    dtype: cool_type,
    dest: usize,
    tag: u32,
    comm: cool_comm,
) -> cool_status {
    // SAFETY: the caller guarantees this.
    guarded(|| unsafe { sent(data, count, dtype, (dest, tag, true), comm, Comm::message) }.map(drop))
}

/// Waits for a message that a receive from `source` (or COOL_ANY_SOURCE) with `tag` (or
/// COOL_ANY_TAG) would match, and describes it in `probed`. The message stays queued.
///
/// # Safety
/// `probed` must point to a cool_probed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_probe(
    source: usize,
    tag: u32,
    comm: cool_comm,
    probed: *mut cool_probed,
) -> cool_status {
    guarded(|| {
        let (source, tag) = any(source, tag);
        let found = find_comm(comm)?.probe(source, tag)?;
        // SAFETY: the caller guarantees this.
        unsafe { put("probed", probed, found.into()) }
    })
}

/// As cool_probe, but does not wait: stores 1 in `found` if there is such a message. Otherwise
/// stores 0 and leaves `probed` unchanged.
///
/// # Safety
/// `found` must point to an int, and `probed` to a cool_probed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_iprobe(
    source: usize,
    tag: u32,
    comm: cool_comm,
    found: *mut c_int,
    probed: *mut cool_probed,
) -> cool_status {
    guarded(|| {
        let (source, tag) = any(source, tag);
        let is_there = find_comm(comm)?.iprobe(source, tag)?;
        // SAFETY: the caller guarantees this.
        unsafe { put("found", found, c_int::from(is_there.is_some())) }?;
        if let Some(is_there) = is_there {
            // SAFETY: the caller guarantees this.
            unsafe { put("probed", probed, is_there.into()) }?;
        }
        Ok(())
    })
}

/// Receives at most `count` elements from `source` (or COOL_ANY_SOURCE) with `tag` (or
/// COOL_ANY_TAG), and describes the message in `message`, unless that is NULL.
///
/// If the message is longer, it is lost and COOL_TRUNCATED is returned; the group stays usable.
///
/// # Safety
/// `data` must have room for `count` elements, and no other code may access it during the call.
/// `message` must point to a cool_message or be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_recv(
    data: *mut c_void,
    count: usize,
    dtype: cool_type,
    source: usize,
    tag: u32,
    comm: cool_comm,
    message: *mut cool_message,
) -> cool_status {
    guarded(|| {
        // SAFETY: the caller guarantees this.
        let received = unsafe { received(data, count, dtype, source, tag, comm, Comm::message) }?;
        if !message.is_null() {
            // SAFETY: the caller guarantees this.
            unsafe { put("message", message, received.into()) }?;
        }
        Ok(())
    })
}

/// Starts cool_send and stores the request.
///
/// # Safety
/// `data` must have `count` elements, which stay valid until this returns. `request` must point to
/// a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_isend(
    data: *const c_void,
    count: usize,
    dtype: cool_type,
    dest: usize,
    tag: u32,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    // SAFETY: the caller guarantees this.
    unsafe { start_request(request, || sent(data, count, dtype, (dest, tag, false), comm, start)) }
}

/// Starts cool_ssend and stores the request.
///
/// # Safety
/// `data` must have `count` elements, which stay valid until this returns. `request` must point to
/// a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_issend(
    data: *const c_void,
    count: usize,
    dtype: cool_type,
    dest: usize,
    tag: u32,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    // SAFETY: the caller guarantees this.
    unsafe { start_request(request, || sent(data, count, dtype, (dest, tag, true), comm, start)) }
}

/// Starts cool_recv and stores the request.
///
/// # Safety
/// `data` must have room for `count` elements, and the caller must not access it until the request
/// was waited for. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_irecv(
    data: *mut c_void,
    count: usize,
    dtype: cool_type,
    source: usize,
    tag: u32,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    // SAFETY: the caller guarantees this.
    unsafe { start_request(request, || received(data, count, dtype, source, tag, comm, start)) }
}

/// As cool_wait, for a request of cool_irecv. Describes the received message in `message`.
///
/// # Safety
/// `message` must point to a cool_message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_wait_message(request: cool_request, message: *mut cool_message) -> cool_status {
    guarded(|| {
        let received = REQUESTS.take(request)?.received()?;
        // SAFETY: the caller guarantees this.
        unsafe { put("message", message, received.into()) }
    })
}

/// Cancels a request of cool_irecv and frees it. Stores 1 in `cancelled` if no message had matched
/// it. Otherwise stores 0, and describes the received message in `message`, unless that is NULL.
///
/// # Safety
/// `cancelled` must point to an int, and `message` to a cool_message or be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_cancel(
    request: cool_request,
    cancelled: *mut c_int,
    message: *mut cool_message,
) -> cool_status {
    guarded(|| {
        let received = REQUESTS.take(request)?.cancel()?;
        // SAFETY: the caller guarantees this.
        unsafe { put("cancelled", cancelled, c_int::from(received.is_none())) }?;
        match received {
            // SAFETY: the caller guarantees this.
            Some(received) if !message.is_null() => unsafe { put("message", message, received.into()) },
            _ => Ok(()),
        }
    })
}
