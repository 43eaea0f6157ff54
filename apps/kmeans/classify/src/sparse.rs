//! Rows of numbers of which most are zero.

/// A vector, as the numbers that are not zero. Its length is the matter of those who use it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SparseRow {
    /// Place and number, by rising place.
    pub entries: Vec<(u32, f32)>,
}

impl SparseRow {
    /// The dot product with a dense vector, in the order of the places.
    pub fn dot(&self, dense: &[f64]) -> f64 {
        self.entries.iter().map(|&(at, x)| f64::from(x) * dense[at as usize]).sum()
    }

    /// Adds a multiple of this to a dense vector.
    pub fn add_to(&self, dense: &mut [f64], factor: f64) {
        for &(at, x) in &self.entries {
            dense[at as usize] += factor * f64::from(x);
        }
    }

    /// The square of its length.
    pub fn squared(&self) -> f64 {
        self.entries.iter().map(|&(_, x)| f64::from(x) * f64::from(x)).sum()
    }
}
