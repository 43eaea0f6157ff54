//! Reductions by functions of the program.

use crate::arguments::{CallArguments, ElementCount};
use crate::codes::{cool_comm, cool_operation, cool_request, cool_status, operation_of};
use crate::error::{CError, guarded};
use crate::requests::start_request;
use cool_rust::Operation;
use std::ffi::c_void;

/// A function of the program that combines: `left[i] = left[i] op right[i]` for `count` elements, where `left` is of
/// smaller ranks.
pub type cool_combine =
    Option<unsafe extern "C" fn(left: *mut c_void, right: *const c_void, count: usize, context: *mut c_void)>;

/// What is called, and with what.
#[derive(Clone, Copy)]
struct Function {
    combine: unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void),
    /// An address, which any thread may pass on.
    context: usize,
    element: usize,
}

impl Function {
    fn new(combine: cool_combine, context: *mut c_void, element: usize) -> Result<Function, CError> {
        let combine = combine.ok_or_else(|| CError::Argument("combine is null".to_owned()))?;
        Ok(Function { combine, context: context.expose_provenance(), element })
    }

    /// # Safety
    /// The function keeps to its arrays.
    unsafe fn call(self, left: &mut [u8], right: &[u8]) {
        let count = left.len() / self.element;
        let (left, right) = (left.as_mut_ptr().cast(), right.as_ptr().cast());
        // SAFETY: as promised; both have `count` elements, and start_request where any element may.
        unsafe { (self.combine)(left, right, count, std::ptr::with_exposed_provenance_mut(self.context)) };
    }
}

fn operation(code: cool_operation) -> Result<Operation, CError> {
    operation_of(code).ok_or_else(|| CError::Argument("there is no such operation".to_owned()))
}

/// # Safety
/// As for [`CallArguments::run`]; the function keeps to its arrays.
unsafe fn wait(call: CallArguments, function: Function) -> Result<(), CError> {
    // SAFETY: as promised.
    let mut f = |left: &mut [u8], right: &[u8]| unsafe { function.call(left, right) };
    // SAFETY: as promised.
    unsafe { call.fold(function.element, |comm, collective| comm.fold(collective, function.element, &mut f)) }
}

/// # Safety
/// As for [`CallArguments::start`]; the function keeps to its arrays, and is there until the call is done.
unsafe fn start(call: CallArguments, function: Function) -> Result<cool_rust::Pending<'static>, CError> {
    // SAFETY: as promised.
    let f = move |left: &mut [u8], right: &[u8]| unsafe { function.call(left, right) };
    // SAFETY: as promised.
    unsafe {
        call.fold(function.element, |comm, collective| comm.start().fold(collective, function.element, f))
    }
}

/// A reduction (COOL_REDUCE, COOL_ALLREDUCE, COOL_REDUCE_SCATTER, COOL_SCAN, COOL_EXSCAN) by a function of the program,
/// which need not be commutative, on elements of `element` bytes. `count` and `root` are as for the operation. All ranks
/// pass the same function.
///
/// # Safety
/// The buffers are as long as the operation says, and nobody else uses them meanwhile; the function keeps to its arrays.
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
        // SAFETY: as promised.
        unsafe { wait(call, function) }
    })
}

/// cool_reduce_scatter_counts by a function of the program; see cool_fold.
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
        // SAFETY: as promised.
        unsafe { wait(call, function) }
    })
}

/// Starts cool_fold. The function is called by whoever waits for the call, in that thread. All vectors go to each rank that
/// receives: for long ones cool_fold costs less, but of a reduce_scatter, which moves as much.
///
/// # Safety
/// The buffers are as long as the operation says; what is sent stays until this returns, what is received, the function
/// and what its context points to until cool_wait. `request` points to a request.
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
        // SAFETY: as promised.
        unsafe { start(call, function) }
    };
    // SAFETY: as promised.
    unsafe { start_request(request, started) }
}

/// Starts cool_fold_counts; see cool_ifold.
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
        // SAFETY: as promised.
        unsafe { start(call, function) }
    };
    // SAFETY: as promised.
    unsafe { start_request(request, started) }
}
