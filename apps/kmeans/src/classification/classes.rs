//! Pictures in directories, one directory per class.

use crate::data::inputs::entry::InputEntry;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use std::path::{Path, PathBuf};

/// Classes by name, and the pictures of each class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassDirectories {
    /// Names of the directories, in order.
    pub names: Vec<String>,
    /// Every picture with the number of its class, ordered by class and name.
    pub pictures: Vec<(InputEntry, usize)>,
}

impl ClassDirectories {
    /// Opens the directories in a directory or tar file, with the pictures below each. In a tar
    /// file, a further directory may enclose them all.
    ///
    /// # Errors
    /// If there is no directory, or one of them contains no picture.
    pub fn open(peers: &PeerRanks<'_>, directory: &Path) -> Result<ClassDirectories, Error> {
        peers.agree(if peers.leads() { check_no_empty_class(directory) } else { Ok(()) })?;
        let entries = InputEntry::find(peers, &[directory.to_owned()])?;
        let packed = entries.iter().all(InputEntry::is_packed);
        let root = if packed { innermost(directory.to_owned(), &entries) } else { directory.to_owned() };
        let mut classes = ClassDirectories { names: Vec::new(), pictures: Vec::new() };
        let mut last = None;
        for entry in &entries {
            let Some(class) = class_directory(&root, entry) else { continue };
            if last.as_ref() != Some(&class) {
                classes.names.push(class.file_name().unwrap_or_default().to_string_lossy().into_owned());
                last = Some(class);
            }
            classes.pictures.push((entry.clone(), classes.names.len() - 1));
        }
        if classes.names.is_empty() {
            let problem = "no directories in it; put the pictures into one directory per class";
            return Err(Error::Input(format!("{}: {problem}", directory.display())));
        }
        Ok(classes)
    }

    /// Returns all pictures.
    pub fn entries(&self) -> Vec<&InputEntry> {
        self.pictures.iter().map(|(entry, _)| entry).collect()
    }

    /// Returns the number of pictures of each class.
    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes = vec![0; self.names.len()];
        self.pictures.iter().for_each(|(_, class)| sizes[*class] += 1);
        sizes
    }
}

/// Returns the directory of a picture's class, or `None` if the picture is in no class.
fn class_directory(root: &Path, entry: &InputEntry) -> Option<PathBuf> {
    let mut parts = entry.name.strip_prefix(root).ok()?.components();
    let first = parts.next()?;
    parts.next().map(|_| root.join(first))
}

/// Returns the directory that contains the directories of the classes, below directories that
/// contain nothing else.
fn innermost(mut root: PathBuf, entries: &[InputEntry]) -> PathBuf {
    loop {
        let mut directories = entries.iter().map(|entry| class_directory(&root, entry));
        let Some(Some(only)) = directories.next() else { return root };
        let has_others = directories.any(|other| other.as_ref() != Some(&only));
        if has_others || entries.iter().all(|entry| class_directory(&only, entry).is_none()) {
            return root;
        }
        root = only;
    }
}

/// Returns an error if a directory contains no picture, because it would otherwise be ignored
/// without notice.
fn check_no_empty_class(directory: &Path) -> Result<(), Error> {
    if !directory.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory).map_err(Error::file(directory))? {
        let path = entry.map_err(Error::file(directory))?.path();
        if path.is_dir() {
            InputEntry::find(&PeerRanks::alone(), &[path])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(directory: &Path) -> Result<ClassDirectories, Error> {
        ClassDirectories::open(&PeerRanks::alone(), directory)
    }

    fn write(root: &Path, names: &[&str]) {
        for file in names {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, b"").expect("written");
        }
    }

    #[test]
    fn a_class_is_a_directory_and_an_empty_one_is_named() {
        let root = tempfile::tempdir().expect("a directory");
        write(root.path(), &["wood/b.jpg", "wood/deep/a.png", "sea/c.jpeg", "sea/notes.txt", "beside.jpg"]);
        let classes = open(root.path()).expect("opened");
        assert_eq!(classes.names, ["sea", "wood"]);
        assert_eq!(classes.sizes(), [1, 2]);
        assert!(classes.pictures.iter().all(|(entry, _)| !entry.name.ends_with("beside.jpg")));

        std::fs::create_dir(root.path().join("void")).expect("made");
        let message = open(root.path()).expect_err("refused").to_string();
        assert!(message.contains("void") && message.contains("no pictures"), "{message}");
        let message = open(&root.path().join("wood/deep")).expect_err("refused").to_string();
        assert!(message.contains("one directory per class"), "{message}");
    }

    #[test]
    fn a_tar_file_has_the_same_classes_as_its_directory() {
        let root = tempfile::tempdir().expect("a directory");
        write(&root.path().join("scenes"), &["wood/b.jpg", "sea/c.jpeg", "sea/d.jpeg"]);
        let archive = root.path().join("scenes.tar");
        let mut tar = tar::Builder::new(std::fs::File::create(&archive).expect("made"));
        tar.append_dir_all("around", root.path().join("scenes")).expect("added");
        tar.finish().expect("written");
        let (here, packed) =
            (open(&root.path().join("scenes")).expect("opened"), open(&archive).expect("opened"));
        assert_eq!((&here.names, here.sizes()), (&packed.names, packed.sizes()));
        assert_eq!(packed.names, ["sea", "wood"]);
    }
}
