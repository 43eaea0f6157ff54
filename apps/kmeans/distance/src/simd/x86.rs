//! SSE2, AVX2, AVX-512BW and AVX-512 VNNI: each multiplies the rows of a tile with two vectors of
//! centroids and keeps all sums in registers.

#![allow(
    unsafe_code,
    reason = "vector instructions and loads of whole vectors; each block says why it is sound"
)]

use super::{DotProducts, Kernel, NearestTwo, Scores, TileOrder, dot_bytes, dot_fine, dot_wide};
use crate::nearest::NearestCentroid;
use crate::packing::WordFormat;
use std::arch::x86_64::*;

/// Defines a level's kernel: `$rows` points times two vectors of `$lanes` 32-bit lanes.
macro_rules! kernel {
    ($name:ident, $module:ident, $features:literal, $form:expr, $vector:ty, $lanes:literal, $rows:literal,
     $zero:expr, $load:expr, $store:expr, $broadcast:expr, $add_product:expr) => {
        pub(super) static $name: Kernel = Kernel {
            form: $form,
            rows: $rows,
            lanes: 2 * $lanes,
            steps: 1,
            order: TileOrder::ByStep,
            // SAFETY (all four): `super::kernel` returns the kernel only where the CPU has the
            // features.
            product: |points, centroids, sums| unsafe { $module::product(points, centroids, sums) },
            choose: |scores, first, best| unsafe { $module::choose(scores, first, best) },
            choose_two: |scores, first, best| unsafe { $module::choose_two(scores, first, best) },
            write: |scores, places| unsafe { $module::write(scores, places) },
        };

        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            pub(super) fn product(points: &[u32], centroids: &[u32], sums: &mut [i32]) {
                let mut all = [[$zero; 2]; $rows];
                let steps =
                    points.as_chunks::<$rows>().0.iter().zip(centroids.as_chunks::<{ 2 * $lanes }>().0);
                for (points, centroids) in steps {
                    let [low, high] = [load(centroids, 0), load(centroids, 1)];
                    for (sums, &point) in all.iter_mut().zip(points) {
                        let point = $broadcast(point.cast_signed());
                        sums[0] = $add_product(sums[0], point, low);
                        sums[1] = $add_product(sums[1], point, high);
                    }
                }
                for (to, from) in sums.as_chunks_mut::<$lanes>().0.iter_mut().zip(all.as_flattened()) {
                    // SAFETY: the array is as long as the vector; the store needs no alignment.
                    unsafe { $store(to.as_mut_ptr().cast(), *from) }
                }
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn load(words: &[u32; 2 * $lanes], half: usize) -> $vector {
                let words: &[u32] = &words[half * $lanes..][..$lanes];
                // SAFETY: the slice is as long as the vector; the load needs no alignment.
                unsafe { $load(words.as_ptr().cast()) }
            }

            #[target_feature(enable = $features)]
            pub(super) fn choose(scores: &Scores<'_>, first: u32, best: &mut [NearestCentroid]) {
                scores.choose::<{ 2 * $lanes }>(first, best);
            }

            #[target_feature(enable = $features)]
            pub(super) fn choose_two(scores: &Scores<'_>, first: u32, best: &mut [NearestTwo]) {
                scores.choose_two::<{ 2 * $lanes }>(first, best);
            }

            #[target_feature(enable = $features)]
            pub(super) fn write(scores: &Scores<'_>, places: &mut [i64]) {
                scores.write::<{ 2 * $lanes }>(places);
            }
        }
    };
}

kernel!(
    SSE2,
    sse2,
    "sse2",
    WordFormat::Pairs,
    __m128i,
    4,
    4,
    _mm_setzero_si128(),
    _mm_loadu_si128,
    _mm_storeu_si128,
    _mm_set1_epi32,
    |sum, x, c| _mm_add_epi32(sum, _mm_madd_epi16(x, c))
);
kernel!(
    AVX2,
    avx2,
    "avx2",
    WordFormat::Pairs,
    __m256i,
    8,
    6,
    _mm256_setzero_si256(),
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_set1_epi32,
    |sum, x, c| _mm256_add_epi32(sum, _mm256_madd_epi16(x, c))
);
kernel!(
    AVX512,
    avx512,
    "avx512f,avx512bw",
    WordFormat::Pairs,
    __m512i,
    16,
    12,
    _mm512_setzero_si512(),
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_set1_epi32,
    |sum, x, c| _mm512_add_epi32(sum, _mm512_madd_epi16(x, c))
);
kernel!(
    VNNI,
    vnni,
    "avx512f,avx512bw,avx512vnni",
    WordFormat::Quads,
    __m512i,
    16,
    12,
    _mm512_setzero_si512(),
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_set1_epi32,
    _mm512_dpbusd_epi32
);

/// Defines a level's dot products of single points.
macro_rules! dots {
    ($name:ident, $module:ident, $features:literal) => {
        pub(super) static $name: DotProducts = DotProducts {
            // SAFETY (all three): `super::dots` returns them only where the CPU has the features.
            bytes: |point, centroid| unsafe { $module::bytes(point, centroid) },
            wide: |point, centroid| unsafe { $module::wide(point, centroid) },
            fine: |point, centroid| unsafe { $module::fine(point, centroid) },
        };

        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            pub(super) fn bytes(point: &[u8], centroid: &[i16]) -> i64 {
                dot_bytes(point, centroid)
            }

            #[target_feature(enable = $features)]
            pub(super) fn wide(point: &[i16], centroid: &[i16]) -> i64 {
                dot_wide(point, centroid)
            }

            #[target_feature(enable = $features)]
            pub(super) fn fine(point: &[i16], centroid: &[i16]) -> i64 {
                dot_fine(point, centroid)
            }
        }
    };
}

dots!(AVX2_DOTS, avx2_dots, "avx2");
dots!(AVX512_DOTS, avx512_dots, "avx512f,avx512bw");
