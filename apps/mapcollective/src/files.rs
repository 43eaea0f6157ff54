//! Files that are whole at any time.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file under way, which takes the place of an old one when all of it is on the disk ([`NewFile::keep`]). A crash or a full disk
/// leaves the old one, or none; nothing half-written stays of one that is dropped.
///
/// What is no file of a disk, such as a pipe, is written as it stands; a link stays one, and leads to the new file.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    /// Where it is written, unless it is no file of a disk or is kept already.
    beside: Option<PathBuf>,
    file: BufWriter<File>,
}

impl NewFile {
    /// Begins one.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(path: &Path) -> io::Result<Self> {
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let special = std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
        let beside = (!special).then(|| {
            let mut name = path.to_owned().into_os_string();
            name.push(".new");
            PathBuf::from(name)
        });
        let file = match &beside {
            Some(beside) => File::create(beside)?,
            None => File::options().write(true).open(path)?,
        };
        Ok(Self { path: path.to_owned(), beside, file: BufWriter::new(file) })
    }

    /// Puts it in its place.
    ///
    /// # Errors
    /// If it cannot be written to its end; nothing of it stays.
    pub fn keep(mut self) -> io::Result<()> {
        self.file.flush()?;
        let Some(beside) = &self.beside else { return Ok(()) };
        self.file.get_ref().sync_all()?;
        std::fs::rename(beside, &self.path)?;
        self.beside = None;
        // The name, too, is to outlast a crash of the machine.
        let directory = self.path.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // Half of a file is of no use; the error to tell is why it was not written.
            let _ = std::fs::remove_file(beside);
        }
    }
}

/// Writes the parts, one behind the other, as a [`NewFile`].
///
/// # Errors
/// If it cannot be written; nothing half-written stays.
pub fn replace_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.keep()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_only_the_old_file() {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().join("model");
        replace_file(&path, &[b"one"]).expect("written");
        replace_file(&path, &[b"tw", b"o"]).expect("replaced");
        assert_eq!(std::fs::read(&path).expect("read"), b"two");
        let occupied = directory.path().join("folder");
        std::fs::create_dir(&occupied).expect("made");
        replace_file(&occupied, &[b"three"]).expect_err("a folder is there");
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 2);
    }

    #[test]
    fn dropped_files_vanish_and_devices_are_written_in_place() {
        let directory = tempfile::tempdir().expect("a folder");
        let mut file = NewFile::create(&directory.path().join("table")).expect("begun");
        file.write_all(b"half").expect("written");
        drop(file);
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0);
        replace_file(Path::new("/dev/null"), &[b"gone"]).expect("written");
        let full = replace_file(Path::new("/dev/full"), &[b"too much"]).expect_err("it is full");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert!(!std::fs::metadata("/dev/full").expect("still there").is_file());
    }
}
