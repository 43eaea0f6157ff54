//! AMX: tile registers of 16 rows of 64 bytes. Their product takes 16 cycles for 16 x 16 x 64
//! multiplications.
//!
//! The intrinsics are not stable in Rust, so the few instructions are written as assembly. A
//! process must request the tile registers from the system once (see `amx_permission`), because
//! they add 8 KiB to the state of a thread (Linux, `Documentation/arch/x86/xstate.rst`).

#![allow(
    unsafe_code,
    reason = "tile registers are reached by assembly only; each block says why it is sound"
)]

use super::{Kernel, NearestTwo, Scores, TileOrder};
use crate::nearest::NearestCentroid;
use crate::packing::WordFormat;
use std::arch::asm;

/// Rows of a tile register.
const ROWS: usize = 16;

/// 32-bit words of a row of a tile register.
const WORDS: usize = 16;

pub(super) static AMX: Kernel = Kernel {
    form: WordFormat::Quads,
    rows: 2 * ROWS,
    lanes: 2 * WORDS,
    steps: WORDS,
    order: TileOrder::ByRow,
    // SAFETY (all four): `super::kernel` returns the kernel only where `is_permitted` holds and
    // AVX-512 is available.
    product: |points, centroids, sums| unsafe { product(points, centroids, sums) },
    choose: |scores, first, best| unsafe { choose(scores, first, best) },
    choose_two: |scores, first, best| unsafe { choose_two(scores, first, best) },
    write: |scores, places| unsafe { write(scores, places) },
};

/// The shapes of the eight tile registers: palette 1, 16 rows of 64 bytes each.
#[repr(C, align(64))]
struct TileShapes([u8; 64]);

static SHAPES: TileShapes = {
    let mut shapes = [0; 64];
    shapes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        shapes[16 + 2 * tile] = 4 * WORDS as u8;
        shapes[48 + tile] = ROWS as u8;
        tile += 1;
    }
    TileShapes(shapes)
};

/// Multiplies 32 points with 32 centroids: two tile registers of each, four of sums.
///
/// # Safety
/// The CPU must support AMX-INT8, and the system must have permitted its use.
unsafe fn product(points: &[u32], centroids: &[u32], sums: &mut [i32]) {
    const LANES: usize = 2 * WORDS;
    let steps = centroids.len() / LANES;
    // The assembly reads 32 rows of `steps` words and `steps` rows of 32 words, and writes 32 rows
    // of 32 sums.
    assert!(steps > 0 && steps.is_multiple_of(WORDS));
    assert!(
        centroids.len() == steps * LANES
            && points.len() == steps * 2 * ROWS
            && sums.len() == 2 * ROWS * LANES
    );
    // SAFETY: all addresses are within the slices, because their lengths were just checked. The
    // registers are released, so no state outlasts the block, and no other code uses tile
    // registers.
    unsafe {
        asm!(
            "ldtilecfg [{shapes}]",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{x} + {row}]",
            "tileloadd tmm6, [{c} + {two}]",
            "tileloadd tmm7, [{c} + {two} + 64]",
            "tdpbusd tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{y} + {row}]",
            "tdpbusd tmm1, tmm4, tmm7",
            "tdpbusd tmm2, tmm5, tmm6",
            "tdpbusd tmm3, tmm5, tmm7",
            "add {x}, 64",
            "add {y}, 64",
            "add {c}, 2048",
            "dec {left}",
            "jnz 2b",
            "tilestored [{out} + {two}], tmm0",
            "tilestored [{out} + {two} + 64], tmm1",
            "tilestored [{out} + {two} + 2048], tmm2",
            "tilestored [{out} + {two} + 2112], tmm3",
            "tilerelease",
            shapes = in(reg) &raw const SHAPES,
            x = inout(reg) points.as_ptr() => _,
            y = inout(reg) points.as_ptr().add(steps * ROWS) => _,
            c = inout(reg) centroids.as_ptr() => _,
            out = in(reg) sums.as_mut_ptr(),
            row = in(reg) 4 * steps,
            two = in(reg) 4 * LANES,
            left = inout(reg) steps / WORDS => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn choose(scores: &Scores<'_>, first: u32, best: &mut [NearestCentroid]) {
    scores.choose::<{ 2 * WORDS }>(first, best);
}

#[target_feature(enable = "avx512f,avx512bw")]
fn choose_two(scores: &Scores<'_>, first: u32, best: &mut [NearestTwo]) {
    scores.choose_two::<{ 2 * WORDS }>(first, best);
}

#[target_feature(enable = "avx512f,avx512bw")]
fn write(scores: &Scores<'_>, places: &mut [i64]) {
    scores.write::<{ 2 * WORDS }>(places);
}
