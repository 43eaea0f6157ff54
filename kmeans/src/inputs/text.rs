//! The papers' text form: one point a line, `pictureID rowID colID f1 f2 ...`, separated by blanks.
//!
//! Lines are counted in one pass and only a rank's own lines are parsed. Blank lines are passed over. A value
//! that is missing, in excess or no finite number is an error that names file and line.

use crate::error::Error;
use crate::inputs::Place;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Longest line accepted; 65,536 numbers of 60 characters fit.
const MAX_LINE: u64 = 4 << 20;

/// Text files that together hold the points, in the order given.
#[derive(Debug)]
pub struct Lines {
    files: Vec<PathBuf>,
    /// Points in all files up to and with each.
    ends: Vec<u64>,
    /// Numbers on each line.
    pub dims: usize,
}

impl Lines {
    /// Counts the files' lines.
    pub fn open(files: &[PathBuf], dims: usize) -> Result<Self, Error> {
        let mut ends = Vec::new();
        let mut total = 0;
        for path in files {
            each_line(path, |_, line| {
                total += u64::from(!is_blank(line));
                Ok(())
            })?;
            ends.push(total);
        }
        Ok(Self { files: files.to_owned(), ends, dims })
    }

    /// Points in all.
    pub fn rows(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Hands the numbers of the given rows, which rise, to `take`, row by row.
    pub fn each(&self, rows: &[u64], mut take: impl FnMut(&[f64])) -> Result<(), Error> {
        let mut values = Vec::with_capacity(self.dims);
        self.visit(rows, |_, line| {
            values.clear();
            numbers(line, self.dims, &mut values)?;
            take(&values);
            Ok(())
        })
    }

    /// Where the given rows, which rise, come from.
    pub fn places(&self, rows: &[u64]) -> Result<Vec<Place>, Error> {
        let mut places = Vec::with_capacity(rows.len());
        self.visit(rows, |_, line| {
            let mut fields = line.split_ascii_whitespace();
            places.push(place(&mut fields)?);
            Ok(())
        })?;
        Ok(places)
    }

    /// Hands the lines of the given rows to `take`, whose complaints get the file's name and the line's number.
    fn visit(
        &self,
        rows: &[u64],
        mut take: impl FnMut(u64, &str) -> Result<(), String>,
    ) -> Result<(), Error> {
        let mut wanted = rows.iter().copied().peekable();
        let mut row = 0;
        for (path, &end) in self.files.iter().zip(&self.ends) {
            if wanted.peek().is_none_or(|&next| next >= end) {
                row = end;
                continue;
            }
            each_line(path, |number, line| {
                if is_blank(line) {
                    return Ok(());
                }
                if wanted.next_if_eq(&row).is_some() {
                    let text = std::str::from_utf8(line).map_err(|_| "is not text".to_owned());
                    text.and_then(|text| take(row, text)).map_err(|problem| at(path, number, problem))?;
                }
                row += 1;
                Ok(())
            })?;
        }
        Ok(())
    }
}

fn at(path: &Path, line: u64, problem: String) -> Error {
    Error::Line { path: path.to_owned(), line, problem }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

/// Hands each line with its number, from 1, to `take`.
fn each_line(path: &Path, mut take: impl FnMut(u64, &[u8]) -> Result<(), Error>) -> Result<(), Error> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(Error::file(path))?);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = Read::by_ref(&mut reader).take(MAX_LINE).read_until(b'\n', &mut line);
        let read = read.map_err(Error::file(path))? as u64;
        if read == 0 {
            break;
        }
        if read == MAX_LINE && line.last() != Some(&b'\n') {
            return Err(at(
                path,
                number,
                format!("is longer than {MAX_LINE} bytes: is this a text file of points?"),
            ));
        }
        take(number, &line)?;
    }
    Ok(())
}

