//! A picture as the bag of its words.

use super::{Features, dealt};
use crate::error::Error;
use crate::grid::{Centroids, Points};
use crate::inputs::hog;
use crate::inputs::pictures::Pictures;
use crate::peers::Peers;
use crate::threads;
use cool_classify::Row;
use cool_classify::histogram::Occurrence;
use cool_distance::{Level, Panels, Picked};
use std::path::PathBuf;

/// The features of all pictures, described by all ranks and known to each; `done` hears of each picture of this rank.
pub(super) fn bags(
    peers: &Peers<'_>,
    files: &[PathBuf],
    (words, features): (&Centroids, &Features),
    (level, threads): (Level, usize),
    done: &(dyn Fn() + Sync),
) -> Result<Vec<Row>, Error> {
    let panels = Panels::new(level, words.precision, &words.values, words.dims);
    let compute = |mine: &[usize]| {
        let bag = |i: usize| {
            let row = bag(&files[mine[i]], &panels, features);
            done();
            row
        };
        threads::map(threads, mine.len(), bag).into_iter().collect()
    };
    dealt(peers, files.len(), compute, encode, decode)
}

/// One picture's features.
fn bag(file: &PathBuf, panels: &Panels, features: &Features) -> Result<Row, Error> {
    let pictures = Pictures::open(std::slice::from_ref(file), features.cut, false)?;
    let rows: Vec<u64> = (0..pictures.rows()).collect();
    if rows.is_empty() {
        let side = features.cut.patch;
        let problem = format!(
            "smaller than a patch of {side} x {side} pixels; remove it, or train with a smaller --patch"
        );
        return Err(Error::Input(format!("{}: {problem}", file.display())));
    }
    let points = Points::bytes(hog::DIMS, pictures.load(&rows, 1, &|_| ())?);
    let mut patches = Vec::with_capacity(rows.len());
    panels.nearest(points.rows(), Picked::Run { first: 0, count: rows.len() }, |i, nearest| {
        let (x, y) = pictures.middle(rows[i]);
        patches.push(Occurrence { word: nearest.index, x, y });
    });
    Ok(features.map.apply(&features.pyramid.histogram(&patches, panels.len())))
}

fn encode(row: &Row, bytes: &mut Vec<u8>) {
    bytes.extend((row.entries.len() as u32).to_le_bytes());
    for (at, x) in &row.entries {
        bytes.extend(at.to_le_bytes());
        bytes.extend(x.to_le_bytes());
    }
}

fn decode(bytes: &mut &[u8]) -> Option<Row> {
    let length = u32::from_le_bytes(*bytes.split_off(..4)?.first_chunk()?);
    let (entries, _) = bytes.split_off(..8 * length as usize)?.as_chunks::<8>();
    let entry = |[a, b, c, d, e, f, g, h]: &[u8; 8]| {
        (u32::from_le_bytes([*a, *b, *c, *d]), f32::from_le_bytes([*e, *f, *g, *h]))
    };
    Some(Row { entries: entries.iter().map(entry).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_same_after_a_journey() {
        let rows = [Row::default(), Row { entries: vec![(3, 0.25), (70_000, -1.5)] }];
        let mut bytes = Vec::new();
        rows.iter().for_each(|row| encode(row, &mut bytes));
        let mut rest = bytes.as_slice();
        assert_eq!(rows.each_ref().map(|_| decode(&mut rest)), rows.map(Some));
        assert_eq!(decode(&mut rest), None);
        assert_eq!(decode(&mut &bytes[4..15]), None, "cut short");
    }
}
