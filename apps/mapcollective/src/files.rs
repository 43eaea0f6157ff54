//! Files that are replaced as a whole: at any time, a file has either its old or its complete new
//! contents.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that is being written. [`NewFile::commit`] replaces the old file, if there is one, when
/// the new one is completely on disk. Therefore the old file survives a crash and a full disk. If
/// the value is dropped before the commit, no new file is left.
///
/// Special files, such as pipes, are written directly, because they cannot be replaced. If the path
/// is a symbolic link to a file, that file is replaced, and the link is kept.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    /// Path of the temporary file, or `None` for a special file or after the commit.
    temporary: Option<PathBuf>,
    file: BufWriter<File>,
}

impl NewFile {
    /// Creates an empty file with `.new` appended to the name until the commit, or opens a special
    /// file.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let special = std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
        let temporary = (!special).then(|| {
            let mut name = path.to_owned().into_os_string();
            name.push(".new");
            PathBuf::from(name)
        });
        let file = match &temporary {
            Some(temporary) => File::create(temporary)?,
            None => File::options().write(true).open(path)?,
        };
        Ok(Self { path: path.to_owned(), temporary, file: BufWriter::new(file) })
    }

    /// Writes the rest of the file to disk, and renames it to its final path.
    ///
    /// # Errors
    /// If the file cannot be written completely. In this case, no partial file is left.
    pub fn commit(mut self) -> io::Result<()> {
        self.file.flush()?;
        let Some(temporary) = &self.temporary else { return Ok(()) };
        self.file.get_ref().sync_all()?;
        std::fs::rename(temporary, &self.path)?;
        self.temporary = None;
        // The directory must be synchronized too, because otherwise a crash of the machine could
        // lose the new name.
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
        if let Some(temporary) = &self.temporary {
            // A partial file is useless. An error is ignored, because the caller reports why the
            // write failed.
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// Replaces a file by the given parts, one after the other, as [`NewFile`] does.
///
/// # Errors
/// If the file cannot be written. In this case, no partial file is left.
pub fn replace_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_only_the_old_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("model");
        replace_file(&path, &[b"one"]).expect("written");
        replace_file(&path, &[b"tw", b"o"]).expect("replaced");
        assert_eq!(std::fs::read(&path).expect("read"), b"two");
        let occupied = directory.path().join("directory");
        std::fs::create_dir(&occupied).expect("made");
        replace_file(&occupied, &[b"three"]).expect_err("a directory has this name");
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 2);
    }

    #[test]
    fn dropped_files_vanish_and_devices_are_written_in_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut file = NewFile::create(&directory.path().join("table")).expect("begun");
        file.write_all(b"half").expect("written");
        drop(file);
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0);
        replace_file(Path::new("/dev/null"), &[b"lost"]).expect("written");
        let full = replace_file(Path::new("/dev/full"), &[b"too much"]).expect_err("it is full");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert!(!std::fs::metadata("/dev/full").expect("still there").is_file());
    }
}
