//! Verification of a copy against its manifest: all files are read from the disk again.

use crate::block_files::{drop_cache, has_content, open_regular};
use crate::manifest_scan::{in_parallel, item_path, items_at};
use cool_content::{ItemContent, Manifest};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the items that differ from the manifest, each with a description of the difference.
pub(crate) fn find_damage(tree: &Path, manifest: &Manifest) -> Vec<(String, String)> {
    let checked = in_parallel(manifest.items(), |item| {
        let path = item_path(tree, &item.path);
        let intact = match &item.content {
            ItemContent::Folder => path.symlink_metadata().map(|about| about.is_dir()),
            ItemContent::Link(to) => std::fs::read_link(&path).map(|found| found == OsStr::from_bytes(to)),
            ItemContent::File(content) => open_file(&path).and_then(|file| {
                drop_cache(&file)?;
                has_content(&file, content, manifest)
            }),
        };
        Ok(match intact {
            Ok(true) => None,
            Ok(false) => Some((item.path.to_string(), "differs from what was put".to_owned())),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Some((item.path.to_string(), "is shorter than what was put".to_owned()))
            }
            Err(error) => Some((item.path.to_string(), error.to_string())),
        })
    });
    let mut found: Vec<_> = checked.unwrap_or_default().into_iter().flatten().collect();
    let known: BTreeSet<_> = manifest.items().iter().map(|item| &item.path).collect();
    // A directory that cannot be read was found above.
    let extra = items_at(tree).unwrap_or_default().into_iter().filter(|path| !known.contains(path));
    found.extend(extra.map(|path| (path.to_string(), "was not put".to_owned())));
    found
}

/// Opens a file, but not the target of a symbolic link.
fn open_file(path: &Path) -> io::Result<File> {
    if path.symlink_metadata()?.is_file() {
        open_regular(path)
    } else {
        Err(io::Error::other("is not a file"))
    }
}
