//! Where points come from: pictures, the papers' text form, or `.npy`, told apart by the files' names.

pub mod hog;
pub mod pictures;
pub mod text;

use self::pictures::{Cut, ENDINGS, Pictures};
use self::text::Lines;
use crate::error::Error;
use crate::grid::{Grid, MAX_DIMS, Points, Values};
use crate::npy::{self, Array, Kind};
use std::path::{Path, PathBuf};

/// What to read and how.
#[derive(Clone, Debug)]
pub struct Input {
    /// Files and folders.
    pub paths: Vec<PathBuf>,
    /// How patches are cut out of pictures.
    pub cut: Cut,
    /// Numbers on each line of the text form.
    pub dims: usize,
}

/// Where a point comes from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Place {
    /// The file, or the picture's name in the text form.
    #[serde(rename = "image")]
    pub file: String,
    /// The patch's upper edge in pixels; in the text form what stands there; in `.npy` the row.
    pub row: u64,
    /// The patch's left edge in pixels; in the text form what stands there; in `.npy` 0.
    pub column: u64,
}

/// Files that hold points.
#[derive(Debug)]
pub enum Source {
    /// Pictures.
    Pictures(Pictures),
    /// Text files.
    Text(Lines),
    /// An array.
    Array(Array),
    /// What the program had in memory when it made points of it, which cannot be read again.
    Given {
        /// Points in all.
        rows: u64,
        /// Coordinates of each.
        dims: usize,
    },
}

