//! Linear support vector machines, one per class against all others, trained by dual coordinate
//! descent (Hsieh, Chang, Lin, Keerthi and Sundararajan, "A Dual Coordinate Descent Method for
//! Large-scale Linear SVM", ICML 2008, algorithm 1 for squared hinge loss).
//!
//! Training minimizes `|w|^2 / 2 + C sum max(0, 1 - y w.x)^2`. The last element of `w` is the bias,
//! for which `x` is 1.

use crate::SparseRow;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Options of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingOptions {
    /// Cost of an error, C.
    pub cost: f64,
    /// Training ends when the projected gradients of all dual variables differ by at most this.
    pub tolerance: f64,
    /// Maximum number of passes over all rows.
    pub passes: usize,
    /// Seed of the order in which rows are visited.
    pub seed: u64,
}

impl Default for TrainingOptions {
    fn default() -> TrainingOptions {
        TrainingOptions { cost: 1.0, tolerance: 1e-3, passes: 2000, seed: 1 }
    }
}

/// The machine of one class.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LinearSvm {
    /// Weights of the features.
    pub weights: Vec<f64>,
    /// Constant that is added to every score.
    pub bias: f64,
}

/// The course of a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingOutcome {
    /// Passes over all rows.
    pub passes: usize,
    /// Whether the tolerance was reached.
    pub converged: bool,
}

impl LinearSvm {
    /// Returns the score of a row. The larger it is, the more likely the row belongs to the class;
    /// above 0, it more likely does than not.
    pub fn score(&self, row: &SparseRow) -> f64 {
        row.dot(&self.weights) + self.bias
    }

    /// Trains on rows of `features` numbers. `is_member` must return whether a row belongs to the
    /// class.
    pub fn train(
        rows: &[SparseRow],
        features: usize,
        is_member: impl Fn(usize) -> bool,
        options: &TrainingOptions,
    ) -> (LinearSvm, TrainingOutcome) {
        let mut descent = CoordinateDescent {
            rows,
            sides: (0..rows.len()).map(|i| if is_member(i) { 1.0 } else { -1.0 }).collect(),
            // The bias adds 1 to every row's squared length, the loss adds 1 / 2C.
            curvature: rows.iter().map(|row| row.squared() + 1.0 + 0.5 / options.cost).collect(),
            slack: 0.5 / options.cost,
            dual: vec![0.0; rows.len()],
            machine: LinearSvm { weights: vec![0.0; features], bias: 0.0 },
        };
        let mut order: Vec<usize> = (0..rows.len()).collect();
        let mut chance = ChaCha8Rng::seed_from_u64(options.seed);
        for pass in 1..=options.passes {
            order.shuffle(&mut chance);
            if descent.pass(&order) <= options.tolerance {
                return (descent.machine, TrainingOutcome { passes: pass, converged: true });
            }
        }
        (descent.machine, TrainingOutcome { passes: options.passes, converged: false })
    }
}

/// Returns the class with the largest score, of equal scores the first, or `None` if there are no
/// machines.
pub fn predict(machines: &[LinearSvm], row: &SparseRow) -> Option<usize> {
    let scores = machines.iter().map(|machine| machine.score(row));
    let best = scores.enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map(|(class, _)| class)
}

struct CoordinateDescent<'a> {
    rows: &'a [SparseRow],
    /// 1 for members of the class, -1 for others.
    sides: Vec<f64>,
    /// Second derivative of the dual function, by row.
    curvature: Vec<f64>,
    slack: f64,
    dual: Vec<f64>,
    machine: LinearSvm,
}

impl CoordinateDescent<'_> {
    /// Makes one step per row. Returns the difference between the largest and the smallest
    /// projected gradient.
    fn pass(&mut self, order: &[usize]) -> f64 {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for &i in order {
            let gradient =
                self.sides[i] * self.machine.score(&self.rows[i]) - 1.0 + self.slack * self.dual[i];
            // A dual variable at its bound 0 cannot go lower.
            let projected = if self.dual[i] == 0.0 { gradient.min(0.0) } else { gradient };
            (low, high) = (low.min(projected), high.max(projected));
            if projected != 0.0 {
                self.step(i, gradient);
            }
        }
        if self.rows.is_empty() { 0.0 } else { high - low }
    }

    fn step(&mut self, i: usize, gradient: f64) {
        let next = (self.dual[i] - gradient / self.curvature[i]).max(0.0);
        let change = (next - self.dual[i]) * self.sides[i];
        self.dual[i] = next;
        self.rows[i].add_to(&mut self.machine.weights, change);
        self.machine.bias += change;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(values: &[f32]) -> SparseRow {
        SparseRow { entries: (0..).zip(values.iter().copied()).collect() }
    }

    fn objective(machine: &LinearSvm, rows: &[SparseRow], sides: &[bool], cost: f64) -> f64 {
        let squared: f64 = machine.weights.iter().map(|w| w * w).sum::<f64>() + machine.bias * machine.bias;
        let loss = |(row, side): (&SparseRow, &bool)| {
            let side = if *side { 1.0 } else { -1.0 };
            let short = (1.0 - side * machine.score(row)).max(0.0);
            short * short
        };
        squared / 2.0 + cost * rows.iter().zip(sides).map(loss).sum::<f64>()
    }

    #[test]
    fn two_points_are_separated_in_the_middle() {
        let rows = [row(&[1.0]), row(&[-1.0])];
        let (machine, outcome) = LinearSvm::train(
            &rows,
            1,
            |i| i == 0,
            &TrainingOptions { tolerance: 1e-9, ..TrainingOptions::default() },
        );
        // The minimum of w^2 / 2 + 2 (1 - w)^2 is at w = 0.8.
        assert!(
            outcome.converged && (machine.weights[0] - 0.8).abs() < 1e-6 && machine.bias.abs() < 1e-6,
            "{machine:?}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_small_change_of_the_machine_makes_it_better(
            rows in prop::collection::vec(prop::collection::vec(-2f32..2.0, 3), 2..20),
            members in prop::collection::vec(any::<bool>(), 20),
            at in 0usize..4,
            by in -0.05f64..0.05,
        ) {
            let rows: Vec<SparseRow> = rows.iter().map(|values| row(values)).collect();
            let options = TrainingOptions { tolerance: 1e-7, passes: 100_000, ..TrainingOptions::default() };
            let (machine, outcome) = LinearSvm::train(&rows, 3, |i| members[i], &options);
            prop_assert!(outcome.converged);
            let best = objective(&machine, &rows, &members, options.cost);
            let mut other = machine.clone();
            if at < 3 { other.weights[at] += by } else { other.bias += by }
            prop_assert!(objective(&other, &rows, &members, options.cost) >= best - 1e-6);
        }
    }

    #[test]
    fn the_first_class_with_the_largest_score_is_predicted() {
        let machine = |weight: f64| LinearSvm { weights: vec![weight], bias: 0.0 };
        let machines = [machine(-1.0), machine(2.0), machine(2.0)];
        assert_eq!(predict(&machines, &row(&[1.0])), Some(1));
        assert_eq!(predict(&machines, &row(&[-1.0])), Some(0));
        assert_eq!(predict(&[], &row(&[1.0])), None);
    }

    #[test]
    fn a_seed_names_the_bits() {
        let rows: Vec<SparseRow> = (0..30).map(|i| row(&[(i % 7) as f32, (i % 5) as f32 - 2.0])).collect();
        let train = || LinearSvm::train(&rows, 2, |i| i % 3 == 0, &TrainingOptions::default()).0;
        assert_eq!(train(), train());
    }
}
