//! Files that are whole at any time.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Writes the parts, one behind the other, as a file that takes the place of an old one when all of it is on the disk. A crash or a full
/// disk leaves the old one, or none.
///
/// # Errors
/// If it cannot be written; nothing half-written stays.
pub fn replace_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut beside = path.to_owned().into_os_string();
    beside.push(".new");
    let write = || {
        let mut file = File::create(&beside)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        // The name, too, is to outlast a crash of the machine.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().inspect_err(|_| {
        // Half of a file is of no use; the error to tell is why it was not written.
        let _ = std::fs::remove_file(&beside);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_leaves_the_old_file_and_nothing_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model");
        replace_file(&path, &[b"one"]).expect("written");
        replace_file(&path, &[b"tw", b"o"]).expect("replaced");
        assert_eq!(std::fs::read(&path).expect("read"), b"two");
        let occupied = folder.path().join("folder");
        std::fs::create_dir(&occupied).expect("made");
        replace_file(&occupied, &[b"three"]).expect_err("a folder is there");
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 2);
    }
}
