//! The loops that the processor's vector instructions run, one for each level: all of the crate's `unsafe`.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::blocked::Nearest;
use crate::level::Level;
use crate::pack::Form;

/// How a level multiplies a tile of points with a panel of centroids.
pub(crate) struct Kernel {
    /// What its words hold.
    pub(crate) form: Form,
    /// Points of a tile.
    pub(crate) rows: usize,
    /// Centroids of a panel.
    pub(crate) lanes: usize,
    /// A row's words are filled up to a multiple of so many.
    pub(crate) steps: usize,
    /// How a tile's words are ordered; a panel's are always by step, then lane.
    pub(crate) order: Order,
    /// The dot products of all points of a tile with all centroids of a panel, row by row.
    pub(crate) product: fn(points: &[u32], centroids: &[u32], sums: &mut [i32]),
    /// Subtracts sums, shifted to the left, from scores.
    pub(crate) subtract: fn(scores: &mut [i64], sums: &[i32], shift: u32),
    /// Takes note where a row's score is below its best; the first lane is the centroid of the given number. There may be
    /// fewer bests than rows.
    pub(crate) choose: fn(scores: &[i64], first: u32, best: &mut [Nearest]),
}

/// How a tile's words are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// A row after the other.
    ByRow,
    /// The first word of every row, then the second.
    ByStep,
}

/// How a level multiplies; none for the scalar one, which does without.
///
/// # Panics
/// If this processor does not have the level. That makes the kernels' functions safe to call: there is no other way
/// to get at them.
pub(crate) fn kernel(level: Level) -> Option<&'static Kernel> {
    assert!(level.is_available(), "this processor does not have {level}");
    #[cfg(target_arch = "x86_64")]
    match level {
        Level::Scalar => None,
        Level::Sse2 => Some(&x86::SSE2),
        Level::Avx2 => Some(&x86::AVX2),
        Level::Avx512 => Some(&x86::AVX512),
        Level::Vnni => Some(&x86::VNNI),
        Level::Amx => Some(&amx::AMX),
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// What [`Kernel::subtract`] does, plainly; each level compiles it with its own instructions.
#[inline(always)]
fn subtract(scores: &mut [i64], sums: &[i32], shift: u32) {
    for (score, &sum) in scores.iter_mut().zip(sums) {
        *score -= i64::from(sum) << shift;
    }
}

/// What [`Kernel::choose`] does, plainly, for a panel of `LANES`.
#[inline(always)]
fn choose<const LANES: usize>(scores: &[i64], first: u32, best: &mut [Nearest]) {
    for (scores, best) in scores.as_chunks::<LANES>().0.iter().zip(best) {
        // Most panels hold nothing nearer, which needs no search for the place.
        if !scores.iter().fold(false, |below, &score| below | (score < best.squared)) {
            continue;
        }
        for (index, &squared) in (first..).zip(scores) {
            if squared < best.squared {
                *best = Nearest { index, squared };
            }
        }
    }
}
