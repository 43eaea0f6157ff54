//! Points as lines of text: the papers' format, `pictureID rowID colID f1 f2 ...` separated by
//! blanks, and CSV.
//!
//! Files are divided into pieces of a mebibyte, and each rank counts the lines of some pieces. All
//! ranks then know in which piece each point starts, so a rank reads only the pieces of its own
//! points. Blank lines are skipped. A missing, additional or non-finite value is an error that
//! names the file and the line.
//!
//! CSV: numbers separated by commas, semicolons or tabs, depending on the first line; numbers may
//! be quoted. If the first line contains anything other than numbers, it is a header.

use super::formats::{PointOrigin, ending};
use crate::data::grid::MAX_DIMS;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use cool_map::threads;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Maximum length of a line in bytes, enough for 65,536 numbers of 60 characters.
const MAX_LINE: u64 = 4 << 20;

/// Bytes per piece. A line belongs to the piece in which it starts.
const PIECE: u64 = 1 << 20;

/// Text files that together contain the points, in the given order.
#[derive(Debug)]
pub struct TextLines {
    files: Vec<TextFile>,
    pieces: Vec<FilePiece>,
    /// For each piece, the number of points in it and in all previous pieces.
    ends: Vec<u64>,
    /// Numbers per point.
    pub dims: usize,
}

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum LineFormat {
    /// Name, row, column and numbers, separated by blanks.
    Papers,
    /// Numbers separated by this byte.
    Separated(u8),
}

#[derive(Debug)]
struct TextFile {
    path: PathBuf,
    format: TextFormat,
}

/// The format of a file, detected from its start.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct TextFormat {
    form: LineFormat,
    /// Length of the file in bytes.
    length: u64,
    /// Numbers per point according to the first line, which may be a header, or `None` if it has
    /// none.
    dims: Option<usize>,
    has_header: bool,
}

#[derive(Clone, Copy, Debug)]
struct FilePiece {
    file: usize,
    /// Bytes of the file before the piece.
    start: u64,
    /// Lines of the file before the piece.
    lines: u64,
}

/// Number of all lines, and of lines with points, that start in a piece.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct LineCount {
    lines: u64,
    points: u64,
}

impl TextLines {
    /// Counts the files' lines on all ranks and threads. Points have `dims` numbers; by default as
    /// many as the first line.
    ///
    /// # Errors
    /// If a file cannot be read, or files differ in the number of dimensions.
    pub fn open(
        peers: &PeerRanks<'_>,
        paths: &[PathBuf],
        dims: Option<usize>,
        on: usize,
    ) -> Result<Self, Error> {
        let format = peers.deal(paths.len(), |mine| mine.iter().map(|&i| format(&paths[i])).collect())?;
        let dims = agreed_dims(paths, &format, dims)?;
        let files: Vec<TextFile> =
            paths.iter().cloned().zip(format).map(|(path, format)| TextFile { path, format }).collect();
        let mut pieces: Vec<FilePiece> = Vec::new();
        for (file, TextFile { format, .. }) in files.iter().enumerate() {
            let starts = (0..format.length.div_ceil(PIECE)).map(|piece| piece * PIECE);
            pieces.extend(starts.map(|start| FilePiece { file, start, lines: 0 }));
        }
        let mut lines = Self { files, pieces, ends: Vec::new(), dims };
        let counts = peers.deal(lines.pieces.len(), |mine| {
            threads::map(on, mine.len(), |i| lines.count(mine[i])).into_iter().collect()
        })?;
        let (mut points, mut before) = (0, 0);
        for (piece, count) in lines.pieces.iter_mut().zip(counts) {
            before = if piece.start == 0 { 0 } else { before };
            piece.lines = before;
            before += count.lines;
            points += count.points;
            lines.ends.push(points);
        }
        Ok(lines)
    }

