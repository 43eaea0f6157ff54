//! Histograms of oriented gradients of square gray patches, 512 or 2048 numbers each (Dalal and
//! Triggs, CVPR 2005).
//!
//! A patch has 5 x 5 or 9 x 9 cells. Each pixel votes with the length of its gradient (centered
//! differences) for the two nearest of 8 orientations between 0 and 180 degrees. Every 2 x 2 cells
//! form a block, 4 x 4 or 8 x 8 blocks in all. The 32 numbers of a block are normalized together,
//! so that light and contrast matter little: 4 * 4 * 4 * 8 = 512, 8 * 8 * 4 * 8 = 2048. Number
//! `((block_row * blocks + block_column) * 4 + cell_row * 2 + cell_column) * 8 + orientation` of a
//! vector is the histogram of that cell as normalized in that block, times 255, rounded.
//!
//! Normalization is the authors' L2-Hys (divide by the length, clip at 0.2, restore the length)
//! with one difference: a block with gradients no larger than noise keeps its small length.
//! Otherwise its noise would be amplified, and an empty patch of sky would not be near other empty
//! sky.
//!
//! Only operations that IEEE 754 defines to the bit are used (no `atan2`), because all machines
//! must compute the same vectors.

use std::ops::Range;

/// Supported numbers of cells along a patch's side. A patch's size must be a multiple of the
/// number.
pub const CELLS: [usize; 2] = [5, 9];

/// Returns the length of the vector of a patch with the given number of cells along its side.
pub const fn dims(cells: usize) -> usize {
    (cells - 1) * (cells - 1) * 4 * BINS
}

const MOST_CELLS: usize = CELLS[1];
const BINS: usize = 8;
const CLIP: f32 = 0.2;

/// Mean gradient, in gray levels, below which a block counts as faint.
const NOISE: f32 = 8.0;

/// A gray picture.
#[derive(Clone, Copy)]
pub struct GrayPixels<'a> {
    /// Pixels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// All pixels, row by row.
    pub pixels: &'a [u8],
}

/// The gradient of one pixel, split between two neighboring orientations.
#[derive(Clone, Copy)]
struct GradientVote {
    bin: u8,
    here: f32,
    next: f32,
}

/// The gradients of some rows and columns of a picture, from which the vectors of all patches in
/// them are computed.
pub struct GradientBand {
    left: usize,
    width: usize,
    votes: Vec<GradientVote>,
}

impl GradientBand {
    /// Computes the gradients of the given rows and columns, which must be within the picture.
    pub fn new(gray: GrayPixels<'_>, columns: Range<usize>, rows: Range<usize>) -> Self {
        let line = |y: usize| &gray.pixels[y * gray.width..(y + 1) * gray.width];
        let mut votes = Vec::with_capacity(rows.len() * columns.len());
        for y in rows {
            let (above, row, below) =
                (line(y.saturating_sub(1)), line(y), line((y + 1).min(gray.height - 1)));
            for x in columns.clone() {
                let (left, right) = (row[x.saturating_sub(1)], row[(x + 1).min(gray.width - 1)]);
                votes.push(vote(
                    i16::from(right) - i16::from(left),
                    i16::from(below[x]) - i16::from(above[x]),
                ));
            }
        }
        Self { left: columns.start, width: columns.len(), votes }
    }