fn place<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Result<Place, String> {
    const FORM: &str = "a point is: pictureID rowID colID f1 f2 ...";
    let file = fields.next().ok_or(FORM)?.to_owned();
    let mut number = |name: &str| {
        let field = fields.next().ok_or_else(|| format!("{name} is missing; {FORM}"))?;
        field.parse().map_err(|_| format!("{name} is {}, not a whole number; {FORM}", quoted(field)))
    };
    Ok(Place { file, row: number("rowID")?, column: number("colID")? })
}

fn numbers(line: &str, dims: usize, values: &mut Vec<f64>) -> Result<(), String> {
    let mut fields = line.split_ascii_whitespace();
    place(&mut fields)?;
    for i in 1..=dims {
        let field = fields.next().ok_or_else(|| {
            format!("f{i} is missing: there are {} numbers, expected {dims} (--dims)", i - 1)
        })?;
        match field.parse::<f64>() {
            Ok(v) if v.is_finite() => values.push(v),
            _ => return Err(format!("f{i} is {}, not a number", quoted(field))),
        }
    }
    match fields.count() {
        0 => Ok(()),
        more => Err(format!("there are {} numbers, expected {dims} (--dims)", dims + more)),
    }
}

/// A field as it stands in a message: not longer than a line of a terminal.
fn quoted(field: &str) -> String {
    let start: String = field.chars().take(40).collect();
    format!("{start:?}{}", if start.len() < field.len() { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn lines(texts: &[&str], dims: usize) -> (Vec<tempfile::NamedTempFile>, Lines) {
        let make = |text: &&str| {
            let mut f = tempfile::NamedTempFile::new().expect("a temporary file");
            f.write_all(text.as_bytes()).expect("written");
            f
        };
        let files: Vec<_> = texts.iter().map(make).collect();
        let paths: Vec<_> = files.iter().map(|f| f.path().to_owned()).collect();
        let lines = Lines::open(&paths, dims).expect("counted");
        (files, lines)
    }

    #[test]
    fn points_are_found_across_files_and_blank_lines() {
        let (_files, l) = lines(&["a 0 1 1 2\n\nb 2 3 3 4\n", "c 4 5 5 6", "d 6 7 7e0\t-8\n"], 2);
        assert_eq!(l.rows(), 4);
        let load = |rows: &[u64]| {
            let mut values = Vec::new();
            l.each(rows, |row| values.extend_from_slice(row)).expect("loaded");
            values
        };
        assert_eq!(load(&[0, 1, 2, 3]), [1., 2., 3., 4., 5., 6., 7., -8.]);
        assert_eq!(load(&[1, 3]), [3., 4., 7., -8.]);
        assert_eq!(l.places(&[2]).expect("places"), [Place { file: "c".into(), row: 4, column: 5 }]);
    }

    #[test]
    fn a_bad_line_is_named_with_its_file() {
        let cases = [
            ("p 0 0 1", "f2 is missing"),
            ("p 0 0 1 2 3", "there are 3 numbers, expected 2"),
            ("p 0 0 1 x", "f2 is \"x\", not a number"),
            ("p 0 0 nan 1", "f1 is \"nan\""),
            ("p 0 0 1e999 1", "f1 is \"1e999\""),
            ("p 0 0.5 1 2", "colID is \"0.5\""),
            ("p 0", "colID is missing"),
        ];
        for (line, expected) in cases {
            let (files, l) = lines(&[&format!("p 0 0 1 2\n\n{line}\n")], 2);
            let said = l.each(&[0, 1], |_| ()).expect_err("must be refused").to_string();
            let place = format!("{}:3: ", files[0].path().display());
            assert!(said.starts_with(&place) && said.contains(expected), "{said}");
        }
    }

    #[test]
    fn an_endless_line_is_refused_without_reading_it_all() {
        let text = "1".repeat(MAX_LINE as usize + 10);
        let mut f = tempfile::NamedTempFile::new().expect("a temporary file");
        f.write_all(text.as_bytes()).expect("written");
        let said = Lines::open(&[f.path().to_owned()], 2).expect_err("must be refused").to_string();
        assert!(said.contains(":1: is longer than"), "{said}");
    }
}
