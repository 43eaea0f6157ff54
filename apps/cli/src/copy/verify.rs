//! A file or folder that was copied, read again from the disk.

use super::scan::{in_parallel, items_at, place};
use super::target::{is_right, read_from_disk};
use cool_content::{ItemContent, Manifest};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is not as the manifest says: for each item why.
pub(crate) fn damages(tree: &Path, manifest: &Manifest) -> Vec<(String, String)> {
    let looked = in_parallel(manifest.items(), |item| {
        let path = place(tree, &item.path);
        let right = match &item.content {
            ItemContent::Folder => path.symlink_metadata().map(|about| about.is_dir()),
            ItemContent::Link(to) => std::fs::read_link(&path).map(|found| found == OsStr::from_bytes(to)),
            ItemContent::File(content) => open_file(&path).and_then(|file| {
                read_from_disk(&file)?;
                is_right(&file, content, manifest)
            }),
        };
        Ok(match right {
            Ok(true) => None,
            Ok(false) => Some((item.path.to_string(), "is not what was put".to_owned())),
            // It ends too early.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Some((item.path.to_string(), "is shorter than what was put".to_owned()))
            }
            Err(error) => Some((item.path.to_string(), error.to_string())),
        })
    });
    let mut found: Vec<_> = looked.unwrap_or_default().into_iter().flatten().collect();
    let known: BTreeSet<_> = manifest.items().iter().map(|item| &item.path).collect();
    // What cannot be walked was found above.
    let more = items_at(tree).unwrap_or_default().into_iter().filter(|path| !known.contains(path));
    found.extend(more.map(|path| (path.to_string(), "was not put".to_owned())));
    found
}

/// A file itself, not what a link leads to.
fn open_file(path: &Path) -> io::Result<File> {
    if path.symlink_metadata()?.is_file() { File::open(path) } else { Err(io::Error::other("is no file")) }
}
