//! Pictures in folders, one folder a class.

use crate::error::Error;
use crate::inputs::Source;
use std::path::{Path, PathBuf};

/// Classes by name, and which picture is of which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// Their folders' names, in order.
    pub names: Vec<String>,
    /// Every picture with the number of its class, class by class, each class's in order of their names.
    pub pictures: Vec<(PathBuf, usize)>,
}

impl Classes {
    /// The folders in a folder, and the pictures below each.
    ///
    /// # Errors
    /// If there is no folder in it, or no picture in one of them.
    pub fn open(folder: &Path) -> Result<Classes, Error> {
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(Error::file(folder))? {
            let path = entry.map_err(Error::file(folder))?.path();
            if path.is_dir() {
                folders.push(path);
            }
        }
        folders.sort();
        if folders.is_empty() {
            let problem = "no folders in it; pictures go into one folder for each class";
            return Err(Error::Input(format!("{}: {problem}", folder.display())));
        }
        let mut classes = Classes { names: Vec::new(), pictures: Vec::new() };
        for (class, folder) in folders.into_iter().enumerate() {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            classes.pictures.extend(Source::files(&[folder])?.into_iter().map(|file| (file, class)));
            classes.names.push(name);
        }
        Ok(classes)
    }

    /// All files.
    pub fn files(&self) -> Vec<PathBuf> {
        self.pictures.iter().map(|(file, _)| file.clone()).collect()
    }

    /// Pictures of each class.
    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes = vec![0; self.names.len()];
        self.pictures.iter().for_each(|(_, class)| sizes[*class] += 1);
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_a_folder_and_one_without_pictures_is_named() {
        let root = tempfile::tempdir().expect("a folder");
        for file in ["wood/b.jpg", "wood/deep/a.png", "sea/c.jpeg", "sea/notes.txt"] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, b"").expect("written");
        }
        std::fs::write(root.path().join("beside.jpg"), b"").expect("written");
        let classes = Classes::open(root.path()).expect("opened");
        assert_eq!(classes.names, ["sea", "wood"]);
        assert_eq!(classes.sizes(), [1, 2]);
        assert!(classes.pictures.iter().all(|(file, _)| !file.ends_with("beside.jpg")));

        std::fs::create_dir(root.path().join("void")).expect("made");
        let said = Classes::open(root.path()).expect_err("refused").to_string();
        assert!(said.contains("void") && said.contains("no pictures"), "{said}");
        let said = Classes::open(&root.path().join("wood/deep")).expect_err("refused").to_string();
        assert!(said.contains("one folder for each class"), "{said}");
    }
}