    /// Writes the vector of the patch of `size` pixels with its left edge at `x` in the picture.
    /// The height of the band must be `size`.
    pub fn describe(&self, x: usize, size: usize, cells: usize, vector: &mut [u8]) {
        let histograms = self.cells(x - self.left, size / cells, cells);
        let mut blocks = vector.chunks_exact_mut(4 * BINS);
        for row in 0..cells - 1 {
            for (column, block) in (0..cells - 1).zip(&mut blocks) {
                let parts = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(y, x)| (row + y) * cells + column + x);
                let mut values = [0f32; 4 * BINS];
                for (values, cell) in values.chunks_exact_mut(BINS).zip(parts) {
                    values.copy_from_slice(&histograms[cell]);
                }
                normalize(&mut values);
                block.iter_mut().zip(values).for_each(|(b, v)| *b = (v * 255.0).round() as u8);
            }
        }
    }

    /// Returns the mean votes of each cell of `side` x `side` pixels.
    fn cells(&self, x: usize, side: usize, cells: usize) -> [[f32; BINS]; MOST_CELLS * MOST_CELLS] {
        let mut histograms = [[0f32; BINS]; MOST_CELLS * MOST_CELLS];
        for (y, row) in self.votes.chunks_exact(self.width).take(cells * side).enumerate() {
            let patch = row[x..x + cells * side].chunks_exact(side);
            for (histogram, votes) in histograms[y / side * cells..].iter_mut().zip(patch) {
                for vote in votes {
                    let bin = usize::from(vote.bin);
                    histogram[bin % BINS] += vote.here;
                    histogram[(bin + 1) % BINS] += vote.next;
                }
            }
        }
        let area = (side * side) as f32;
        histograms.iter_mut().flatten().for_each(|h| *h /= area);
        histograms
    }
}

fn normalize(values: &mut [f32]) {
    let length = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>().sqrt();
    let before = length(values);
    let scale = 1.0 / (before * before + NOISE * NOISE).sqrt();
    // The final length of the block: near 1, or small if the block is faint.
    let kept = before * scale;
    values.iter_mut().for_each(|v| *v = (*v * scale).min(CLIP));
    let clipped = length(values);
    if clipped > 0.0 {
        values.iter_mut().for_each(|v| *v = (*v * (kept / clipped)).min(1.0));
    }
}

fn vote(gx: i16, gy: i16) -> GradientVote {
    let (x, y) = (f32::from(gx), f32::from(gy));
    let strength = (x * x + y * y).sqrt();
    // Bins are centered on 11.25, 33.75, ... degrees. Opposite directions are the same orientation.
    let place = orientation(gx, gy) * BINS as f32 + (BINS as f32 - 0.5);
    let bin = place as u8;
    let next = strength * (place - f32::from(bin));
    GradientVote { bin: bin % BINS as u8, here: strength - next, next }
}

/// Returns the orientation of a gradient as a share of a half turn, from 0 to 1.
fn orientation(gx: i16, gy: i16) -> f32 {
    // Flips the gradient into the upper half plane.
    let (x, y) = if gy < 0 || (gy == 0 && gx < 0) { (-gx, -gy) } else { (gx, gy) };
    let (x, y) = (f32::from(x), f32::from(y));
    if x == 0.0 && y == 0.0 {
        0.0
    } else if x.abs() >= y {
        let angle = arctan(y / x);
        if angle < 0.0 { angle + 1.0 } else { angle }
    } else {
        0.5 - arctan(x / y)
    }
}

