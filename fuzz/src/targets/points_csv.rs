//! CSV files of points from any source: if all lines are accepted, they must yield as many finite
//! numbers as there are points; otherwise the error must name the file.

use crate::File;
use cool_kmeans::inputs::text::TextLines;
use cool_kmeans::peer_ranks::PeerRanks;

thread_local! {
    static FILE: File = File::new(".csv");
}

pub(crate) fn check(bytes: &[u8]) {
    FILE.with(|file| {
        let lines =
            match TextLines::open(&PeerRanks::alone(), &[file.with_contents(bytes).to_owned()], None, 1) {
                Ok(lines) => lines,
                Err(refused) => return file.assert_named(&refused),
            };
        let rows: Vec<u64> = (0..lines.rows()).collect();
        let mut values = Vec::new();
        match lines.each(&rows, |row| values.extend_from_slice(row)) {
            Ok(()) => {
                assert_eq!(values.len(), rows.len() * lines.dims);
                assert!(values.iter().all(|value| value.is_finite()));
            }
            Err(refused) => file.assert_named(&refused),
        }
    });
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    ["1,2\n3,4\n", "x;\"y z\"\r\n\r\n1;\"2.5e1\"\r\n", "a\tb\n1\t-2", "7\n8\n"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

target!(30_000);
