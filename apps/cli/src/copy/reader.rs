//! Blocks out of the files of a source or a copy, checked as they are read.

use super::fault::Fault;
use super::scan::place;
use cool_content::{Digest, Manifest, Occurrences};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) struct Reader {
    /// One after the other: a copy that has left the first is at the next.
    roots: Vec<PathBuf>,
    manifest: Arc<Manifest>,
    occurrences: Occurrences,
    /// The file that was read last, and below which root.
    open: Option<(usize, u32, File)>,
}

impl Reader {
    /// Of what is at `root`, which is as the manifest says.
    pub(super) fn new(root: PathBuf, manifest: Arc<Manifest>) -> Reader {
        Reader { roots: vec![root], occurrences: Occurrences::new(&manifest), manifest, open: None }
    }

    /// It may be here from now on.
    pub(super) fn may_move_to(&mut self, root: PathBuf) {
        self.roots.push(root);
    }

    /// Reads blocks, one behind the other: `bytes` in all.
    pub(super) fn blocks(&mut self, blocks: &[u32], bytes: usize) -> Result<Vec<u8>, Fault> {
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

    fn block(&mut self, root: usize, block: u32, bytes: &mut Vec<u8>) -> Result<(), Fault> {
        let about = self.manifest.blocks()[block as usize];
        // Every block of a manifest is in a file.
        let Some(at) = self.occurrences.of(block).first() else { return Ok(()) };
        let path = place(&self.roots[root], &self.manifest.items()[at.item as usize].path);
        if self.open.as_ref().is_none_or(|(of, item, _)| (*of, *item) != (root, at.item)) {
            self.open = Some((root, at.item, File::open(&path).map_err(Fault::at(&path))?));
        }
        let start = bytes.len();
        bytes.resize(start + about.bytes as usize, 0);
        let block = &mut bytes[start..];
        let read = self.open.as_ref().map_or(Ok(()), |(.., file)| file.read_exact_at(block, at.offset));
        match read {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(Fault::Changed(path)),
            Err(reason) => Err(Fault::Path { path, reason }),
            Ok(()) if Digest::of(block) != about.digest => Err(Fault::Changed(path)),
            Ok(()) => Ok(()),
        }
    }
}