/// Returns the arc tangent of a number between -1 and 1 as a share of a half turn, with an error of
/// 10^-5 (Abramowitz and Stegun, 4.4.49).
fn arctan(z: f32) -> f32 {
    let s = z * z;
    let series = 0.999_866 + s * (-0.330_299_5 + s * (0.180_141 + s * (-0.085_133 + s * 0.020_835_1)));
    z * series * std::f32::consts::FRAC_1_PI
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe_by(pixels: &[u8], size: usize, cells: usize) -> Vec<i16> {
        let band = GradientBand::new(
            GrayPixels { width: size, height: pixels.len() / size, pixels },
            0..size,
            0..size,
        );
        let mut vector = vec![0; dims(cells)];
        band.describe(0, size, cells, &mut vector);
        vector.into_iter().map(i16::from).collect()
    }

    fn describe(pixels: &[u8], size: usize) -> Vec<i16> {
        describe_by(pixels, size, 5)
    }

    fn picture(size: usize, at: impl Fn(f64, f64) -> f64) -> Vec<u8> {
        (0..size * size).map(|i| at((i % size) as f64, (i / size) as f64).clamp(0.0, 255.0) as u8).collect()
    }

    fn by_orientation(vector: &[i16]) -> [i32; BINS] {
        std::array::from_fn(|b| vector.iter().skip(b).step_by(BINS).map(|&v| i32::from(v)).sum())
    }

    #[test]
    fn there_are_512_or_2048_numbers_between_0_and_255() {
        let noise = picture(45, |x, y| (x * 7919.0 + y * 104_729.0) % 256.0);
        for (cells, expected) in [(5, 512), (9, 2048)] {
            let vector = describe_by(&noise, 45, cells);
            assert_eq!(vector.len(), expected);
            assert!(vector.iter().all(|v| (0..=255).contains(v)));
            assert!(vector.iter().any(|v| *v > 20));
        }
    }

    #[test]
    fn arc_tangents_agree_with_the_library() {
        for gx in -40..=40i16 {
            for gy in -40..=40i16 {
                let library = f64::from(gy).atan2(f64::from(gx)) / std::f64::consts::PI;
                let off = (f64::from(orientation(gx, gy)) - library.rem_euclid(1.0)).abs();
                assert!(gx == 0 && gy == 0 || off.min(1.0 - off) < 1e-5, "({gx}, {gy}) off by {off}");
            }
        }
    }

    #[test]
    fn a_grating_votes_for_its_own_orientation() {
        for bin in 0..BINS {
            let angle = (bin as f64 + 0.5) * std::f64::consts::PI / BINS as f64;
            let wave = |x: f64, y: f64| 128.0 + 100.0 * ((x * angle.cos() + y * angle.sin()) * 0.4).sin();
            let votes = by_orientation(&describe(&picture(40, wave), 40));
            let most = (0..BINS).max_by_key(|&b| votes[b]);
            assert_eq!(most, Some(bin), "{votes:?}");
        }
    }

    #[test]
    fn contrast_hardly_matters_and_faint_patches_are_short() {
        let edge = |strength: f64| picture(40, move |x, y| 100.0 + if x + y > 40.0 { strength } else { 0.0 });
        let length = |v: &[i16]| v.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let (strong, weaker, faint) =
            (describe(&edge(150.0), 40), describe(&edge(75.0), 40), describe(&edge(1.0), 40));
        let apart: Vec<i16> = strong.iter().zip(&weaker).map(|(a, b)| a - b).collect();
        assert!(length(&apart) < 0.2 * length(&strong), "{} of {}", length(&apart), length(&strong));
        assert!(length(&faint) < 0.2 * length(&strong));
        assert!(describe(&[7; 1600], 40).iter().all(|&v| v == 0), "an even patch is the zero vector");
    }

    #[test]
    fn a_band_describes_patches_as_if_alone_except_at_the_rims() {
        let wide: Vec<u8> = (0..80 * 40).map(|i: usize| (i * i / 7 % 251) as u8).collect();
        let gray = GrayPixels { width: 80, height: 40, pixels: &wide };
        let mut vector = vec![0; dims(5)];
        GradientBand::new(gray, 0..80, 0..40).describe(40, 40, 5, &mut vector);
        let mut narrow = vec![0; dims(5)];
        GradientBand::new(gray, 40..80, 0..40).describe(40, 40, 5, &mut narrow);
        assert_eq!(vector, narrow);
        let vector: Vec<i16> = vector.into_iter().map(i16::from).collect();
        let alone: Vec<u8> = wide.chunks(80).flat_map(|row| row[40..].to_vec()).collect();
        let alone = describe(&alone, 40);
        // Blocks of the right columns do not touch the left rim.
        let right = |v: &[i16]| v.chunks(32).skip(2).step_by(4).flatten().copied().collect::<Vec<_>>();
        assert_eq!(right(&vector), right(&alone));
    }
}
