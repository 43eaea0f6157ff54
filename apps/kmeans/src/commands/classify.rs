//! The commands `classify train` and `classify test`.

use super::options::{PatchOptions, WorkOptions, create_parent};
use super::terminal::Terminal;
use crate::Error;
use crate::algorithm::tuning::Tuning;
use crate::classification::{self, ClassDirectories, TestResult, TrainingPlan};
use crate::options::ClusteringOptions;
use crate::output::model::{HistogramFeatures, Model};
use crate::peer_ranks::PeerRanks;
use clap::{Args, ValueEnum};
use cool_classify::feature_map::FeatureMap;
use cool_classify::histogram::SpatialPyramid;
use cool_classify::svm::TrainingOptions;
use cool_map::replace_file;
use std::path::PathBuf;

/// Train a classifier with pictures in one directory per class.
///
/// Patches of all pictures are clustered into visual words. A linear support vector machine per
/// class learns from the number of occurrences of each word in a picture. The result is the same to
/// the bit on any number of ranks and threads.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TrainCommand {
    /// Directory or tar file that contains one directory per class.
    #[arg(value_name = "DIR")]
    pictures: PathBuf,

    /// Model file to write.
    #[arg(long, value_name = "FILE.cool")]
    model: PathBuf,

    /// Number of words in the vocabulary. More words distinguish finer details; from some thousands
    /// on, they describe individual pictures.
    #[arg(long, default_value_t = 400, value_name = "N")]
    words: usize,

    /// Maximum number of patches per word for the clustering. If there are more, an even subsample
    /// over all pictures is used.
    #[arg(long, default_value_t = 200, value_name = "N")]
    patches_per_word: u64,

    /// Maximum number of iterations of the clustering.
    #[arg(long, default_value_t = 20, value_name = "N")]
    iterations: usize,

    /// Levels of a spatial pyramid: level l counts words in 2^l x 2^l cells of the picture. For
    /// example, 3 levels also capture where things are, with 21 times the features of 1 level.
    #[arg(long, default_value_t = 1, value_name = "LEVELS")]
    pyramid: u32,

    /// How counts are compared.
    #[arg(long, value_enum, default_value_t = KernelOption::Chi2)]
    kernel: KernelOption,

    /// Cost of an error (C): a larger value fits the training pictures more closely.
    #[arg(long, default_value_t = 1.0, value_name = "C")]
    cost: f64,

    /// Seed of the run. The same seed and pictures give the same model.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Print only accuracy (mean over classes), classes and confusion (rows: true class), as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    patches: PatchOptions,

    #[command(flatten)]
    pub(crate) work: WorkOptions,
}

/// Test a classifier with other pictures, in directories named after its classes.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TestCommand {
    /// Directory or tar file that contains one directory per class.
    #[arg(value_name = "DIR")]
    pictures: PathBuf,

    /// Model file of `classify train`.
    #[arg(long, value_name = "FILE.cool")]
    model: PathBuf,

    /// Write the confusion matrix as an HTML page, with a picture of each case.
    #[arg(long, value_name = "FILE.html")]
    confusion: Option<PathBuf>,

    /// Print only accuracy (mean over classes), classes and confusion (rows: true class), as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) work: WorkOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KernelOption {
    /// As plain numbers.
    Linear,
    /// By their square roots.
    Hellinger,
    /// By an approximation of the chi-squared kernel, with three times the features.
    Chi2,
}

const EXAMPLES: &str = "\
Examples:
  cool-kmeans classify train --model scenes.cool train/
      where train/ has one directory of pictures per class: train/coast/1.jpg, train/forest/7.jpg ...
  cool-kmeans classify test --model scenes.cool --confusion scenes.html test/
      with other pictures of the same classes; the page shows the confusion matrix
  cool run -n 16 -- cool-kmeans classify train --words 2000 --pyramid 3 --model /shared/scenes.cool /data/train
      with 16 ranks on the nodes of a cluster";

impl TrainCommand {
    /// Executes the command as one rank.
    pub(crate) fn run(&self, peers: &PeerRanks<'_>) -> Result<(), Error> {
        let plan = peers.agree(self.training_plan(peers))?;
        let terminal = Terminal::new(peers.leads() && !self.json, plan.vocabulary.iterations);
        // Creates the directory now, because a long run should not fail at its end.
        peers.agree(if peers.leads() { create_parent(&self.model) } else { Ok(()) })?;
        let classes = ClassDirectories::open(peers, &self.pictures)?;
        terminal.print_line(&format!(
            "{} pictures of {} classes, {} ranks of {} threads",
            classes.pictures.len(),
            classes.names.len(),
            peers.size(),
            plan.vocabulary.tuning.threads
        ));
        let mut model = classification::train(peers, &classes, &plan, &terminal)?;
        model.provenance = model.provenance.made_by_this_command();
        let tested = classification::test(
            peers,
            &model,
            &classes,
            (self.work.level(), self.work.threads(peers)),
            &terminal,
        )?;
        terminal.finish();
        peers.agree(if peers.leads() { model.write(&self.model) } else { Ok(()) })?;
        terminal.print_line(&format!("wrote {}; accuracy on the training pictures:", self.model.display()));
        print_result(peers, &tested, self.json)
    }

