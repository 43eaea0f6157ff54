//! Text files of points from any source: if all lines are accepted, they must yield as many finite
//! numbers as there are points, each point with its origin; otherwise the error must name the file.

use crate::File;
use cool_kmeans::inputs::text::TextLines;
use cool_kmeans::peer_ranks::PeerRanks;

const DIMS: usize = 2;

thread_local! {
    static FILE: File = File::new(".txt");
}

pub(crate) fn check(bytes: &[u8]) {
    FILE.with(|file| {
        let lines = match TextLines::open(
            &PeerRanks::alone(),
            &[file.with_contents(bytes).to_owned()],
            Some(DIMS),
            1,
        ) {
            Ok(lines) => lines,
            Err(refused) => return file.assert_named(&refused),
        };
        let rows: Vec<u64> = (0..lines.rows()).collect();
        let load = |rows: &[u64]| {
            let mut values = Vec::new();
            lines.each(rows, |row| values.extend_from_slice(row)).map(|()| values)
        };
        match load(&rows) {
            Ok(values) => {
                assert_eq!(values.len(), rows.len() * DIMS);
                assert!(values.iter().all(|value| value.is_finite()));
                assert_eq!(lines.origins(&rows).expect("points have places").len(), rows.len());
            }
            Err(refused) => file.assert_named(&refused),
        }
        // The last row must be the same whether it is read alone or with the others.
        if let Some(last) = rows.last() {
            let alone = load(&[*last]);
            assert!(alone.is_ok() || load(&rows).is_err());
        }
    });
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    ["a 0 1 1 2\n\nb 2 3 3e0 -4\n", "picture 10 20 0.5 .25", "\r\n x 1 2 1 2 \r\n", "a 0 0 nan 1\n"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

// Each input writes and reads a file several times.
target!(30_000);
