//! A program with defects that the sanitizers must report. `tools/sanitize` runs it first, because
//! a sanitizer that is not linked, or that omits too many reports, would find nothing in the tests.
//!
//! `sanitize-check freed` reads freed memory; `sanitize-check race` reads a flag and data that
//! another thread writes without synchronization; `sanitize-check clean` does neither.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::Arc;

/// Data of several threads without synchronization.
struct RacedCells(UnsafeCell<[u64; 2]>);

// SAFETY: it is not sound. That is the defect.
unsafe impl Sync for RacedCells {}

fn read_freed_memory() {
    let data = Box::into_raw(Box::new([7_u64; 8]));
    // SAFETY: the memory was allocated by a box. The read afterwards is the defect.
    unsafe { drop(Box::from_raw(black_box(data))) };
    // SAFETY: see above.
    println!("{}", unsafe { black_box(data).cast::<u64>().read_volatile() });
}

fn race() {
    let shared = Arc::new(RacedCells(UnsafeCell::new([0; 2])));
    let writer = Arc::clone(&shared);
    let writer = std::thread::spawn(move || {
        for number in 1..1_000 {
            // SAFETY: it is not sound. That is the defect.
            unsafe { writer.0.get().write_volatile([number, 1]) };
        }
    });
    let mut sum = 0;
    for _ in 0..1_000 {
        // SAFETY: see above.
        let [number, is_written] = unsafe { shared.0.get().read_volatile() };
        sum += number * is_written;
    }
    writer.join().expect("the thread does not panic");
    println!("{sum}");
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("freed") => read_freed_memory(),
        Some("race") => race(),
        Some("clean") => println!("{}", black_box(1)),
        _ => std::process::exit(2),
    }
}
