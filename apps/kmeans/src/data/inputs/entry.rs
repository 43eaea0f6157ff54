//! The files that inputs refer to: plain files, pictures below a directory, and pictures in a tar
//! file.

use super::formats::{PICTURE_ENDINGS, ending};
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A file, or a member of a tar file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputEntry {
    /// Name of the file. For a member of a tar file, it is the name of the tar file followed by
    /// that of the member.
    #[serde(with = "bytes_of_path")]
    pub name: PathBuf,
    /// Position in a tar file, or `None` for a plain file.
    within: Option<ArchiveMember>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ArchiveMember {
    #[serde(with = "bytes_of_path")]
    archive: PathBuf,
    /// Offset of the contents in the tar file, in bytes.
    start: u64,
    /// Length of the contents in bytes.
    length: u64,
}

/// Reads the contents of an entry from the start.
#[derive(Debug)]
pub(crate) struct EntryReader {
    file: File,
    start: u64,
    length: u64,
    at: u64,
}

impl InputEntry {
    /// Creates an entry for a plain file.
    pub fn file(name: PathBuf) -> Self {
        Self { name, within: None }
    }

    /// Returns whether the entry is in a tar file.
    pub fn is_packed(&self) -> bool {
        self.within.is_some()
    }

    /// Returns the files of the paths. Directories and tar files are replaced by the pictures in
    /// them, sorted by name. Each path is examined by one rank.
    ///
    /// # Errors
    /// If a path cannot be read, or a directory or tar file contains no picture.
    pub fn find(peers: &PeerRanks<'_>, paths: &[PathBuf]) -> Result<Vec<Self>, Error> {
        let found = peers.deal(paths.len(), |mine| mine.iter().map(|&i| below(&paths[i])).collect())?;
        Ok(found.into_iter().flatten().collect())
    }

    pub(crate) fn open(&self) -> io::Result<EntryReader> {
        let Some(ArchiveMember { archive, start, length }) = &self.within else {
            let file = File::open(&self.name)?;
            let length = file.metadata()?.len();
            return Ok(EntryReader { file, start: 0, length, at: 0 });
        };
        let mut file = File::open(archive)?;
        file.seek(SeekFrom::Start(*start))?;
        Ok(EntryReader { file, start: *start, length: *length, at: 0 })
    }
}

fn below(path: &Path) -> Result<Vec<InputEntry>, Error> {
    let mut found = Vec::new();
    if path.is_dir() {
        collect(path, &mut found)?;
    } else if ending(path).as_deref() == Some("tar") {
        found = archived(path).map_err(Error::file(path))?;
    } else {
        return Ok(vec![InputEntry::file(path.to_owned())]);
    }
    if found.is_empty() {
        let (path, endings) = (path.display(), PICTURE_ENDINGS.join(", ."));
        return Err(Error::Input(format!(
            "{path}: no pictures (.{endings}) in it; name a directory or tar file with pictures"
        )));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Adds the pictures below a directory. Links to directories are not followed.
fn collect(directory: &Path, found: &mut Vec<InputEntry>) -> Result<(), Error> {
    for entry in std::fs::read_dir(directory).map_err(Error::file(directory))? {
        let entry = entry.map_err(Error::file(directory))?;
        let kind = entry.file_type().map_err(Error::file(&entry.path()))?;
        if kind.is_dir() {
            collect(&entry.path(), found)?;
        } else if is_picture(&entry.path()) {
            found.push(InputEntry::file(entry.path()));
        }
    }
    Ok(())
}

/// Returns the pictures in a tar file. Only the headers are read.
fn archived(path: &Path) -> io::Result<Vec<InputEntry>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut found = Vec::new();
    for entry in tar::Archive::new(file).entries_with_seek()? {
        let entry = entry?;
        let name = entry.path()?;
        if !entry.header().entry_type().is_file() || !is_picture(&name) {
            continue;
        }
        let (start, length) = (entry.raw_file_position(), entry.size());
        if start.checked_add(length).is_none_or(|end| end > size) {
            return Err(io::Error::other(format!("ends within {}; it may be truncated", name.display())));
        }
        let within = Some(ArchiveMember { archive: path.to_owned(), start, length });
        found.push(InputEntry { name: path.join(&name), within });
    }
    Ok(found)
}

fn is_picture(path: &Path) -> bool {
    ending(path).is_some_and(|e| PICTURE_ENDINGS.contains(&e.as_str()))
}

impl Read for EntryReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.length.saturating_sub(self.at);
        let most = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.file.read(&mut into[..most])?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for EntryReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let place = at.and_then(|at| Some((at, self.start.checked_add(at)?)));
        let (at, place) = place.ok_or(io::ErrorKind::InvalidInput)?;
        self.file.seek(SeekFrom::Start(place))?;
        self.at = at;
        Ok(at)
    }
}

