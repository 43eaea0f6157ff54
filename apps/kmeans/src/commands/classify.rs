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

/// Train a classifier with folders of pictures, one folder for each class.
///
/// Patches of all pictures are clustered into visual words; how often each occurs in a picture is what a linear support vector machine
/// for each class learns. The result is the same to the bit on any number of ranks and threads.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TrainCommand {
    /// The folder, or tar file, in which each class has a folder of its own.
    #[arg(value_name = "DIR")]
    pictures: PathBuf,

    /// The file to write.
    #[arg(long, value_name = "FILE.cool")]
    model: PathBuf,

    /// Words in the vocabulary. More tell finer differences, from some thousands on those of single pictures.
    #[arg(long, default_value_t = 400, value_name = "N")]
    words: usize,

    /// Patches for each word that are clustered, at most; evenly thinned over all pictures.
    #[arg(long, default_value_t = 200, value_name = "N")]
    patches_per_word: u64,

    /// Most iterations of the clustering.
    #[arg(long, default_value_t = 20, value_name = "N")]
    iterations: usize,

    /// Levels of a spatial pyramid: level l counts words in 2^l x 2^l cells of the picture. 3 tells where things are, too, at 21 times
    /// the features of 1.
    #[arg(long, default_value_t = 1, value_name = "LEVELS")]
    pyramid: u32,

    /// How counts are compared.
    #[arg(long, value_enum, default_value_t = KernelOption::Chi2)]
    kernel: KernelOption,

    /// What an error costs the machines (C): more fits the training pictures more closely.
    #[arg(long, default_value_t = 1.0, value_name = "C")]
    cost: f64,

    /// Names the run: the same seed and pictures give the same model.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Print accuracy (mean over classes), classes and confusion (rows: true class) as JSON, and nothing else.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    patches: PatchOptions,

    #[command(flatten)]
    pub(crate) work: WorkOptions,
}

/// Test a classifier with other pictures of its classes, in folders of the classes' names.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TestCommand {
    /// The folder, or tar file, in which each class has a folder of its own.
    #[arg(value_name = "DIR")]
    pictures: PathBuf,

    /// What `classify train` has written.
    #[arg(long, value_name = "FILE.cool")]
    model: PathBuf,

    /// Write what was taken for what as a page, with a picture of each case.
    #[arg(long, value_name = "FILE.html")]
    confusion: Option<PathBuf>,

    /// Print accuracy (mean over classes), classes and confusion (rows: true class) as JSON, and nothing else.
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
    /// By the chi-squared kernel, nearly; three times the features.
    Chi2,
}

const EXAMPLES: &str = "\
Examples:
  cool-kmeans classify train --model scenes.cool train/
      where train/ has a folder of pictures for each class: train/coast/1.jpg, train/forest/7.jpg ...
  cool-kmeans classify test --model scenes.cool --confusion scenes.html test/
      with other pictures of the same classes; the page shows what was taken for what
  cool run -n 16 -- cool-kmeans classify train --words 2000 --pyramid 3 --model /shared/scenes.cool /data/train
      by 16 ranks on the nodes of a cluster";

impl TrainCommand {
    /// What each rank does.
    pub(crate) fn run(&self, peers: &PeerRanks<'_>) -> Result<(), Error> {
        let plan = peers.agree(self.training_plan(peers))?;
        let terminal = Terminal::new(peers.leads() && !self.json, plan.vocabulary.iterations);
        // What would spoil a long run at its end is better found out before it.
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
        terminal.print_line(&format!(
            "wrote {}; of the pictures that it was trained with:",
            self.model.display()
        ));
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
    /// What each rank does.
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

/// Rank 0 prints the result.
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

/// Each class's share that was recognised, and what it was most often taken for.
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
        let taken =
            if mistakes.is_empty() { String::new() } else { format!("   taken for {}", mistakes.join(", ")) };
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
        assert!(text.contains("sea       3 of 4       75.0 %   taken for wood 1\n"), "{text}");
        assert!(text.ends_with("accuracy 62.5 % of 6 pictures, mean over classes\n"), "{text}");
        assert!(!text.contains("void"), "a class without pictures has no share");
    }
}
