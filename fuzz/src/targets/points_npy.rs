//! Any bytes as a `.npy` file of points: the reader must return the rows and columns of the header,
//! or an error that names the file.

use crate::File;
use cool_kmeans::inputs::array::ArrayFile;

thread_local! {
    static FILE: File = File::new(".npy");
}

pub(crate) fn check(bytes: &[u8]) {
    FILE.with(|file| {
        let array = match ArrayFile::open(file.with_contents(bytes)) {
            Ok(array) => array,
            Err(refused) => return file.assert_named(&refused),
        };
        // No more rows than the file has bytes, because each row has at least one.
        let mut read = Vec::new();
        array
            .read(0..array.rows, |_, row| {
                assert_eq!(row.len() % array.dims, 0);
                read.extend_from_slice(row);
                Ok(())
            })
            .expect("an accepted file can be read");
        assert!(bytes.ends_with(&read));
    });
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let array = |version: u8, header: &str, data: &[u8]| {
        let length = header.len().to_le_bytes();
        let length = if version == 1 { &length[..2] } else { &length[..4] };
        [b"\x93NUMPY", &[version, 0][..], length, header.as_bytes(), data].concat()
    };
    vec![
        array(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }\n", &[1, 2, 3, 4, 5, 6]),
        array(2, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }\n", &[7; 8]),
        array(3, "{'shape': (0, 1), 'fortran_order': False, 'descr': '<f8'}", &[]),
    ]
}

target!();