impl Source {
    /// The files of such paths, folders replaced by the pictures below them in order of their names.
    pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
        let mut files = Vec::new();
        for path in paths {
            if path.is_dir() {
                let before = files.len();
                collect(path, &mut files)?;
                if files.len() == before {
                    return Err(Error::Input(format!(
                        "{}: no pictures (.{}) below this folder",
                        path.display(),
                        ENDINGS.join(", .")
                    )));
                }
            } else {
                files.push(path.clone());
            }
        }
        Ok(files)
    }

    /// Opens files of one form. With `skip_bad`, pictures without a readable header are left out.
    pub fn open(input: &Input, files: &[PathBuf], skip_bad: bool) -> Result<Self, Error> {
        let form = |path: &PathBuf| match ending(path).as_deref() {
            Some("npy") => Form::Array,
            Some(e) if ENDINGS.contains(&e) => Form::Picture,
            _ => Form::Text,
        };
        let forms: Vec<Form> = files.iter().map(form).collect();
        let Some(&first) = forms.first() else {
            return Err(Error::Input("no input: name pictures, folders, text files or an .npy file".into()));
        };
        if let Some(other) = forms.iter().position(|f| *f != first) {
            return Err(Error::Input(format!(
                "{} and {}: pictures, text and .npy cannot be clustered together",
                files[0].display(),
                files[other].display()
            )));
        }
        match first {
            Form::Picture => Pictures::open(files, input.cut, skip_bad).map(Self::Pictures),
            Form::Text if input.dims == 0 || input.dims > MAX_DIMS => {
                Err(Error::Option(format!("--dims {}: points have 1 to {MAX_DIMS} coordinates", input.dims)))
            }
            Form::Text => Lines::open(files, input.dims).map(Self::Text),
            Form::Array => match files {
                [one] => Array::open(one).map(Self::Array),
                _ => Err(Error::Input("name one .npy file: numpy.concatenate joins several".into())),
            },
        }
    }

    /// Points in all.
    pub fn rows(&self) -> u64 {
        match self {
            Self::Pictures(p) => p.rows(),
            Self::Text(t) => t.rows(),
            Self::Array(a) => a.rows,
            Self::Given { rows, .. } => *rows,
        }
    }

    /// Coordinates of a point.
    pub fn dims(&self) -> usize {
        match self {
            Self::Pictures(_) => hog::DIMS,
            Self::Text(t) => t.dims,
            Self::Array(a) => a.dims,
            Self::Given { dims, .. } => *dims,
        }
    }

    /// What the number 1 stands for where points are bytes from 0 to 255; none where they are other numbers.
    pub fn byte_step(&self) -> Option<f64> {
        match self {
            Self::Pictures(_) => Some(1.0 / 255.0),
            Self::Array(a) if a.kind == Kind::U8 => Some(1.0),
            Self::Text(_) | Self::Array(_) | Self::Given { .. } => None,
        }
    }

    /// The given points, which rise, as numbers on a grid; `done` hears how many were read since it was last told.
    pub fn load(
        &self,
        rows: &[u64],
        grid: &Grid,
        threads: usize,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Points, Error> {
        let mut points = grid.no_points();
        match self {
            Self::Pictures(p) => points.values = Values::Byte(p.load(rows, threads, done)?),
            Self::Array(a) if a.kind == Kind::U8 => {
                let mut values = Vec::with_capacity(rows.len() * a.dims);
                a.read(rows, |_, row| {
                    values.extend_from_slice(row);
                    Ok(())
                })?;
                points.values = Values::Byte(values);
            }
            Self::Text(_) | Self::Array(_) | Self::Given { .. } => {
                points.reserve(rows.len());
                self.each(rows, |row| grid.quantise(row, &mut points))?;
            }
        }
        Ok(points)
    }

    /// Hands the given points, which rise, to `take`, where they are finite numbers and no bytes.
    pub fn each(&self, rows: &[u64], mut take: impl FnMut(&[f64])) -> Result<(), Error> {
        match self {
            Self::Text(t) => t.each(rows, take),
            Self::Array(a) => {
                let mut numbers = Vec::with_capacity(a.dims);
                a.read(rows, |row, bytes| {
                    numbers.clear();
                    npy::decode(a.kind, bytes, &mut numbers);
                    finite(a, row, &numbers)?;
                    take(&numbers);
                    Ok(())
                })
            }
            Self::Pictures(_) => Ok(()),
            Self::Given { .. } => {
                Err(Error::Input("points that a lost rank was given are gone; give them again".into()))
            }
        }
    }

    /// Where the given points, which rise, come from.
    pub fn places(&self, rows: &[u64]) -> Result<Vec<Place>, Error> {
        match self {
            Self::Pictures(p) => Ok(p.places(rows)),
            Self::Text(t) => t.places(rows),
            Self::Array(a) => {
                let file = a.path.display().to_string();
                Ok(rows.iter().map(|&row| Place { file: file.clone(), row, column: 0 }).collect())
            }
            Self::Given { .. } => {
                Ok(rows.iter().map(|&row| Place { file: String::new(), row, column: 0 }).collect())
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Picture,
    Text,
    Array,
}

/// Refuses a row with a number that is none.
fn finite(array: &Array, row: u64, numbers: &[f64]) -> Result<(), Error> {
    let Some(column) = numbers.iter().position(|v| !v.is_finite()) else { return Ok(()) };
    let problem = format!("row {row}, column {column} is {}, not a finite number", numbers[column]);
    Err(Error::Array { path: array.path.clone(), problem })
}

/// Adds the pictures below a folder, in order of their names; links to folders are not followed.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::file(folder))? {
        let entry = entry.map_err(Error::file(folder))?;
        let kind = entry.file_type().map_err(Error::file(&entry.path()))?;
        entries.push((entry.path(), kind.is_dir()));
    }
    entries.sort();
    for (path, is_folder) in entries {
        if is_folder {
            collect(&path, files)?;
        } else if ending(&path).is_some_and(|e| ENDINGS.contains(&e.as_str())) {
            files.push(path);
        }
    }
    Ok(())
}

fn ending(path: &Path) -> Option<String> {
    path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(paths: &[PathBuf]) -> Input {
        Input { paths: paths.to_vec(), cut: Cut { patch: 40, stride: 40 }, dims: 2 }
    }

    #[test]
    fn folders_are_searched_in_order_of_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("c")).expect("made");
        for name in ["z.PNG", "c/b.jpeg", "a.jpg", "notes.txt"] {
            std::fs::write(at(name), b"x").expect("written");
        }
        let found = Source::files(&[folder.path().to_owned()]).expect("found");
        assert_eq!(found, ["a.jpg", "c/b.jpeg", "z.PNG"].map(at));
        let empty = tempfile::tempdir().expect("a folder");
        let said = Source::files(&[empty.path().to_owned()]).expect_err("empty").to_string();
        assert!(said.contains("no pictures"), "{said}");
    }

    #[test]
    fn forms_cannot_be_mixed_and_nothing_is_an_error() {
        let files = ["a.npy", "b.txt"].map(PathBuf::from);
        let said = Source::open(&input(&files), &files, false).expect_err("mixed").to_string();
        assert!(said.contains("a.npy and b.txt"), "{said}");
        assert!(Source::open(&input(&[]), &[], false).is_err());
    }

    #[test]
    fn a_number_that_is_not_finite_is_named_by_row_and_column() {
        let f = tempfile::Builder::new().suffix(".npy").tempfile().expect("a file");
        npy::write(f.path(), &[1.0, 2.0, 3.0, f64::INFINITY], 2).expect("written");
        let files = [f.path().to_owned()];
        let source = Source::open(&input(&files), &files, false).expect("opened");
        let said = source.each(&[0, 1], |_| ()).expect_err("refused").to_string();
        assert!(said.contains("row 1, column 1 is inf"), "{said}");
    }
}
