//! Everything that is needed to name a picture's class, in one file.

use crate::error::Error;
use crate::grid::{Centroids, Precision};
use crate::inputs::hog;
use crate::inputs::pictures::Cut;
use cool_classify::Row;
use cool_classify::feature_map::FeatureMap;
use cool_classify::histogram::{MAX_LEVELS, Pyramid};
use cool_classify::svm::{self, Machine};
use cool_map::replace_file;
use serde::{Deserialize, Serialize};
use std::path::Path;

const FORMAT: &str = "cool-kmeans classifier 1";

/// How a picture becomes features.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// How patches are cut out.
    pub cut: Cut,
    /// The cells in which words are counted.
    pub pyramid: Pyramid,
    /// What becomes of the counts.
    pub map: FeatureMap,
}

/// A classifier that can be used.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// The vocabulary.
    pub words: Centroids,
    /// How a picture becomes features.
    pub features: Features,
    /// One for each class.
    pub machines: Vec<Machine>,
}

/// A classifier with what it was made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The classes' names, in order.
    pub classes: Vec<String>,
    /// What tells them apart.
    pub classifier: Classifier,
    /// Pictures of each class that it was trained with.
    pub trained_with: Vec<usize>,
    /// The run's seed.
    pub seed: u64,
}

/// The first line of the file; words follow as 16-bit integers, then each class's bias and weights as 64-bit floating-point
/// numbers, all little-endian.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    /// The version of the program that wrote it.
    version: String,
    classes: Vec<String>,
    trained_with: Vec<usize>,
    seed: u64,
    words: usize,
    dims: usize,
    features: Features,
}

impl Classifier {
    /// The class of a picture of these features.
    pub fn predict(&self, row: &Row) -> usize {
        svm::predict(&self.machines, row).unwrap_or(0)
    }
}

impl Features {
    /// Features of a picture over a vocabulary of that many words.
    pub fn len(&self, words: usize) -> usize {
        self.map.len(self.pyramid.len(words))
    }
}

impl Model {
    /// Writes the file whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let Classifier { words, features, machines } = &self.classifier;
        let header = Header {
            format: FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            classes: self.classes.clone(),
            trained_with: self.trained_with.clone(),
            seed: self.seed,
            words: words.len(),
            dims: words.dims,
            features: *features,
        };
        let mut bytes =
            serde_json::to_vec(&header).map_err(std::io::Error::from).map_err(Error::file(path))?;
        bytes.push(b'\n');
        bytes.extend(words.values.iter().flat_map(|value| value.to_le_bytes()));
        for machine in machines {
            bytes.extend(machine.bias.to_le_bytes());
            bytes.extend(machine.weights.iter().flat_map(|weight| weight.to_le_bytes()));
        }
        replace_file(path, &[&bytes]).map_err(Error::file(path))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is no classifier, or one of other features than this program's.
    pub fn read(path: &Path) -> Result<Model, Error> {
        let bytes = std::fs::read(path).map_err(Error::file(path))?;
        Model::decode(&bytes).map_err(|problem| Error::Model { path: path.to_owned(), problem })
    }

    /// Of a file's bytes; otherwise what is wrong with them.
    fn decode(bytes: &[u8]) -> Result<Model, String> {
        let none = || format!("not a \"{FORMAT}\"");
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(none)?;
        let header: Header = serde_json::from_slice(&bytes[..end]).map_err(|_| none())?;
        header.check()?;
        let body = &bytes[end + 1..];
        let long = || {
            format!(
                "has {} bytes of numbers, which is not what its first line says; is it cut short?",
                body.len()
            )
        };
        let (words, machines) = body.split_at_checked(header.words * header.dims * 2).ok_or_else(long)?;
        let values = words.as_chunks().0.iter().map(|bytes| i16::from_le_bytes(*bytes)).collect::<Vec<_>>();
        if !values.iter().all(|value| (0..=32_640).contains(value)) {
            return Err("a word is none of this program's features".to_owned());
        }
        let numbers = header.features.len(header.words) + 1;
        if machines.len() != header.classes.len() * numbers * 8 {
            return Err(long());
        }
        let machine = |bytes: &[u8]| {
            let mut numbers = bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
            Machine { bias: numbers.next().unwrap_or_default(), weights: numbers.collect() }
        };
        let machines: Vec<Machine> = machines.chunks_exact(numbers * 8).map(machine).collect();
        let words = Centroids { precision: Precision::Byte, dims: header.dims, values };
        let classifier = Classifier { words, features: header.features, machines };
        let Header { classes, trained_with, seed, .. } = header;
        Ok(Model { classes, classifier, trained_with, seed })
    }
}

/// Words at most: what a histogram's places, 32-bit numbers, can tell apart in all cells of a pyramid.
pub(super) const MAX_WORDS: usize = 1 << 24;

impl Header {
    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("not a \"{FORMAT}\", but a \"{}\"", self.format));
        }
        if self.dims != hog::DIMS {
            return Err(format!(
                "its patches have {} numbers, this program's {}; train anew",
                self.dims,
                hog::DIMS
            ));
        }
        let features = &self.features;
        Cut::new(features.cut.patch, features.cut.stride).map_err(|error| error.to_string())?;
        if !(1..=MAX_LEVELS).contains(&features.pyramid.levels) {
            return Err(format!("a pyramid has 1 to {MAX_LEVELS} levels, not {}", features.pyramid.levels));
        }
        if self.words == 0 || self.words > MAX_WORDS || self.classes.is_empty() {
            return Err(format!("has {} words and {} classes", self.words, self.classes.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let values = (0..2 * hog::DIMS as i16).collect();
        let words = Centroids { precision: Precision::Byte, dims: hog::DIMS, values };
        let cut = Cut { patch: 20, stride: 8 };
        let features = Features { cut, pyramid: Pyramid { levels: 2 }, map: FeatureMap::ChiSquared };
        let machine =
            |bias: f64| Machine { bias, weights: (0..features.len(2)).map(|i| i as f64 - bias).collect() };
        let classifier = Classifier { words, features, machines: vec![machine(0.5), machine(-2.0)] };
        Model { classes: vec!["sea".into(), "wood".into()], classifier, trained_with: vec![3, 4], seed: 9 }
    }

    #[test]
    fn a_model_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.cool");
        model().write(&path).expect("written");
        assert_eq!(Model::read(&path).expect("read"), model());
    }

    #[test]
    fn what_is_no_model_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.cool");
        model().write(&path).expect("written");
        let whole = std::fs::read(&path).expect("read");
        let line = whole.iter().position(|byte| *byte == b'\n').expect("a line");
        for end in [0, line / 2, line, line + 1, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..end]).expect("written");
            let said = Model::read(&path).expect_err("refused").to_string();
            assert!(said.contains("m.cool") && said.contains("cool-kmeans classify train"), "{said}");
        }
        let text = String::from_utf8_lossy(&whole[..line]).replace("\"dims\":512", "\"dims\":2048");
        std::fs::write(&path, text + "\n").expect("written");
        let said = Model::read(&path).expect_err("refused").to_string();
        assert!(said.contains("2048 numbers"), "{said}");
    }
}
