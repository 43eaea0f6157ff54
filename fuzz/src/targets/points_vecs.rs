//! Any bytes as a `.bvecs` file of points: the reader must return whole rows, each with the
//! elements that follow their number in the file, or an error that names the file.

use crate::File;
use cool_kmeans::inputs::array::ArrayFile;

thread_local! {
    static FILE: File = File::new(".bvecs");
}

pub(crate) fn check(bytes: &[u8]) {
    FILE.with(|file| {
        let array = match ArrayFile::open(file.with_contents(bytes)) {
            Ok(array) => array,
            Err(refused) => return file.assert_named(&refused),
        };
        let count = (array.dims as u32).to_le_bytes();
        let mut read = Vec::new();
        let done = array.read(0..array.rows, |_, row| {
            read.extend_from_slice(&count);
            read.extend_from_slice(row);
            Ok(())
        });
        match done {
            Ok(()) => assert_eq!(read, bytes),
            Err(refused) => {
                file.assert_named(&refused);
                assert!(bytes.starts_with(&read) && read != bytes);
            }
        }
    });
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let row = |data: &[u8]| [&(data.len() as u32).to_le_bytes(), data].concat();
    vec![row(&[7]), [row(&[1, 2, 3]), row(&[4, 5, 6])].concat(), [row(&[1]), row(&[2]), row(&[3])].concat()]
}

target!(30_000);