    fn training_plan(&self, peers: &PeerRanks<'_>) -> Result<TrainingPlan, Error> {
        let (level, threads) = (self.work.level(), self.work.threads(peers));
        let map = match self.kernel {
            KernelOption::Linear => FeatureMap::None,
            KernelOption::Hellinger => FeatureMap::Hellinger,
            KernelOption::Chi2 => FeatureMap::ChiSquared,
        };
        Ok(TrainingPlan {
            cut: self.patches.fine_cut()?,
            sampling: self.patches.sampling(self.seed)?,
            features: HistogramFeatures { pyramid: SpatialPyramid { levels: self.pyramid }, map },
            vocabulary: ClusteringOptions {
                iterations: self.iterations,
                ..ClusteringOptions::new(
                    self.words,
                    self.seed,
                    Tuning { level, ..Tuning::with_threads(threads) },
                )
            },
            patches: self.patches_per_word.saturating_mul(self.words as u64),
            machines: TrainingOptions { cost: self.cost, seed: self.seed, ..TrainingOptions::default() },
        })
    }
}

impl TestCommand {
    /// Executes the command as one rank.
    pub(crate) fn run(&self, peers: &PeerRanks<'_>) -> Result<(), Error> {
        let terminal = Terminal::new(peers.leads() && !self.json, 0);
        let model = Model::read(peers, &self.model)?;
        let pictures = ClassDirectories::open(peers, &self.pictures)?;
        let tested = classification::test(
            peers,
            &model,
            &pictures,
            (self.work.level(), self.work.threads(peers)),
            &terminal,
        )?;
        terminal.finish();
        let write = |path: &PathBuf| {
            create_parent(path)?;
            let page = classification::page(&tested, &pictures)?;
            replace_file(path, &[page.as_bytes()]).map_err(Error::file(path))
        };
        let written = self.confusion.as_ref().filter(|_| peers.leads()).map_or(Ok(()), write);
        peers.agree(written)?;
        print_result(peers, &tested, self.json)
    }
}

/// Prints the result at rank 0.
fn print_result(peers: &PeerRanks<'_>, tested: &TestResult, json: bool) -> Result<(), Error> {
    let print = || -> Result<(), Error> {
        if json {
            let text = serde_json::to_string_pretty(tested).map_err(std::io::Error::from);
            println!("{}", text.map_err(Error::file("standard output".as_ref()))?);
        } else {
            print!("{}", table(tested));
        }
        Ok(())
    };
    peers.agree(if peers.leads() { print() } else { Ok(()) })
}

/// Returns a table of each class's recall and its most frequent confusions.
fn table(tested: &TestResult) -> String {
    let wide = tested.classes.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (class, (name, row)) in tested.classes.iter().zip(&tested.confusion).enumerate() {
        let all: u64 = row.iter().sum();
        if all == 0 {
            continue;
        }
        let mut mistakes: Vec<(u64, usize)> =
            row.iter().copied().zip(0..).filter(|&(count, other)| count > 0 && other != class).collect();
        mistakes.sort_unstable_by_key(|&(count, other)| (std::cmp::Reverse(count), other));
        let mistakes: Vec<String> = mistakes
            .iter()
            .take(3)
            .map(|&(count, other)| format!("{} {count}", tested.classes[other]))
            .collect();
        let taken = if mistakes.is_empty() {
            String::new()
        } else {
            format!("   confused with {}", mistakes.join(", "))
        };
        let share = 100.0 * row[class] as f64 / all as f64;
        text += &format!("{name:wide$}  {:>5} of {all:<5} {share:>6.1} %{taken}\n", row[class]);
    }
    text + &format!(
        "accuracy {:.1} % of {} pictures, mean over classes\n",
        100.0 * tested.accuracy,
        tested.pictures
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_the_confused_classes() {
        let tested = TestResult {
            accuracy: 0.625,
            classes: vec!["sea".into(), "wood".into(), "void".into()],
            confusion: vec![vec![3, 1, 0], vec![1, 1, 0], vec![0, 0, 0]],
            pictures: 6,
            predicted: Vec::new(),
        };
        let text = table(&tested);
        assert!(text.contains("sea       3 of 4       75.0 %   confused with wood 1\n"), "{text}");
        assert!(text.ends_with("accuracy 62.5 % of 6 pictures, mean over classes\n"), "{text}");
        assert!(!text.contains("void"), "a class without pictures has no share");
    }
}
