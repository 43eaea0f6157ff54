//! Arithmetic in GF(2^8), the field of the coefficients. Elements are bytes. Addition is exclusive
//! or; multiplication is modulo x^8 + x^4 + x^3 + x + 1, the polynomial of AES and of the GFNI
//! instructions of CPUs.
//!
//! Lookup tables are fast enough here, because a block has only some tens to hundreds of
//! coefficients. The payload is multiplied by the driver, which uses the CPU's widest instructions
//! for the same field.

/// Powers of the generator x + 1, listed twice so that sums of logarithms need no reduction.
const EXP: [u8; 510] = powers();
const LOG: [u8; 256] = logarithms();
/// Products of any two bytes.
static PRODUCTS: [[u8; 256]; 256] = products();

const fn powers() -> [u8; 510] {
    let mut table = [0; 510];
    let (mut power, mut i) = (1u8, 0);
    while i < 510 {
        table[i] = power;
        let doubled = (power << 1) ^ if power & 0x80 != 0 { 0x1b } else { 0 };
        power ^= doubled;
        i += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
}

const fn products() -> [[u8; 256]; 256] {
    let mut table = [[0; 256]; 256];
    let mut a = 1;
    while a < 256 {
        let mut b = 1;
        while b < 256 {
            table[a][b] = EXP[LOG[a] as usize + LOG[b] as usize];
            b += 1;
        }
        a += 1;
    }
    table
}

/// Returns the product of two elements.
pub fn multiply(a: u8, b: u8) -> u8 {
    PRODUCTS[a as usize][b as usize]
}

/// Returns the multiplicative inverse of `a`, or none for 0.
pub fn inverse(a: u8) -> Option<u8> {
    (a != 0).then(|| EXP[255 - LOG[a as usize] as usize])
}

/// Adds `factor` times `row` to `sum`, element by element.
pub fn add_multiple(sum: &mut [u8], factor: u8, row: &[u8]) {
    match factor {
        0 => {}
        1 => sum.iter_mut().zip(row).for_each(|(sum, element)| *sum ^= element),
        _ => {
            let products = &PRODUCTS[factor as usize];
            sum.iter_mut().zip(row).for_each(|(sum, element)| *sum ^= products[*element as usize]);
        }
    }
}

/// Returns the inner product of two rows.
pub fn product(a: &[u8], b: &[u8]) -> u8 {
    a.iter().zip(b).fold(0, |sum, (a, b)| sum ^ multiply(*a, *b))
}

/// Multiplies each element of a row by `factor`, in place.
pub fn scale(row: &mut [u8], factor: u8) {
    let products = &PRODUCTS[factor as usize];
    row.iter_mut().for_each(|element| *element = products[*element as usize]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplies by the definition: bit by bit, then reduced modulo the polynomial.
    fn by_bits(a: u8, b: u8) -> u8 {
        let mut product = 0u16;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= u16::from(a) << bit;
            }
        }
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x11b << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn products_are_those_of_the_polynomial_of_aes() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), by_bits(a, b), "{a} times {b}");
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        assert_eq!(inverse(0), None);
        for a in 1..=255 {
            assert_eq!(multiply(a, inverse(a).unwrap()), 1, "{a}");
        }
    }

    #[test]
    fn multiples_of_rows_are_added_element_by_element() {
        for factor in [0, 1, 2, 0x53, 255] {
            let (mut sum, row) = ([7, 0, 200, 255], [1, 2, 0, 99]);
            add_multiple(&mut sum, factor, &row);
            let expected: Vec<u8> = [7, 0, 200, 255]
                .iter()
                .zip(row)
                .map(|(sum, element)| sum ^ by_bits(factor, element))
                .collect();
            assert_eq!(sum[..], expected);
        }
    }
}
