//! Files to many nodes, by the installed program `cool`.

use crate::codes::cool_status;
use crate::comm::put;
use crate::error::{CError, guarded};
use cool_rust::files::{FilesError, run};
use std::ffi::{CStr, CString, OsString, c_char};
use std::os::unix::ffi::OsStrExt;

/// Arguments of a longer command line are an array without its end.
const ARGUMENTS_MAX: usize = 4096;

/// Runs a command on files and waits for its end: copy, put, get, ls, stat, rm or verify, as `cool` has them (docs/guide/copy.md, docs/guide/store.md). `arguments` are
/// those of its command line, the command first, and a null pointer last; with --json, `outcome` gets the document that
/// it prints, also if not all nodes have what they should (COOL_OTHER, and the message names them), or null if there is none. Free it by cool_free_text.
/// The program is `cool` in the PATH, or COOL_PROGRAM. The process need not be a rank.
///
/// # Safety
/// `arguments` is an array of strings that ends with a null pointer; `outcome` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_files(
    arguments: *const *const c_char,
    outcome: *mut *mut c_char,
) -> cool_status {
    guarded(|| {
        // SAFETY: as promised.
        unsafe { put("outcome", outcome, std::ptr::null_mut()) }?;
        if arguments.is_null() {
            return Err(CError::Argument("arguments is null".to_owned()));
        }
        let mut all = Vec::new();
        loop {
            // SAFETY: as promised; the null pointer has not come yet.
            let next = unsafe { arguments.add(all.len()).read() };
            if next.is_null() {
                break;
            }
            if all.len() == ARGUMENTS_MAX {
                return Err(CError::Argument(format!(
                    "more than {ARGUMENTS_MAX} arguments, and no null pointer"
                )));
            }
            // SAFETY: as promised.
            let text = unsafe { CStr::from_ptr(next) };
            all.push(OsString::from(std::ffi::OsStr::from_bytes(text.to_bytes())));
        }
        let ended = run(all);
        let json = match &ended {
            Ok(json) | Err(FilesError::Failed { json, .. }) => json.replace('\0', " "),
            Err(_) => String::new(),
        };
        let text = if json.is_empty() { None } else { CString::new(json).ok() };
        if let Some(text) = text {
            // SAFETY: as promised.
            unsafe { put("outcome", outcome, text.into_raw()) }?;
        }
        ended.map(drop).map_err(CError::Files)
    })
}

/// Frees a text that was given to the program. Null is nothing.
///
/// # Safety
/// `text` is null, or came from cool_files and was not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_free_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: as promised.
        drop(unsafe { CString::from_raw(text) });
    }
}