    /// Returns the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// Returns the total number of points.
    pub fn rows(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Passes the numbers of the given rows to `take`, row by row. The rows must ascend.
    ///
    /// # Errors
    /// If a line does not consist of the expected number of finite numbers.
    pub fn each(&self, rows: &[u64], mut take: impl FnMut(&[f64])) -> Result<(), Error> {
        let mut values = Vec::with_capacity(self.dims);
        self.visit(rows, |file, _, line| {
            values.clear();
            match file.format.form {
                LineFormat::Papers => papers(line, self.dims, &mut values),
                LineFormat::Separated(by) => separated(line, by, self.dims, &mut values),
            }?;
            take(&values);
            Ok(())
        })
    }

    /// Returns the origins of the given rows, which must ascend.
    ///
    /// # Errors
    /// If a line does not contain its origin.
    pub fn origins(&self, rows: &[u64]) -> Result<Vec<PointOrigin>, Error> {
        let mut origins = Vec::with_capacity(rows.len());
        self.visit(rows, |file, row, line| {
            origins.push(match file.format.form {
                LineFormat::Papers => place(&mut line.split_ascii_whitespace())?,
                LineFormat::Separated(_) => {
                    PointOrigin { file: file.path.display().to_string(), row, column: 0 }
                }
            });
            Ok(())
        })?;
        Ok(origins)
    }

    /// Passes the lines of the given rows to `take`. Adds the file's name and the line's number to
    /// its errors.
    fn visit(
        &self,
        rows: &[u64],
        mut take: impl FnMut(&TextFile, u64, &str) -> Result<(), String>,
    ) -> Result<(), Error> {
        let mut wanted = rows.iter().copied().peekable();
        while let Some(&next) = wanted.peek() {
            let piece = self.ends.partition_point(|&end| end <= next);
            let mut row = piece.checked_sub(1).map_or(0, |before| self.ends[before]);
            let (place, end) = (self.pieces[piece], self.ends[piece]);
            let file = &self.files[place.file];
            self.lines(piece, |number, line| {
                if wanted.next_if_eq(&row).is_some() {
                    let text = std::str::from_utf8(line).map_err(|_| "is not text".to_owned());
                    let taken = text.and_then(|text| take(file, row, text));
                    taken.map_err(|problem| file.at(place.lines + number, problem))?;
                }
                row += 1;
                let more = wanted.peek().is_some_and(|&next| next < end);
                Ok(if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            })?;
            if wanted.peek() == Some(&next) {
                return Err(file.changed());
            }
        }
        Ok(())
    }

    fn count(&self, piece: usize) -> Result<LineCount, Error> {
        let mut points = 0;
        let lines = self.lines(piece, |_, _| {
            points += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(LineCount { lines, points })
    }

    /// Passes the lines of points that start in a piece to `take`, with their numbers in the piece
    /// counted from 1, until `take` stops. Returns the number of lines.
    fn lines(
        &self,
        piece: usize,
        mut take: impl FnMut(u64, &[u8]) -> Result<ControlFlow<()>, Error>,
    ) -> Result<u64, Error> {
        let FilePiece { file, start, .. } = self.pieces[piece];
        let file = &self.files[file];
        let end = file.format.length.min(start + PIECE);
        let failed = |error| Error::file(&file.path)(error);
        let mut reader = BufReader::with_capacity(64 << 10, File::open(&file.path).map_err(failed)?);
        let mut at = start.saturating_sub(1);
        reader.seek(SeekFrom::Start(at)).map_err(failed)?;
        let mut line = Vec::new();
        if start > 0 {
            // Skips the rest of a line that starts in the previous piece.
            at +=
                Read::by_ref(&mut reader).take(end - at).read_until(b'\n', &mut line).map_err(failed)? as u64;
        }
        let mut header = file.format.has_header && start == 0;
        let mut number = 0;
        while at < end {
            line.clear();
            let read =
                Read::by_ref(&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).map_err(failed)?;
            if read == 0 {
                return Err(file.changed());
            }
            if read as u64 == MAX_LINE && line.last() != Some(&b'\n') {
                return Err(file.endless(at));
            }
            at += read as u64;
            number += 1;
            if is_blank(&line) || std::mem::take(&mut header) {
                continue;
            }
            if take(number, &line)?.is_break() {
                break;
            }
        }
        Ok(number)
    }
}

impl TextFile {
    fn at(&self, line: u64, problem: String) -> Error {
        Error::Line { path: self.path.clone(), line, problem }
    }

    fn changed(&self) -> Error {
        Error::Content { path: self.path.clone(), problem: "changed while it was being read".into() }
    }

    fn endless(&self, at: u64) -> Error {
        endless(&self.path, at)
    }
}

fn endless(path: &Path, at: u64) -> Error {
    let problem =
        format!("the line at byte {at} is longer than {MAX_LINE} bytes; it may not be a text file of points");
    Error::Content { path: path.to_owned(), problem }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

/// Detects the format of a file from its first line that is not blank.
fn format(path: &Path) -> Result<TextFormat, Error> {
    let failed = |error| Error::file(path)(error);
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let mut reader = BufReader::new(file);
    let (mut line, mut at) = (Vec::new(), 0);
    loop {
        line.clear();
        let read = Read::by_ref(&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).map_err(failed)?;
        if read as u64 == MAX_LINE && line.last() != Some(&b'\n') {
            return Err(endless(path, at));
        }
        at += read as u64;
        if read == 0 || !is_blank(&line) {
            break;
        }
    }
    let line = String::from_utf8_lossy(&line);
    let dims = |fields: usize| (fields > 0).then_some(fields);
    if !matches!(ending(path).as_deref(), Some("csv" | "tsv")) {
        let fields = line.split_ascii_whitespace().count();
        return Ok(TextFormat {
            form: LineFormat::Papers,
            length,
            dims: dims(fields.saturating_sub(3)),
            has_header: false,
        });
    }
    let separator = [b',', b';', b'\t'].into_iter().find(|by| line.as_bytes().contains(by)).unwrap_or(b',');
    let fields: Vec<&str> = fields(&line, separator).collect();
    let has_header = !is_blank(line.as_bytes()) && fields.iter().any(|field| field.parse::<f64>().is_err());
    let count = if is_blank(line.as_bytes()) { 0 } else { fields.len() };
    Ok(TextFormat { form: LineFormat::Separated(separator), length, dims: dims(count), has_header })
}

/// Returns the number of dimensions on which all files agree.
fn agreed_dims(paths: &[PathBuf], format: &[TextFormat], requested: Option<usize>) -> Result<usize, Error> {
    let mut known = requested.map(|dims| (dims, Path::new("--dims")));
    for (path, format) in paths.iter().zip(format) {
        let Some(dims) = format.dims else { continue };
        match known {
            // A line that is too short is reported later, with its number.
            Some((_, by)) if by == Path::new("--dims") => {}
            None => known = Some((dims, path)),
            Some((other, by)) if other != dims => {
                let (path, by) = (path.display(), by.display());
                let problem = format!(
                    "{path}: its first line has {dims} numbers, but that of {by} has {other}; all points must have equally many"
                );
                return Err(Error::Input(problem));
            }
            Some(_) => {}
        }
    }
    match known {
        Some((dims, _)) if (1..=MAX_DIMS).contains(&dims) => Ok(dims),
        Some((dims, by)) => Err(Error::Option(format!(
            "{}: points of {dims} numbers; 1 to {MAX_DIMS} are supported",
            by.display()
        ))),
        None => {
            let path = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
            Err(Error::Input(format!("{path}: no points in it; expected one line per point")))
        }
    }
}

fn place<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Result<PointOrigin, String> {
    const FORM: &str = "a point has the form: pictureID rowID colID f1 f2 ...";
    let file = fields.next().ok_or(FORM)?.to_owned();
    let mut number = |name: &str| {
        let field = fields.next().ok_or_else(|| format!("{name} is missing; {FORM}"))?;
        field.parse().map_err(|_| format!("{name} is {}, not a whole number; {FORM}", quoted(field)))
    };
    Ok(PointOrigin { file, row: number("rowID")?, column: number("colID")? })
}

fn papers(line: &str, dims: usize, values: &mut Vec<f64>) -> Result<(), String> {
    let mut fields = line.split_ascii_whitespace();
    place(&mut fields)?;
    numbers(fields, "f", dims, values)
}

fn separated(line: &str, by: u8, dims: usize, values: &mut Vec<f64>) -> Result<(), String> {
    numbers(fields(line, by), "column ", dims, values)
}

/// Returns a line's fields, without surrounding blanks and quotes.
fn fields(line: &str, by: u8) -> impl Iterator<Item = &str> {
    line.trim_matches(['\r', '\n']).split(char::from(by)).map(|field| {
        let field = field.trim();
        field.strip_prefix('"').and_then(|field| field.strip_suffix('"')).unwrap_or(field)
    })
}

fn numbers<'a>(
    mut fields: impl Iterator<Item = &'a str>,
    name: &str,
    dims: usize,
    values: &mut Vec<f64>,
) -> Result<(), String> {
    for i in 1..=dims {
        let field = fields
            .next()
            .ok_or_else(|| format!("{name}{i} is missing: there are {} numbers, expected {dims}", i - 1))?;
        match field.parse::<f64>() {
            Ok(v) if v.is_finite() => values.push(v),
            _ => return Err(format!("{name}{i} is {}, not a finite number", quoted(field))),
        }
    }
    match fields.count() {
        0 => Ok(()),
        more => Err(format!("there are {} numbers, expected {dims}", dims + more)),
    }
}

/// Returns a field for use in an error message, shortened to fit a line.
fn quoted(field: &str) -> String {
    let start: String = field.chars().take(40).collect();
    format!("{start:?}{}", if start.len() < field.len() { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(ending: &str, text: &str) -> tempfile::NamedTempFile {
        let mut f = tempfile::Builder::new().suffix(ending).tempfile().expect("a temporary file");
        f.write_all(text.as_bytes()).expect("written");
        f
    }

    fn open(files: &[&tempfile::NamedTempFile], dims: Option<usize>) -> Result<TextLines, Error> {
        let paths: Vec<_> = files.iter().map(|f| f.path().to_owned()).collect();
        TextLines::open(&PeerRanks::alone(), &paths, dims, 2)
    }

    fn load(lines: &TextLines, rows: &[u64]) -> Vec<f64> {
        let mut values = Vec::new();
        lines.each(rows, |row| values.extend_from_slice(row)).expect("loaded");
        values
    }

    #[test]
    fn points_are_found_across_files_and_blank_lines() {
        let files =
            ["a 0 1 1 2\n\nb 2 3 3 4\n", "c 4 5 5 6", "\n", "d 6 7 7e0\t-8\n"].map(|text| file(".txt", text));
        let l = open(&files.each_ref(), None).expect("counted");
        assert_eq!((l.rows(), l.dims), (4, 2));
        assert_eq!(load(&l, &[0, 1, 2, 3]), [1., 2., 3., 4., 5., 6., 7., -8.]);
        assert_eq!(load(&l, &[1, 3]), [3., 4., 7., -8.]);
        assert_eq!(l.origins(&[2]).expect("places"), [PointOrigin { file: "c".into(), row: 4, column: 5 }]);
    }

    #[test]
    fn points_of_any_piece_are_found_without_reading_the_others() {
        // Lines of different lengths, so that pieces start within some of them, and one line that
        // is longer than a piece.
        let blanks = " ".repeat(3 << 20);
        let line = |i: usize| match i {
            7000 => format!("p {i} 0{blanks}{i} 1\n"),
            _ => format!(
                "p {i} 0{}{i} 1\n{}",
                " ".repeat(1 + i % 600),
                if i.is_multiple_of(5) { "\n" } else { "" }
            ),
        };
        let text: String = (0..10_000).map(line).collect();
        let f = file(".txt", &text);
        let l = open(&[&f], None).expect("counted");
        assert_eq!(l.rows(), 10_000);
        assert!(l.pieces.len() >= 6, "{} pieces", l.pieces.len());
        for rows in [vec![9_999], vec![0, 6_999, 7_000, 7_001], (3_000..6_000).collect(), vec![7_000]] {
            let expected: Vec<f64> = rows.iter().flat_map(|&row| [row as f64, 1.0]).collect();
            assert_eq!(load(&l, &rows), expected);
        }
        let bad = text.replace("p 9000 0", "p x 0");
        std::fs::write(f.path(), bad).expect("written");
        let message = open(&[&f], None).and_then(|l| l.origins(&[9_000])).expect_err("refused").to_string();
        let number = text.lines().position(|l| l.starts_with("p 9000 ")).expect("there") + 1;
        assert!(message.contains(&format!(":{number}: rowID")), "{message}");
    }

    #[test]
    fn csv_has_headers_quotes_and_other_separators_or_not() {
        for text in
            ["1,2\n3,4\n", "x,y\n1,2\n\n3,4", "\n\"long x\";\"y\"\r\n \"1\" ; 2\r\n3;4\r\n", "1\t2\n3\t4\n"]
        {
            let f = file(".csv", text);
            let l = open(&[&f], None).expect("counted");
            assert_eq!((l.rows(), l.dims), (2, 2), "{text:?}");
            assert_eq!(load(&l, &[0, 1]), [1., 2., 3., 4.], "{text:?}");
            assert_eq!(l.origins(&[1]).expect("a place")[0].row, 1);
        }
    }

    #[test]
    fn a_bad_line_is_named_with_its_file() {
        let cases = [
            (".txt", "p 0 0 1 2", "p 0 0 1", "f2 is missing"),
            (".txt", "p 0 0 1 2", "p 0 0 1 2 3", "there are 3 numbers, expected 2"),
            (".txt", "p 0 0 1 2", "p 0 0 1 x", "f2 is \"x\", not a finite number"),
            (".txt", "p 0 0 1 2", "p 0 0 nan 1", "f1 is \"nan\""),
            (".txt", "p 0 0 1 2", "p 0 0 1e999 1", "f1 is \"1e999\""),
            (".txt", "p 0 0 1 2", "p 0 0.5 1 2", "colID is \"0.5\""),
            (".txt", "p 0 0 1 2", "p 0", "colID is missing"),
            (".csv", "1,2", "1,sea", "column 2 is \"sea\""),
            (".csv", "x,y", "1,", "column 2 is \"\""),
            (".csv", "x,y", "1,2,3", "there are 3 numbers, expected 2"),
        ];
        for (ending, first, line, expected) in cases {
            let f = file(ending, &format!("{first}\n\n{line}\n"));
            let l = open(&[&f], None).expect("counted");
            let rows: Vec<u64> = (0..l.rows()).collect();
            let message = l.each(&rows, |_| ()).expect_err("must be refused").to_string();
            let place = format!("{}:3: ", f.path().display());
            assert!(message.starts_with(&place) && message.contains(expected), "{message}");
        }
    }

    #[test]
    fn files_of_unlike_points_and_of_none_are_named() {
        let (two, three, none) = (file(".csv", "1,2\n"), file(".csv", "1,2,3\n"), file(".csv", "\n"));
        let message = open(&[&two, &three], None).expect_err("refused").to_string();
        assert!(
            message.contains(&three.path().display().to_string()) && message.contains("3 numbers"),
            "{message}"
        );
        let message = open(&[&none], None).expect_err("refused").to_string();
        assert!(
            message.starts_with(&none.path().display().to_string()) && message.contains("no points"),
            "{message}"
        );
        assert!(open(&[&two], Some(0)).expect_err("refused").to_string().contains("--dims"));
    }

    #[test]
    fn an_endless_line_is_refused_without_reading_it_all() {
        let f = file(".txt", &"1".repeat(MAX_LINE as usize + 10));
        let message = open(&[&f], Some(2)).expect_err("must be refused").to_string();
        assert!(message.contains("the line at byte 0 is longer than"), "{message}");
    }
}
