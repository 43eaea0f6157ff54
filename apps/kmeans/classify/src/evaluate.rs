//! The accuracy of a classifier.

/// Counts of pictures by true class and predicted class.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ConfusionMatrix {
    /// Row: the true class; column: the predicted class.
    pub counts: Vec<Vec<u64>>,
}

impl ConfusionMatrix {
    /// Returns an empty matrix for the given number of classes.
    pub fn new(classes: usize) -> ConfusionMatrix {
        ConfusionMatrix { counts: vec![vec![0; classes]; classes] }
    }

    /// Records a picture.
    pub fn add(&mut self, class: usize, predicted: usize) {
        self.counts[class][predicted] += 1;
    }

    /// Returns the share of a class's pictures that were recognized, or `None` if the class has no
    /// picture.
    pub fn recall(&self, class: usize) -> Option<f64> {
        let all: u64 = self.counts[class].iter().sum();
        (all > 0).then(|| self.counts[class][class] as f64 / all as f64)
    }

    /// Returns the mean of the classes' recalls, or `None` without pictures. Every class counts the
    /// same, regardless of its size.
    pub fn accuracy(&self) -> Option<f64> {
        let recalls: Vec<f64> = (0..self.counts.len()).filter_map(|class| self.recall(class)).collect();
        (!recalls.is_empty()).then(|| recalls.iter().sum::<f64>() / recalls.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracy_is_the_mean_over_classes_that_have_pictures() {
        let mut confusion = ConfusionMatrix::new(3);
        assert_eq!(confusion.accuracy(), None);
        for predicted in [0, 0, 0, 1] {
            confusion.add(0, predicted);
        }
        confusion.add(2, 1);
        assert_eq!(
            (confusion.recall(0), confusion.recall(1), confusion.recall(2)),
            (Some(0.75), None, Some(0.0))
        );
        assert_eq!(confusion.accuracy(), Some(0.375));
    }
}
