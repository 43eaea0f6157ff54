//! Reads blocks from the files of a source or a copy, and checks them.

use crate::block_files::open_regular;
use crate::errors::CopyFileError;
use crate::manifest_scan::item_path;
use cool_content::{Digest, Manifest, Occurrences};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Reads the blocks of a manifest, and keeps the last file open.
pub(crate) struct BlockReader {
    /// Paths of the source or copy. They are tried in this order, because a complete copy is moved
    /// from the first path to the next.
    roots: Vec<PathBuf>,
    manifest: Arc<Manifest>,
    occurrences: Occurrences,
    /// The file that was read last: the index of its root, its item, and the file.
    open: Option<(usize, u32, File)>,
}

impl BlockReader {
    /// Returns a reader of the files below `root`.
    pub(crate) fn new(root: PathBuf, manifest: Arc<Manifest>) -> BlockReader {
        BlockReader { roots: vec![root], occurrences: Occurrences::new(&manifest), manifest, open: None }
    }

    /// Adds a root to which the files are about to be moved.
    pub(crate) fn add_root(&mut self, root: PathBuf) {
        self.roots.push(root);
    }

    /// Returns the concatenated bytes of these blocks, `bytes` bytes in total.
    ///
    /// # Errors
    /// If a block cannot be read, or its bytes are not those of the manifest.
    pub(crate) fn blocks(&mut self, blocks: &[u32], bytes: usize) -> Result<Vec<u8>, CopyFileError> {
        let mut read = Vec::with_capacity(bytes);
        for block in blocks {
            let start = read.len();
            let mut outcome = Ok(());
            for root in 0..self.roots.len() {
                read.truncate(start);
                outcome = self.block(root, *block, &mut read);
                if outcome.is_ok() {
                    break;
                }
            }
            outcome?;
        }
        Ok(read)
    }

    fn block(&mut self, root: usize, block: u32, bytes: &mut Vec<u8>) -> Result<(), CopyFileError> {
        let about = self.manifest.blocks()[block as usize];
        // Every block of a manifest occurs in a file.
        let Some(at) = self.occurrences.of(block).first() else { return Ok(()) };
        let path = item_path(&self.roots[root], &self.manifest.items()[at.item as usize].path);
        if self.open.as_ref().is_none_or(|(of, item, _)| (*of, *item) != (root, at.item)) {
            self.open = Some((root, at.item, open_regular(&path).map_err(CopyFileError::at(&path))?));
        }
        let start = bytes.len();
        bytes.resize(start + about.bytes as usize, 0);
        let block = &mut bytes[start..];
        let read = self.open.as_ref().map_or(Ok(()), |(.., file)| file.read_exact_at(block, at.offset));
        match read {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(CopyFileError::Changed(path))
            }
            Err(reason) => Err(CopyFileError::Path { path, reason }),
            Ok(()) if Digest::of(block) != about.digest => Err(CopyFileError::Changed(path)),
            Ok(()) => Ok(()),
        }
    }
}
