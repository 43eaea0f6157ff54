//! Sums of multiples of blocks over GF(2^8), in the field of [`cool_swarm::field`], by the widest
//! instructions of the CPU: GFNI multiplies 32 bytes at once in the field of AES, and AVX2 looks up
//! the products of half bytes.

#![cfg_attr(
    target_arch = "x86_64",
    allow(unsafe_code, reason = "vector instructions are called only if the CPU has them")
)]

use cool_swarm::field;

/// Adds `factor` times `row` to `sum`, byte by byte. Both must have the same length.
pub(crate) fn add_multiple(sum: &mut [u8], factor: u8, row: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has both.
            return unsafe { x86::by_gfni(sum, factor, row) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has it.
            return unsafe { x86::by_lookup(sum, factor, row) };
        }
    }
    field::add_multiple(sum, factor, row);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::field;
    use std::arch::x86_64::*;

    const WIDTH: usize = size_of::<__m256i>();

    #[target_feature(enable = "avx2,gfni")]
    pub(super) fn by_gfni(sum: &mut [u8], factor: u8, row: &[u8]) {
        let factors = _mm256_set1_epi8(factor.cast_signed());
        let (sums, rest) = sum.as_chunks_mut::<WIDTH>();
        let (rows, last) = row.as_chunks::<WIDTH>();
        for (sum, row) in sums.iter_mut().zip(rows) {
            let product = _mm256_gf2p8mul_epi8(bytemuck::cast(*row), factors);
            *sum = bytemuck::cast(_mm256_xor_si256(bytemuck::cast(*sum), product));
        }
        field::add_multiple(rest, factor, last);
    }

    /// Computes the product of a byte as the sum of the products of its low and high halves.
    #[target_feature(enable = "avx2")]
    pub(super) fn by_lookup(sum: &mut [u8], factor: u8, row: &[u8]) {
        // A lookup selects within 16 bytes, so the table is stored twice.
        let table = |shift: u8| -> __m256i {
            let products: [u8; WIDTH] =
                std::array::from_fn(|i| field::multiply(factor, ((i % 16) as u8) << shift));
            bytemuck::cast(products)
        };
        let (low, high, halves) = (table(0), table(4), _mm256_set1_epi8(0x0f));
        let (sums, rest) = sum.as_chunks_mut::<WIDTH>();
        let (rows, last) = row.as_chunks::<WIDTH>();
        for (sum, row) in sums.iter_mut().zip(rows) {
            let row: __m256i = bytemuck::cast(*row);
            let of_low = _mm256_shuffle_epi8(low, _mm256_and_si256(row, halves));
            let of_high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16::<4>(row), halves));
            let product = _mm256_xor_si256(of_low, of_high);
            *sum = bytemuck::cast(_mm256_xor_si256(bytemuck::cast(*sum), product));
        }
        field::add_multiple(rest, factor, last);
    }

    #[cfg(test)]
    pub(super) fn all() -> Vec<(&'static str, super::tests::Kernel)> {
        let mut all: Vec<(&'static str, super::tests::Kernel)> = Vec::new();
        if is_x86_feature_detected!("avx2") {
            // SAFETY (both): the CPU has the required instructions.
            all.push(("lookup", |sum, factor, row| unsafe { by_lookup(sum, factor, row) }));
            if is_x86_feature_detected!("gfni") {
                all.push(("gfni", |sum, factor, row| unsafe { by_gfni(sum, factor, row) }));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function that adds a multiple of a row.
    pub(super) type Kernel = fn(&mut [u8], u8, &[u8]);

    /// Tests all instruction sets of this CPU, for every factor, with lengths around multiples of
    /// the vector width.
    #[test]
    fn sums_by_vector_instructions_are_those_of_the_field() {
        let row: Vec<u8> = (0..=255).chain(0..99).collect();
        let before: Vec<u8> = row.iter().map(|byte| byte.wrapping_mul(31) ^ 0x5a).collect();
        #[cfg(target_arch = "x86_64")]
        let kernels = x86::all();
        #[cfg(not(target_arch = "x86_64"))]
        let kernels: Vec<(&str, Kernel)> = vec![("any", add_multiple)];
        for (name, kernel) in kernels {
            for factor in 0..=255 {
                for bytes in [0, 1, 31, 32, 33, 64, row.len()] {
                    let (mut expected, mut sum) = (before[..bytes].to_vec(), before[..bytes].to_vec());
                    field::add_multiple(&mut expected, factor, &row[..bytes]);
                    kernel(&mut sum, factor, &row[..bytes]);
                    assert_eq!(sum, expected, "{name}: {factor} times {bytes} bytes");
                }
            }
        }
    }
}
