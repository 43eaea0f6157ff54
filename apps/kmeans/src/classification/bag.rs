//! A picture as the bag of its visual words.

use crate::data::grid::Points;
use crate::data::inputs::entry::InputEntry;
use crate::data::inputs::pictures::{PatchLayout, Pictures};
use crate::error::Error;
use crate::output::model::{Clusters, HistogramFeatures};
use crate::peer_ranks::PeerRanks;
use cool_classify::SparseRow;
use cool_classify::histogram::WordOccurrence;
use cool_distance::{Panels, RowSelection, SimdLevel};
use cool_map::threads;

/// A vocabulary, prepared for reading pictures.
pub(crate) struct VocabularyReader<'a> {
    panels: Panels<'a>,
    cut: PatchLayout,
}

impl<'a> VocabularyReader<'a> {
    /// Prepares the clusters as a vocabulary.
    ///
    /// # Errors
    /// If the clusters are not those of patches.
    pub(crate) fn new(clusters: &'a Clusters, level: SimdLevel) -> Result<Self, Error> {
        let cut = clusters.patches()?;
        let words = &clusters.centroids;
        Ok(Self { panels: Panels::new(level, words.precision, &words.values, words.dims), cut })
    }

    /// Returns the number of words in the vocabulary.
    pub(crate) fn words(&self) -> usize {
        self.panels.len()
    }

    /// Returns the words of a picture's patches.
    pub(crate) fn read(&self, entry: &InputEntry) -> Result<Vec<WordOccurrence>, Error> {
        let picture = Pictures::one(entry, self.cut)?;
        let rows: Vec<u64> = (0..picture.rows()).collect();
        if rows.is_empty() {
            let (name, side) = (entry.name.display(), self.cut.patch);
            let problem = "remove it, or train with a smaller --patch";
            return Err(Error::Input(format!(
                "{name}: smaller than a patch of {side} x {side} pixels; {problem}"
            )));
        }
        let points = Points::bytes(self.cut.dims(), picture.load(&rows, 1, &|_| ())?);
        let mut patches = Vec::with_capacity(rows.len());
        self.panels.nearest(
            points.rows(),
            RowSelection::Run { first: 0, count: rows.len() },
            |i, nearest| {
                let (x, y) = picture.middle(rows[i]);
                patches.push(WordOccurrence { word: nearest.index, x, y });
            },
        );
        Ok(patches)
    }
}

/// Returns the features of all pictures at each rank. All ranks share the work. `done` is called
/// for each picture of this rank.
pub(super) fn describe_pictures(
    peers: &PeerRanks<'_>,
    entries: &[&InputEntry],
    (clusters, features): (&Clusters, &HistogramFeatures),
    (level, threads): (SimdLevel, usize),
    done: &(dyn Fn() + Sync),
) -> Result<Vec<SparseRow>, Error> {
    let reader = peers.agree(VocabularyReader::new(clusters, level))?;
    let bag = |entry: &InputEntry| {
        let words = reader.read(entry)?;
        done();
        Ok(features.map.apply(&features.pyramid.histogram(&words, reader.words())))
    };
    peers.deal(entries.len(), |mine| {
        threads::map(threads, mine.len(), |i| bag(entries[mine[i]])).into_iter().collect()
    })
}
