//! Any bytes as a Parquet file of points: the reader must return rows, or an error that names the
//! file.

use crate::File;
use cool_kmeans::inputs::array::ArrayFile;

/// Maximum number of rows that are read, because a file may claim more than it has.
const ROWS: u64 = 1000;

thread_local! {
    static FILE: File = File::new(".parquet");
}

pub(crate) fn check(bytes: &[u8]) {
    FILE.with(|file| {
        let array = match ArrayFile::open(file.with_contents(bytes)) {
            Ok(array) => array,
            Err(refused) => return file.assert_named(&refused),
        };
        let width = array.dims * array.kind.bytes();
        let read = array.read(0..array.rows.min(ROWS), |_, row| {
            assert_eq!(row.len(), width);
            Ok(())
        });
        if let Err(refused) = read {
            file.assert_named(&refused);
        }
    });
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let names = ["bytes-snappy", "floats-zstd", "integers-gzip", "unlike-none", "halves-lists", "lists"];
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../apps/kmeans/tests/data");
    let read = |name| std::fs::read(format!("{directory}/{name}.parquet")).expect("a file");
    names.into_iter().map(read).collect()
}

target!(20_000);
