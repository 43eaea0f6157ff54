//! Maps from histograms to feature spaces in which a linear machine compares them as a histogram
//! kernel would.

use crate::SparseRow;
use std::f64::consts::PI;

/// How the numbers of a histogram become features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum FeatureMap {
    /// Unchanged.
    None,
    /// Square roots, because their linear kernel is the Bhattacharyya coefficient of the histograms
    /// (Hellinger's kernel).
    Hellinger,
    /// Three features per number; their linear kernel approximates the additive chi-squared kernel
    /// `sum 2xy / (x + y)` (Vedaldi and Zisserman, "Efficient Additive Kernels via Explicit Feature
    /// Maps", PAMI 2012, order 1).
    ChiSquared,
}

/// Interval at which the spectrum of the kernel is sampled. At 0.65 the product of two numbers'
/// features differs from `2xy / (x + y)` by at most 0.034 of the larger number, which is the
/// minimum over all intervals at order 1.
const INTERVAL: f64 = 0.65;

impl FeatureMap {
    /// All maps, with their names in options.
    pub const ALL: [(FeatureMap, &str); 3] = [
        (FeatureMap::None, "linear"),
        (FeatureMap::Hellinger, "hellinger"),
        (FeatureMap::ChiSquared, "chi2"),
    ];

    /// Returns the name of the map, which is that of the kernel.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(map, _)| *map == self).map_or("", |(_, name)| name)
    }

    /// Returns the number of features of a histogram of `numbers` numbers.
    pub fn len(self, numbers: usize) -> usize {
        numbers * self.width()
    }

    /// Returns the features of a histogram. Its numbers must not be negative.
    pub fn apply(self, histogram: &SparseRow) -> SparseRow {
        let width = self.width() as u32;
        let entries = histogram.entries.iter().filter(|(_, x)| *x > 0.0);
        let mapped = |&(at, x): &(u32, f32)| {
            let features = self.features(f64::from(x)).into_iter().take(width as usize);
            (at * width..).zip(features.map(|feature| feature as f32))
        };
        SparseRow { entries: entries.flat_map(mapped).collect() }
    }

    fn width(self) -> usize {
        match self {
            FeatureMap::None | FeatureMap::Hellinger => 1,
            FeatureMap::ChiSquared => 3,
        }
    }

    fn features(self, x: f64) -> [f64; 3] {
        match self {
            FeatureMap::None => [x, 0.0, 0.0],
            FeatureMap::Hellinger => [x.sqrt(), 0.0, 0.0],
            FeatureMap::ChiSquared => {
                // The spectrum of the chi-squared kernel is sech(pi lambda).
                let density = |frequency: f64| INTERVAL / libm::cosh(PI * frequency);
                let (even, turned) = ((x * density(0.0)).sqrt(), (2.0 * x * density(INTERVAL)).sqrt());
                let phase = INTERVAL * libm::log(x);
                [even, turned * libm::cos(phase), turned * libm::sin(phase)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(values: &[f32]) -> SparseRow {
        SparseRow { entries: (0..).zip(values.iter().copied()).collect() }
    }

    fn product(map: FeatureMap, x: &[f32], y: &[f32]) -> f64 {
        let mut dense = vec![0.0; map.len(x.len())];
        map.apply(&row(x)).add_to(&mut dense, 1.0);
        map.apply(&row(y)).dot(&dense)
    }

    fn histogram() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(0.001f32..1.0, 4).prop_map(|values| {
            let sum: f32 = values.iter().sum();
            values.iter().map(|v| v / sum).collect()
        })
    }

    proptest! {
        #[test]
        fn hellinger_products_are_bhattacharyya_coefficients(x in histogram(), y in histogram()) {
            let exact: f64 = x.iter().zip(&y).map(|(a, b)| f64::from(a * b).sqrt()).sum();
            prop_assert!((product(FeatureMap::Hellinger, &x, &y) - exact).abs() < 1e-5);
        }

        #[test]
        fn chi_squared_features_approximate_the_kernel(x in histogram(), y in histogram()) {
            let exact: f64 = x.iter().zip(&y).map(|(a, b)| f64::from(2.0 * a * b / (a + b))).sum();
            let near = product(FeatureMap::ChiSquared, &x, &y);
            let larger: f64 = x.iter().zip(&y).map(|(a, b)| f64::from(a.max(*b))).sum();
            prop_assert!((near - exact).abs() <= 0.035 * larger, "{} for {}", near, exact);
        }
    }

    #[test]
    fn words_that_do_not_occur_have_no_features() {
        for (map, _) in FeatureMap::ALL {
            assert!(map.apply(&row(&[0.0, 0.0])).entries.is_empty());
        }
    }
}
