//! A picture as the bag of its words.

use crate::data::grid::Points;
use crate::data::inputs::entry::Entry;
use crate::data::inputs::pictures::{Cut, Pictures};
use crate::error::Error;
use crate::output::model::{Clusters, Features};
use crate::peer_ranks::Peers;
use cool_classify::Row;
use cool_classify::histogram::Occurrence;
use cool_distance::{Level, Panels, Picked};
use cool_map::threads;

/// A vocabulary, ready to read pictures by.
pub(crate) struct Reader<'a> {
    panels: Panels<'a>,
    cut: Cut,
}

impl<'a> Reader<'a> {
    /// # Errors
    /// If the clusters are not those of patches.
    pub(crate) fn new(clusters: &'a Clusters, level: Level) -> Result<Self, Error> {
        let cut = clusters.patches()?;
        let words = &clusters.centroids;
        Ok(Self { panels: Panels::new(level, words.precision, &words.values, words.dims), cut })
    }

    /// Words in the vocabulary.
    pub(crate) fn words(&self) -> usize {
        self.panels.len()
    }

    /// The words of a picture's patches.
    pub(crate) fn read(&self, entry: &Entry) -> Result<Vec<Occurrence>, Error> {
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
        self.panels.nearest(points.rows(), Picked::Run { first: 0, count: rows.len() }, |i, nearest| {
            let (x, y) = picture.middle(rows[i]);
            patches.push(Occurrence { word: nearest.index, x, y });
        });
        Ok(patches)
    }
}

/// The features of all pictures, described by all ranks and known to each; `done` hears of each picture of this rank.
pub(super) fn bags(
    peers: &Peers<'_>,
    entries: &[&Entry],
    (clusters, features): (&Clusters, &Features),
    (level, threads): (Level, usize),
    done: &(dyn Fn() + Sync),
) -> Result<Vec<Row>, Error> {
    let reader = peers.agree(Reader::new(clusters, level))?;
    let bag = |entry: &Entry| {
        let words = reader.read(entry)?;
        done();
        Ok(features.map.apply(&features.pyramid.histogram(&words, reader.words())))
    };
    peers.dealt(entries.len(), |mine| {
        threads::map(threads, mine.len(), |i| bag(entries[mine[i]])).into_iter().collect()
    })
}
