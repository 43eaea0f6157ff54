//! Messages from rank to rank.

use crate::arguments::{bytes, bytes_mut, bytes_of, elements_of, find_comm};
use crate::codes::{cool_comm, cool_request, cool_status, cool_type};
use crate::comm::put;
use crate::error::{CError, guarded};
use crate::requests::{REQUESTS, start_request};
use cool_rust::{Array, ArrayMut, Comm, Error, Message, Pending, Probed, Received};
use std::ffi::{c_int, c_void};

/// `COOL_ANY_SOURCE` of the header.
const ANY_SOURCE: usize = usize::MAX;
/// `COOL_ANY_TAG` of the header.
const ANY_TAG: u32 = u32::MAX;

/// What a receive got.
#[repr(C)]
pub struct cool_message {
    /// The rank that sent it.
    pub source: usize,
    /// With this tag.
    pub tag: u32,
    /// Elements.
    pub count: usize,
}

impl From<Received> for cool_message {
    fn from(Received { source, tag, count }: Received) -> cool_message {
        cool_message { source, tag, count }
    }
}

/// A message that a receive would take.
#[repr(C)]
pub struct cool_probed {
    /// The rank that sent it.
    pub source: usize,
    /// With this tag.
    pub tag: u32,
    /// Its length, whatever its elements are.
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

/// # Safety
/// `data` has `count` elements, which stay until this returns.
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
    // SAFETY: as promised.
    let data = unsafe { bytes("data", data, bytes_of(dtype.bytes(), count)?) }?;
    let data = Array::new(dtype, data).ok_or_else(|| CError::Argument("data is no array".to_owned()))?;
    Ok(match synchronous {
        true => then(&comm, Message::SynchronousSend { data, dest, tag })?,
        false => then(&comm, Message::Send { data, dest, tag })?,
    })
}

/// # Safety
/// `data` has room for `count` elements, which nobody else uses until the message has come.
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
    // SAFETY: as promised.
    let data = unsafe { bytes_mut("data", data, bytes_of(dtype.bytes(), count)?) }?;
    let data = ArrayMut::new(dtype, data).ok_or_else(|| CError::Argument("data is no array".to_owned()))?;
    let (source, tag) = any(source, tag);
    Ok(then(&comm, Message::Receive { data, source, tag })?)
}

/// What of both is asked for.
fn any(source: usize, tag: u32) -> (Option<usize>, Option<u32>) {
    ((source != ANY_SOURCE).then_some(source), (tag != ANY_TAG).then_some(tag))
}

/// Sends `count` elements to a rank, which receives them with the same type and tag. Messages from one rank to
/// another are received in the order in which they were sent, among those that a receive takes.
///
/// # Safety
/// `data` has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_send(
    data: *const c_void,
    count: usize,
    dtype: cool_type,
    dest: usize,
    tag: u32,
    comm: cool_comm,
) -> cool_status {
    // SAFETY: as promised.
    guarded(|| unsafe { sent(data, count, dtype, (dest, tag, false), comm, Comm::message) }.map(drop))
}

/// cool_send, done when a receive has taken the message.
///
/// # Safety
/// `data` has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ssend(
    data: *const c_void,
    count: usize,
    dtype: cool_type,
    dest: usize,
    tag: u32,
    comm: cool_comm,
) -> cool_status {
    // SAFETY: as promised.
    guarded(|| unsafe { sent(data, count, dtype, (dest, tag, true), comm, Comm::message) }.map(drop))
}

/// Waits until there is a message that a receive from `source`, or COOL_ANY_SOURCE, with `tag`, or COOL_ANY_TAG, would
/// take, which `probed` gets. It stays there.
///
/// # Safety
/// `probed` points to one.
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
        // SAFETY: as promised.
        unsafe { put("probed", probed, found.into()) }
    })
}

/// cool_probe without waiting: `found` gets 1, or 0 if there is none, which leaves `probed` as it is.
///
/// # Safety
/// `found` points to a number, `probed` to one.
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
        // SAFETY: as promised.
        unsafe { put("found", found, c_int::from(is_there.is_some())) }?;
        if let Some(is_there) = is_there {
            // SAFETY: as promised.
            unsafe { put("probed", probed, is_there.into()) }?;
        }
        Ok(())
    })
}

/// Receives at most `count` elements from a rank, or COOL_ANY_SOURCE, with a tag, or COOL_ANY_TAG. `message` gets what
/// came, unless it is null. One that is longer is gone (COOL_TRUNCATED), and the group goes on.
///
/// # Safety
/// `data` has room for `count` elements, and nobody else uses it meanwhile; `message` points to one, or is null.
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
        // SAFETY: as promised.
        let received = unsafe { received(data, count, dtype, source, tag, comm, Comm::message) }?;
        if !message.is_null() {
            // SAFETY: as promised.
            unsafe { put("message", message, received.into()) }?;
        }
        Ok(())
    })
}

/// Starts cool_send.
///
/// # Safety
/// `data` has `count` elements, which stay until this returns; `request` points to a request.
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
    // SAFETY: as promised.
    unsafe { start_request(request, || sent(data, count, dtype, (dest, tag, false), comm, start)) }
}

/// Starts cool_ssend.
///
/// # Safety
/// `data` has `count` elements, which stay until this returns; `request` points to a request.
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
    // SAFETY: as promised.
    unsafe { start_request(request, || sent(data, count, dtype, (dest, tag, true), comm, start)) }
}

/// Starts cool_recv.
///
/// # Safety
/// `data` has room for `count` elements, and nobody else uses it until cool_wait; `request` points to a request.
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
    // SAFETY: as promised.
    unsafe { start_request(request, || received(data, count, dtype, source, tag, comm, start)) }
}

/// cool_wait, for a request of cool_irecv; `message` gets what came.
///
/// # Safety
/// `message` points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_wait_message(request: cool_request, message: *mut cool_message) -> cool_status {
    guarded(|| {
        let received = REQUESTS.take(request)?.received()?;
        // SAFETY: as promised.
        unsafe { put("message", message, received.into()) }
    })
}

/// Takes a request of cool_irecv back, and frees it: `cancelled` gets 1 if nothing has come that it takes; else 0, and `message`
/// gets what came, unless it is null.
///
/// # Safety
/// `cancelled` points to a number, `message` to one, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_cancel(
    request: cool_request,
    cancelled: *mut c_int,
    message: *mut cool_message,
) -> cool_status {
    guarded(|| {
        let received = REQUESTS.take(request)?.cancel()?;
        // SAFETY: as promised.
        unsafe { put("cancelled", cancelled, c_int::from(received.is_none())) }?;
        match received {
            // SAFETY: as promised.
            Some(received) if !message.is_null() => unsafe { put("message", message, received.into()) },
            _ => Ok(()),
        }
    })
}
