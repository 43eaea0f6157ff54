//! Tables that all ranks make and rank 0 writes, in order: as `.npy`, or as text with a row a line.

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

/// Lets all ranks compute the rows of a table, at most `block` of them at a time, and hands them to `write` at rank 0, in order. So
/// rank 0 never holds more than a block of each rank.
///
/// # Errors
/// If one rank cannot compute or write its part, or ranks are lost.
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

/// A table under way. It is in its place when it is complete ([`TableFile::keep`]), and leaves nothing if it never is.
#[derive(Debug)]
pub struct TableFile {
    path: PathBuf,
    to: TableSink,
    kind: ElementKind,
    /// Numbers of a row.
    columns: usize,
    is_text: bool,
}

#[derive(Debug)]
enum TableSink {
    File(NewFile),
    Stdout(BufWriter<Stdout>),
}

impl TableFile {
    /// Begins a table of this many rows of `columns` numbers, an `.npy` file or by any other name text; `-` is standard output.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn create(path: &Path, kind: ElementKind, rows: u64, columns: usize) -> Result<Self, Error> {
        let is_text = ending(path).as_deref() != Some("npy");
        let to = if path.as_os_str() == "-" {
            TableSink::Stdout(BufWriter::new(std::io::stdout()))
        } else {
            TableSink::File(NewFile::create(path).map_err(Error::file(path))?)
        };
        let mut table = Self { path: path.to_owned(), to, kind, columns, is_text };
        if !is_text {
            // A column alone is no table to NumPy.
            let shape = [rows, columns as u64];
            table.put(&npy::Header::write(kind, if columns == 1 { &shape[..1] } else { &shape }))?;
        }
        Ok(table)
    }

    /// Whether rows are lines.
    pub fn is_text(&self) -> bool {
        self.is_text
    }

    /// Whether it goes to standard output.
    pub fn is_stdout(&self) -> bool {
        matches!(self.to, TableSink::Stdout(_))
    }

    /// Writes rows, given as the bytes of their numbers, little-endian. In text, each has its name before it, if it has one.
    ///
    /// # Errors
    /// If they cannot be written.
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

    /// Puts it in its place.
    ///
    /// # Errors
    /// If it cannot be written to its end; nothing of it stays.
    pub fn keep(self) -> Result<(), Error> {
        let kept = match self.to {
            TableSink::File(file) => file.keep(),
            TableSink::Stdout(mut to) => to.flush(),
        };
        kept.map_err(Error::file(&self.path))
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
        let directory = tempfile::tempdir().expect("a folder");
        let at = |name: &str| directory.path().join(name);
        let bytes = [0.5f32, 2.0, -3.0, 0.1].map(f32::to_le_bytes).concat();
        let write = |name: &str| {
            let mut table = TableFile::create(&at(name), ElementKind::F32, 2, 2).expect("begun");
            table.write(&bytes[..8], &["a".into()]).expect("written");
            table.write(&bytes[8..], &["b".into()]).expect("written");
            table.keep().expect("kept");
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
