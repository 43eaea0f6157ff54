//! Measures products per nanosecond of one thread's CPU time at each level, and the cost of a
//! single distance relative to one of a whole row: `speed [points [dims [centroids]]]`.

use cool_distance::{PairDistances, Panels, PointRows, RowSelection, SimdLevel};
use rustix::time::{ClockId, clock_gettime};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sizes: Vec<usize> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    let size = |i: usize, default| sizes.get(i).copied().unwrap_or(default);
    let (n, dims, k) = (size(0, 2000), size(1, 512), size(2, 1000));
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let bytes: Vec<u8> = (0..n * dims).map(|_| noise() as u8).collect();
    let wide: Vec<i16> = (0..n * dims).map(|_| noise() as i16).collect();
    let centroids: Vec<i16> = (0..k * dims).map(|_| (noise() % 32_641) as i16).collect();
    // Every upper word gets the same lower word.
    let fine = |upper: &[i16]| -> Vec<i16> {
        upper.chunks(dims).flat_map(|row| [row, &vec![77; dims]].concat()).collect()
    };
    let (fine_points, fine_centroids) = (fine(&wide), fine(&centroids));
    let all = [
        ("byte", PointRows::bytes(&bytes, dims), &centroids),
        ("wide", PointRows::wide(&wide, dims), &centroids),
        ("fine", PointRows::fine(&fine_points, dims), &fine_centroids),
    ];
    for (name, rows, centroids) in all {
        let levels: Vec<SimdLevel> = match std::env::var("COOL_SIMD") {
            Ok(name) => vec![name.parse()?],
            Err(_) => SimdLevel::available(),
        };
        for level in levels {
            // The slowest level gets fewer points, so that it does not dominate the run time.
            let count = if level == SimdLevel::Scalar { n.min(100) } else { n };
            let start = nanoseconds();
            let panels = Panels::new(level, rows.precision(), centroids, dims);
            let mut sum = 0;
            panels.nearest(rows, RowSelection::Run { first: 0, count }, |_, nearest| sum += nearest.squared);
            let blocked = (nanoseconds() - start) / (count * k) as f64;
            let single =
                single(&PairDistances::new(level, rows.precision(), centroids, dims), rows, count, k);
            println!(
                "{name} {level}: {:.1} products/ns; a single distance costs {:.1} of a row ({sum})",
                dims as f64 / blocked,
                single / blocked
            );
        }
    }
    Ok(())
}

/// Returns the nanoseconds per single distance, measured on a few centroids per point, as in an
/// assignment by bounds.
fn single(pairs: &PairDistances<'_>, rows: PointRows<'_>, count: usize, k: usize) -> f64 {
    const EACH: usize = 20;
    let (start, mut sum) = (nanoseconds(), 0);
    for i in 0..count {
        let norm = rows.norm(i);
        for j in 0..EACH {
            sum += pairs.squared(rows, i, norm, (i * 7919 + j * 104_729) % k);
        }
    }
    std::hint::black_box(sum);
    (nanoseconds() - start) / (count * EACH) as f64
}

/// Returns this thread's CPU time in nanoseconds, which other processes do not affect.
fn nanoseconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
