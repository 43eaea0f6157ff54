//! The command `assign`: assigns points to the clusters of a model.

use super::options::{InputFiles, WorkOptions, create_parent};
use super::terminal::Terminal;
use crate::Error;
use crate::data::inputs::PointSource;
use crate::data::inputs::formats::ElementKind;
use crate::data::inputs::pictures::PatchLayout;
use crate::output::apply::{self, Assignment};
use crate::output::model::Model;
use crate::output::tables::TableFile;
use crate::peer_ranks::PeerRanks;
use clap::Args;
use std::path::{Path, PathBuf};

/// Assign points to the clusters of a model, on all ranks.
///
/// The model determines how patches are cut out of pictures. Points that were clustered get the
/// labels of the clustering.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct AssignCommand {
    #[command(flatten)]
    files: InputFiles,

    /// Model file of `fit` or `classify train`.
    #[arg(long, value_name = "FILE.cool")]
    model: PathBuf,

    /// Write the cluster of each point, in the order of the points: .npy with <i4, or text; - is
    /// standard output. This is the default if neither labels nor distances are requested.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Write the distance of each point from the centroid of its cluster: .npy with <f8, or text.
    #[arg(long, value_name = "FILE")]
    distances: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) work: WorkOptions,
}

const EXAMPLES: &str = "\
Examples:
  cool-kmeans assign --model points.cool --labels labels.npy --distances distances.npy more.npy
  cool-kmeans assign --model points.cool more.csv | sort -n | uniq -c
      counts the points of each cluster";

impl AssignCommand {
    /// Executes the command as one rank.
    pub(crate) fn run(&self, peers: &PeerRanks<'_>) -> Result<(), Error> {
        let model = Model::read(peers, &self.model)?;
        let threads = self.work.threads(peers);
        // A model of numbers has no patch layout; pictures are then refused below.
        let cut = model.clusters.cut.map_or_else(|| PatchLayout::new(5, 40, 20), Ok)?;
        let source = PointSource::open(peers, &self.files.input(cut, None), threads)?;
        let mut tables = peers.agree(if peers.leads() {
            self.tables(source.rows())
        } else {
            Ok(OutputTables::default())
        })?;
        let terminal = Terminal::new(peers.leads() && !tables.print(), 0);
        let work = (self.work.level(), threads);
        apply::assign(peers, &model.clusters, &source, work, &terminal, |found| tables.write(found))?;
        terminal.finish();
        peers.agree(tables.commit())?;
        terminal.print_line(&format!(
            "{} points assigned to {} clusters",
            source.rows(),
            model.clusters.centroids.len()
        ));
        Ok(())
    }

    fn tables(&self, rows: u64) -> Result<OutputTables, Error> {
        let begin = |path: &Path, kind| {
            create_parent(path)?;
            TableFile::create(path, kind, rows, 1)
        };
        let print = (self.labels.is_none() && self.distances.is_none()).then(|| Path::new("-"));
        let labels = self.labels.as_deref().or(print);
        Ok(OutputTables {
            labels: labels.map(|path| begin(path, ElementKind::I32)).transpose()?,
            distances: self.distances.as_deref().map(|path| begin(path, ElementKind::F64)).transpose()?,
        })
    }
}

/// Tables that rank 0 writes; other ranks have none.
#[derive(Default)]
struct OutputTables {
    labels: Option<TableFile>,
    distances: Option<TableFile>,
}

impl OutputTables {
    /// Returns whether one of them goes to standard output.
    fn print(&self) -> bool {
        [&self.labels, &self.distances].into_iter().flatten().any(TableFile::is_stdout)
    }

    fn write(&mut self, found: &[Assignment]) -> Result<(), Error> {
        if let Some(labels) = &mut self.labels {
            labels.write(&found.iter().flat_map(|a| a.label.to_le_bytes()).collect::<Vec<_>>(), &[])?;
        }
        if let Some(distances) = &mut self.distances {
            distances.write(&found.iter().flat_map(|a| a.distance.to_le_bytes()).collect::<Vec<_>>(), &[])?;
        }
        Ok(())
    }

    fn commit(self) -> Result<(), Error> {
        [self.labels, self.distances].into_iter().flatten().try_for_each(TableFile::commit)
    }
}
