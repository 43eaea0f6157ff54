//! Distribution of files to many nodes, by the installed program `cool`.

use crate::codes::cool_status;
use crate::error::{CError, guarded};
use crate::pointers::put;
use cool_rust::files::{FilesError, run};
use std::ffi::{CStr, CString, OsString, c_char};
use std::os::unix::ffi::OsStrExt;

/// A longer argument list is most likely an array without terminating null pointer.
const ARGUMENTS_MAX: usize = 4096;

/// Executes a file command: copy, put, get, ls, stat, rm or verify (docs/guide/copy.md,
/// docs/guide/store.md).
///
/// `arguments` is its command line: the name of the command first, and a null pointer last. With
/// the argument --json, the JSON document that the command prints is stored in `outcome`;
/// otherwise, or if there is none, NULL is. The caller must free it by cool_free_text. If some
/// nodes failed, returns COOL_OTHER with a message that names them, and stores the document all the
/// same.
///
/// The program is `cool` in the PATH, or COOL_PROGRAM. The process need not be a rank.
///
/// # Safety
/// `arguments` must be an array of strings that ends with a null pointer, and `outcome` must point
/// to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_files(
    arguments: *const *const c_char,
    outcome: *mut *mut c_char,
) -> cool_status {
    guarded(|| {
        // SAFETY: the caller guarantees this.
        unsafe { put("outcome", outcome, std::ptr::null_mut()) }?;
        if arguments.is_null() {
            return Err(CError::Argument("arguments is null".to_owned()));
        }
        let mut all = Vec::new();
        loop {
            // SAFETY: the caller guarantees this, because the null pointer was not reached yet.
            let next = unsafe { arguments.add(all.len()).read() };
            if next.is_null() {
                break;
            }
            if all.len() == ARGUMENTS_MAX {
                return Err(CError::Argument(format!(
                    "more than {ARGUMENTS_MAX} arguments, and no null pointer"
                )));
            }
            // SAFETY: the caller guarantees this.
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
            // SAFETY: the caller guarantees this.
            unsafe { put("outcome", outcome, text.into_raw()) }?;
        }
        ended.map(drop).map_err(CError::Files)
    })
}

/// Frees a text that the library returned. Does nothing for NULL.
///
/// # Safety
/// `text` must be NULL or a text of cool_files that was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cool_free_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller guarantees this.
        drop(unsafe { CString::from_raw(text) });
    }
}
