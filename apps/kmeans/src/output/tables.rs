//! Tables that all ranks compute and rank 0 writes in order, as `.npy` or as text with one row per
//! line.

use crate::data::inputs::formats::ElementKind;
use crate::data::inputs::formats::ending;
use crate::data::npy;
use crate::data::partition::rank_range;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use cool::Element;
use cool_map::NewFile;
use std::io::{BufWriter, Stdout, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Computes the rows of a table on all ranks, at most `block` rows per rank at a time, and passes
/// them to `write` at rank 0, in order. All ranks must call this. Rank 0 never holds more than one
/// block per rank.
///
/// # Errors
/// If a rank cannot compute or write its part, or ranks are lost.
pub fn in_blocks<T: Element + Default>(
    peers: &PeerRanks<'_>,
    rows: u64,
    block: u64,
    mut compute: impl FnMut(Range<u64>) -> Result<Vec<T>, Error>,
    mut write: impl FnMut(Range<u64>, Vec<T>) -> Result<(), Error>,
) -> Result<(), Error> {
    let step = block.max(1) * peers.size() as u64;
    for start in (0..rows).step_by(step as usize) {
        let end = rows.min(start + step);
        let mine = rank_range(end - start, peers.size(), peers.rank());
        let part = peers.agree(compute(start + mine.start..start + mine.end))?;
        let all = peers.gather_all(part)?;
        peers.agree(if peers.leads() { write(start..end, all) } else { Ok(()) })?;
    }
    Ok(())
}

/// A table that is being written. It replaces the target file only when it is complete and the
/// caller calls [`TableFile::commit`]. A table that is dropped before leaves no file.
#[derive(Debug)]
pub struct TableFile {
    path: PathBuf,
    to: TableSink,
    kind: ElementKind,
    /// Numbers per row.
    columns: usize,
    is_text: bool,
}

#[derive(Debug)]
enum TableSink {
    File(NewFile),
    Stdout(BufWriter<Stdout>),
}

impl TableFile {
    /// Starts a table with this many rows of `columns` numbers. The format is `.npy` or, for any
    /// other name, text; `-` is standard output.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path, kind: ElementKind, rows: u64, columns: usize) -> Result<Self, Error> {
        let is_text = ending(path).as_deref() != Some("npy");
        let to = if path.as_os_str() == "-" {
            TableSink::Stdout(BufWriter::new(std::io::stdout()))
        } else {
            TableSink::File(NewFile::create(path).map_err(Error::file(path))?)
        };
        let mut table = Self { path: path.to_owned(), to, kind, columns, is_text };
        if !is_text {
            // NumPy stores a single column as an array of one dimension.
            let shape = [rows, columns as u64];
            table.put(&npy::Header::write(kind, if columns == 1 { &shape[..1] } else { &shape }))?;
        }
        Ok(table)
    }

    /// Returns whether the table is text.
    pub fn is_text(&self) -> bool {
        self.is_text
    }

    /// Returns whether the table goes to standard output.
    pub fn is_stdout(&self) -> bool {
        matches!(self.to, TableSink::Stdout(_))
    }

    /// Writes rows, given as the little-endian bytes of their numbers. In text, each row is
    /// preceded by its name, if it has one.
    ///
    /// # Errors
    /// If the rows cannot be written.
    pub fn write(&mut self, rows: &[u8], names: &[String]) -> Result<(), Error> {
        if !self.is_text {
            return self.put(rows);
        }
        let mut text = String::new();
        let mut numbers = Vec::with_capacity(self.columns);
        for (i, row) in rows.chunks_exact(self.columns * self.kind.bytes()).enumerate() {
            numbers.clear();
            self.kind.decode(row, &mut numbers);
            let name = names.get(i).cloned();
            let fields: Vec<String> = name.into_iter().chain(numbers.iter().map(f64::to_string)).collect();
            text += &fields.join(" ");
            text.push('\n');
        }
        self.put(text.as_bytes())
    }

    /// Moves the complete table to its final place.
    ///
    /// # Errors
    /// If the table cannot be written completely. In this case, no file is left.
    pub fn commit(self) -> Result<(), Error> {
        let committed = match self.to {
            TableSink::File(file) => file.commit(),
            TableSink::Stdout(mut to) => to.flush(),
        };
        committed.map_err(Error::file(&self.path))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = match &mut self.to {
            TableSink::File(file) => file.write_all(bytes),
            TableSink::Stdout(to) => to.write_all(bytes),
        };
        written.map_err(Error::file(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::inputs::array::ArrayFile;

    #[test]
    fn a_table_is_written_as_an_array_or_as_text() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let bytes = [0.5f32, 2.0, -3.0, 0.1].map(f32::to_le_bytes).concat();
        let write = |name: &str| {
            let mut table = TableFile::create(&at(name), ElementKind::F32, 2, 2).expect("begun");
            table.write(&bytes[..8], &["a".into()]).expect("written");
            table.write(&bytes[8..], &["b".into()]).expect("written");
            table.commit().expect("kept");
        };
        write("t.npy");
        let array = ArrayFile::open(&at("t.npy")).expect("an array");
        assert_eq!((array.rows, array.dims, array.kind), (2, 2, ElementKind::F32));
        write("t.txt");
        let text = std::fs::read_to_string(at("t.txt")).expect("read");
        assert_eq!(text, "a 0.5 2\nb -3 0.10000000149011612\n");
        drop(TableFile::create(&at("half.npy"), ElementKind::U8, 9, 1).expect("begun"));
        assert!(!at("half.npy").exists() && !at("half.npy.new").exists());
    }

    #[test]
    fn blocks_arrive_in_order_with_each_row_once() {
        let mut all = Vec::new();
        let compute = |rows: Range<u64>| Ok(rows.collect::<Vec<u64>>());
        in_blocks(&PeerRanks::alone(), 10, 3, compute, |rows, part| {
            assert_eq!(part.len() as u64, rows.end - rows.start);
            all.extend(part);
            Ok(())
        })
        .expect("done");
        assert_eq!(all, (0..10).collect::<Vec<u64>>());
    }
}