/// Serializes names as bytes, because they need not be text.
mod bytes_of_path {
    use super::{OsStrExt, OsStringExt, Path, PathBuf};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Vec::deserialize(from).map(|bytes| std::ffi::OsString::from_vec(bytes).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, names: &[&str]) {
        for name in names {
            let path = directory.join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, name.as_bytes()).expect("written");
        }
    }

    fn read(entry: &InputEntry) -> String {
        let mut text = String::new();
        entry.open().and_then(|mut section| section.read_to_string(&mut text)).expect("read");
        text
    }

    #[test]
    fn a_tar_file_lists_pictures_in_directory_order() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("all");
        let names = ["z.PNG", "c/b.jpeg", "c.jpg", "a.jpg", "notes.txt", "c/deep/a.png"];
        write(&directory, &names);
        let archive = root.path().join("all.tar");
        let mut tar = tar::Builder::new(File::create(&archive).expect("made"));
        tar.append_dir_all(".", &directory).expect("added");
        tar.finish().expect("written");

        let find = |path: &Path| InputEntry::find(&PeerRanks::alone(), &[path.to_owned()]).expect("found");
        let (here, packed) = (find(&directory), find(&archive));
        let order = ["a.jpg", "c/b.jpeg", "c/deep/a.png", "c.jpg", "z.PNG"];
        assert_eq!(here.iter().map(|e| e.name.clone()).collect::<Vec<_>>(), order.map(|n| directory.join(n)));
        assert_eq!(packed.iter().map(read).collect::<Vec<_>>(), order);
        assert_eq!(here.iter().map(read).collect::<Vec<_>>(), order);
        assert_eq!(packed[1].name, archive.join("c/b.jpeg"));

        let mut part = packed[2].open().expect("opened");
        part.seek(SeekFrom::End(-5)).expect("there is more before it");
        let mut rest = String::new();
        part.read_to_string(&mut rest).expect("read");
        assert_eq!(rest, "a.png");
        part.seek(SeekFrom::Current(-100)).expect_err("nothing is before the beginning");
    }

    #[test]
    fn inputs_without_pictures_and_truncated_ones_are_named() {
        let root = tempfile::tempdir().expect("a directory");
        write(root.path(), &["in/a.jpg", "void/notes.txt"]);
        let refused = |path: &Path| below(path).expect_err("refused").to_string();
        let message = refused(&root.path().join("void"));
        assert!(message.contains("void") && message.contains("no pictures"), "{message}");

        let archive = root.path().join("cut.tar");
        let mut tar = tar::Builder::new(Vec::new());
        tar.append_dir_all("in", root.path().join("in")).expect("added");
        let whole = tar.into_inner().expect("written");
        // The headers of the directory and of the picture, and half of the picture.
        std::fs::write(&archive, &whole[..1028]).expect("written");
        let message = refused(&archive);
        assert!(message.contains("cut.tar"), "{message}");
    }
}
