//! Reductions by functions of the program.

use crate::arguments::{CallArguments, ElementCount};
use crate::codes::{cool_comm, cool_operation, cool_request, cool_status, operation_of};
use crate::error::{CError, guarded};
use crate::requests::start_request;
use cool_rust::Operation;
use std::ffi::c_void;

/// A function of the program that combines two arrays: it must set `left[i] = left[i] op right[i]`
/// for `count` elements. `left` contains the elements of smaller ranks.
pub type cool_combine =
    Option<unsafe extern "C" fn(left: *mut c_void, right: *const c_void, count: usize, context: *mut c_void)>;

/// A function with its context and element size.
#[derive(Clone, Copy)]
struct Function {
    combine: unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void),
    /// Address of the context, which any thread may pass on.
    context: usize,
    element: usize,
}

impl Function {
    fn new(combine: cool_combine, context: *mut c_void, element: usize) -> Result<Function, CError> {
        let combine = combine.ok_or_else(|| CError::Argument("combine is null".to_owned()))?;
        Ok(Function { combine, context: context.expose_provenance(), element })
    }

    /// Calls the function.
    ///
    /// # Safety
    /// The function must access only its arrays.
    unsafe fn call(self, left: &mut [u8], right: &[u8]) {
        let count = left.len() / self.element;
        let (left, right) = (left.as_mut_ptr().cast(), right.as_ptr().cast());
        // SAFETY: the caller guarantees this. Both arrays have `count` elements and are aligned for
        // elements of this size.
        unsafe { (self.combine)(left, right, count, std::ptr::with_exposed_provenance_mut(self.context)) };
    }
}

fn operation(code: cool_operation) -> Result<Operation, CError> {
    operation_of(code).ok_or_else(|| CError::Argument("there is no such operation".to_owned()))
}

/// Executes a reduction by a function.
///
/// # Safety
/// As for [`CallArguments::run`]. The function must access only its arrays.
unsafe fn wait(call: CallArguments, function: Function) -> Result<(), CError> {
    // SAFETY: the caller guarantees this.
    let mut f = |left: &mut [u8], right: &[u8]| unsafe { function.call(left, right) };
    // SAFETY: the caller guarantees this.
    unsafe { call.fold(function.element, |comm, collective| comm.fold(collective, function.element, &mut f)) }
}

/// Starts a reduction by a function.
///
/// # Safety
/// As for [`CallArguments::start`]. The function must access only its arrays and must stay valid
/// until the call is complete.
unsafe fn start(call: CallArguments, function: Function) -> Result<cool_rust::Pending<'static>, CError> {
    // SAFETY: the caller guarantees this.
    let f = move |left: &mut [u8], right: &[u8]| unsafe { function.call(left, right) };
    // SAFETY: the caller guarantees this.
    unsafe {
        call.fold(function.element, |comm, collective| comm.start().fold(collective, function.element, f))
    }
}

/// Executes a reduction by a function of the program: COOL_REDUCE, COOL_ALLREDUCE,
/// COOL_REDUCE_SCATTER, COOL_SCAN or COOL_EXSCAN.
///
/// Elements have `element` bytes. The function need not be commutative. `count` and `root` have the
/// meaning of the operation. All ranks must pass the same function.
///
/// # Safety
/// The buffers must have the lengths that the operation requires, no other code may access them
/// during the call, and the function must access only its arrays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_fold(
    operation: cool_operation,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: usize,
    combine: cool_combine,
    context: *mut c_void,
    root: usize,
    comm: cool_comm,
) -> cool_status {
    guarded(|| {
        let function = Function::new(combine, context, element)?;
        let call =
            CallArguments::new(self::operation(operation)?, send, recv, ElementCount::Each(count), 0, comm)
                .root(root);
        // SAFETY: the caller guarantees this.
        unsafe { wait(call, function) }
    })
}

/// As cool_reduce_scatter_counts, with a function of the program; see cool_fold.
///
/// # Safety
/// As cool_fold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_fold_counts(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    element: usize,
    combine: cool_combine,
    context: *mut c_void,
    comm: cool_comm,
) -> cool_status {
    guarded(|| {
        let function = Function::new(combine, context, element)?;
        let call =
            CallArguments::new(Operation::ReduceScatter, send, recv, ElementCount::Parts(counts), 0, comm);
        // SAFETY: the caller guarantees this.
        unsafe { wait(call, function) }
    })
}

/// Starts cool_fold and stores the request.
///
/// The thread that waits for the call calls the function. All vectors are sent to each receiving
/// rank, so cool_fold is faster for long vectors, except for a reduce_scatter, which moves the same
/// data in both forms.
///
/// # Safety
/// As cool_fold, for this longer time: the caller must keep the send buffer unchanged until this
/// returns, and must not access the receive buffer, the function and its context until cool_wait
/// returns. `request` must point to a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ifold(
    operation: cool_operation,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    element: usize,
    combine: cool_combine,
    context: *mut c_void,
    root: usize,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let started = || {
        let function = Function::new(combine, context, element)?;
        let call =
            CallArguments::new(self::operation(operation)?, send, recv, ElementCount::Each(count), 0, comm)
                .root(root);
        // SAFETY: the caller guarantees this.
        unsafe { start(call, function) }
    };
    // SAFETY: the caller guarantees this.
    unsafe { start_request(request, started) }
}

/// Starts cool_fold_counts and stores the request; see cool_ifold.
///
/// # Safety
/// As cool_ifold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_ifold_counts(
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    element: usize,
    combine: cool_combine,
    context: *mut c_void,
    comm: cool_comm,
    request: *mut cool_request,
) -> cool_status {
    let started = || {
        let function = Function::new(combine, context, element)?;
        let call =
            CallArguments::new(Operation::ReduceScatter, send, recv, ElementCount::Parts(counts), 0, comm);
        // SAFETY: the caller guarantees this.
        unsafe { start(call, function) }
    };
    // SAFETY: the caller guarantees this.
    unsafe { start_request(request, started) }
}
