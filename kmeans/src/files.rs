//! Files that are whole at any time.

use crate::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Writes a file so that a crash or a full disk leaves the old one, if there was one, or none.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut beside = path.to_owned().into_os_string();
    beside.push(".new");
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        // The name, too, is to outlast a crash of the machine.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(|error| {
        // What is half written is of no use to anybody; that it cannot be removed says less than why it is not whole.
        let _ = std::fs::remove_file(&beside);
        Error::file(path)(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_leaves_the_old_file_and_nothing_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model");
        replace(&path, b"one").expect("written");
        replace(&path, b"two").expect("replaced");
        assert_eq!(std::fs::read(&path).expect("read"), b"two");
        let occupied = folder.path().join("folder");
        std::fs::create_dir(&occupied).expect("made");
        let said = replace(&occupied, b"three").expect_err("refused").to_string();
        assert!(said.contains("folder"), "{said}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 2);
    }
}
