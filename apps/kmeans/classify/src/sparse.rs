//! Vectors of mostly zeros.

/// A vector, stored as its nonzero elements. Its length is not stored; callers know it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SparseRow {
    /// Index and value of each nonzero element, in ascending order of the index.
    pub entries: Vec<(u32, f32)>,
}

impl SparseRow {
    /// Returns the dot product with a dense vector, summed in the order of the entries.
    pub fn dot(&self, dense: &[f64]) -> f64 {
        self.entries.iter().map(|&(at, x)| f64::from(x) * dense[at as usize]).sum()
    }

    /// Adds a multiple of this vector to a dense vector.
    pub fn add_to(&self, dense: &mut [f64], factor: f64) {
        for &(at, x) in &self.entries {
            dense[at as usize] += factor * f64::from(x);
        }
    }

    /// Returns the squared length of the vector.
    pub fn squared(&self) -> f64 {
        self.entries.iter().map(|&(_, x)| f64::from(x) * f64::from(x)).sum()
    }
}
