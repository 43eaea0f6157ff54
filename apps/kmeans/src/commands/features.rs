//! The commands `features`, which writes the numbers that describe patches of pictures, and
//! `histogram`, which counts the words of pictures.

use super::options::{InputFiles, PatchOptions, WorkOptions, create_parent};
use super::terminal::Terminal;
use crate::Error;
use crate::data::inputs::PointSource;
use crate::data::inputs::formats::ElementKind;
use crate::output::apply;
use crate::output::model::Model;
use crate::output::tables::TableFile;
use crate::peer_ranks::PeerRanks;
use clap::Args;
use std::path::{Path, PathBuf};

/// Write the numbers that describe patches of pictures, or those of any other input, as one table.
#[derive(Debug, Args)]
pub(crate) struct FeaturesCommand {
    #[command(flatten)]
    files: InputFiles,

    #[command(flatten)]
    patches: PatchOptions,

    /// Output file: .npy (|u1 for pictures and bytes, otherwise <f8), or text with one point per
    /// line in the papers' format: pictureID rowID colID f1 f2 ..., where _ replaces blanks in
    /// names. - is standard output.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Seed of the positions that --patches draws.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    #[command(flatten)]
    pub(crate) work: WorkOptions,
}

/// Count the visual words of pictures: one row of counts per picture, sorted by name.
#[derive(Debug, Args)]
pub(crate) struct HistogramCommand {
    #[command(flatten)]
    files: InputFiles,

    /// Model file of `fit` (of pictures) or `classify train`.
    #[arg(long, value_name = "FILE.cool")]
    model: PathBuf,

    /// Output file: .npy with <i4, or text with a picture's name and its counts on each line, where
    /// _ replaces blanks in names. - is standard output.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    #[command(flatten)]
    pub(crate) work: WorkOptions,
}

impl FeaturesCommand {
    /// Executes the command as one rank.
    pub(crate) fn run(&self, peers: &PeerRanks<'_>) -> Result<(), Error> {
        let cut = self.patches.cut().and_then(|cut| Ok((cut, self.patches.sampling(self.seed)?)));
        let (cut, sampling) = peers.agree(cut)?;
        let threads = self.work.threads(peers);
        let source = PointSource::open(peers, &self.files.input(cut, sampling), threads)?;
        let kind = if source.byte_step().is_some() { ElementKind::U8 } else { ElementKind::F64 };
        let mut table = begin(peers, &self.out, kind, (source.rows(), source.dims()))?;
        let terminal = terminal(peers, table.as_ref());
        apply::features(peers, &source, threads, &terminal, |rows, bytes| {
            let Some(table) = &mut table else { return Ok(()) };
            let mut names = Vec::new();
            if table.is_text() {
                let origins = source.origins(&rows.collect::<Vec<_>>())?;
                names.extend(origins.iter().map(|p| format!("{} {} {}", one_word(&p.file), p.row, p.column)));
            }
            table.write(&bytes, &names)
        })?;
        terminal.finish();
        peers.agree(table.map_or(Ok(()), TableFile::commit))?;
        terminal.print_line(&format!("{} points of {} numbers", source.rows(), source.dims()));
        Ok(())
    }
}

impl HistogramCommand {
    /// Executes the command as one rank.
    pub(crate) fn run(&self, peers: &PeerRanks<'_>) -> Result<(), Error> {
        let model = Model::read(peers, &self.model)?;
        let cut = peers.agree(model.clusters.patches())?;
        let threads = self.work.threads(peers);
        let source = PointSource::open(peers, &self.files.input(cut, None), threads)?;
        let PointSource::Pictures(pictures) = &source else {
            return Err(Error::Input(format!(
                "{}: not a picture; words can be counted in pictures only",
                source.name()
            )));
        };
        let names: Vec<String> =
            pictures.entries().map(|entry| one_word(&entry.name.display().to_string())).collect();
        let words = model.clusters.centroids.len();
        let mut table = begin(peers, &self.out, ElementKind::I32, (names.len() as u64, words))?;
        let terminal = terminal(peers, table.as_ref());
        let work = (self.work.level(), threads);
        apply::histograms(peers, &model.clusters, pictures, work, &terminal, |rows, counts| {
            let Some(table) = &mut table else { return Ok(()) };
            let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
            table.write(&bytes, &names[rows.start as usize..rows.end as usize])
        })?;
        terminal.finish();
        peers.agree(table.map_or(Ok(()), TableFile::commit))?;
        terminal.print_line(&format!("{} pictures, {words} words", names.len()));
        Ok(())
    }
}

/// Creates the table at rank 0. Other ranks return `None`.
fn begin(
    peers: &PeerRanks<'_>,
    path: &Path,
    kind: ElementKind,
    (rows, columns): (u64, usize),
) -> Result<Option<TableFile>, Error> {
    let begin = || {
        create_parent(path)?;
        TableFile::create(path, kind, rows, columns).map(Some)
    };
    peers.agree(if peers.leads() { begin() } else { Ok(None) })
}

/// Returns a terminal, which is silent if the table goes to standard output.
fn terminal(peers: &PeerRanks<'_>, table: Option<&TableFile>) -> Terminal {
    Terminal::new(peers.leads() && !table.is_some_and(TableFile::is_stdout), 0)
}

fn one_word(name: &str) -> String {
    name.replace(|c: char| c.is_whitespace(), "_")
}
