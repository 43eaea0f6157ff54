//! Whether this process may use AMX: the CPU must have it, and Linux must permit it.

#![allow(
    unsafe_code,
    reason = "the permission is requested by a system call; the block says why it is sound"
)]

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Returns whether the CPU has tile registers with byte products and the system lets this process
/// use them. The result is cached, because the request to the system must be made only once.
pub(crate) fn is_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| has_tiles() && request_permission())
}

fn has_tiles() -> bool {
    // Leaf 7: bits 24 (AMX-TILE) and 25 (AMX-INT8) of EDX.
    const BOTH: u32 = 0b11 << 24;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & BOTH == BOTH
}

/// Requests the tile registers from Linux for all threads of this process. Returns whether the
/// system grants them.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and changes nothing in this process except its
    // permissions.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}
