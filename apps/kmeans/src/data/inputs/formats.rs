//! The formats of input files, which follow from the files' names; the kinds of elements; and the
//! origin of a point.

use crate::error::Error;
use half::f16;
use std::path::{Path, PathBuf};

/// Extensions of array files.
const ARRAY_ENDINGS: &[&str] = match cfg!(feature = "parquet") {
    true => &["npy", "fvecs", "bvecs", "parquet"],
    false => &["npy", "fvecs", "bvecs"],
};

/// Extensions of picture files.
pub(crate) const PICTURE_ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];

/// Returns the extension of a file's name in lower case.
pub(crate) fn ending(path: &Path) -> Option<String> {
    path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase())
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputKind {
    Picture,
    Text,
    Array,
}

/// Returns the format that all files have in common.
///
/// # Errors
/// If there are several formats or no files, or a format is not supported.
pub(crate) fn one_form(files: &[PathBuf]) -> Result<InputKind, Error> {
    let form = |path: &PathBuf| match ending(path).as_deref() {
        Some(e) if ARRAY_ENDINGS.contains(&e) => Ok(InputKind::Array),
        Some(e) if PICTURE_ENDINGS.contains(&e) => Ok(InputKind::Picture),
        Some(e @ ("gz" | "tgz" | "xz" | "bz2" | "zst" | "zip" | "npz")) => {
            Err(Error::Input(format!("{}: .{e} is compressed; unpack it first", path.display())))
        }
        Some("parquet") => Err(Error::Input(format!(
            "{}: this program was built without the feature `parquet`; rebuild it (cargo build --features parquet), or save the file as .npy or .csv",
            path.display()
        ))),
        Some(e @ ("h5" | "hdf5")) => {
            let remedy = "save it as .npy (pandas: to_numpy) or .csv";
            Err(Error::Input(format!("{}: .{e} is not supported; {remedy}", path.display())))
        }
        _ => Ok(InputKind::Text),
    };
    let forms: Vec<InputKind> = files.iter().map(form).collect::<Result<_, _>>()?;
    let first = *forms.first().ok_or_else(|| {
        Error::Input(
            "no input; name pictures, directories, .npy, .fvecs, .bvecs, .parquet, .csv or text files".into(),
        )
    })?;
    if let Some(other) = forms.iter().position(|f| *f != first) {
        return Err(Error::Input(format!(
            "{} and {}: pictures, text and arrays cannot be clustered together",
            files[0].display(),
            files[other].display()
        )));
    }
    Ok(first)
}

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementKind {
    /// An unsigned byte.
    U8,
    /// A signed byte.
    I8,
    /// A 32-bit integer.
    I32,
    /// A 16-bit floating-point number.
    F16,
    /// A 32-bit floating-point number.
    F32,
    /// A 64-bit floating-point number.
    F64,
}

impl ElementKind {
    /// Returns the size of an element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 => 8,
        }
    }

    /// Appends the elements of a row as numbers.
    pub fn decode(self, row: &[u8], values: &mut Vec<f64>) {
        match self {
            Self::U8 => values.extend(row.iter().map(|&b| f64::from(b))),
            Self::I8 => values.extend(row.iter().map(|&b| f64::from(b as i8))),
            Self::I32 => values.extend(row.as_chunks().0.iter().map(|b| f64::from(i32::from_le_bytes(*b)))),
            Self::F16 => values.extend(row.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f64())),
            Self::F32 => values.extend(row.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b)))),
            Self::F64 => values.extend(row.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b))),
        }
    }

    /// Writes a number, which must be representable by the kind, into an element.
    #[cfg(feature = "parquet")]
    pub(crate) fn encode(self, number: f64, element: &mut [u8]) {
        match self {
            Self::U8 => element.copy_from_slice(&(number as u8).to_le_bytes()),
            Self::I8 => element.copy_from_slice(&(number as i8).to_le_bytes()),
            Self::I32 => element.copy_from_slice(&(number as i32).to_le_bytes()),
            Self::F16 => element.copy_from_slice(&f16::from_f64(number).to_le_bytes()),
            Self::F32 => element.copy_from_slice(&(number as f32).to_le_bytes()),
            Self::F64 => element.copy_from_slice(&number.to_le_bytes()),
        }
    }
}

/// Origin of a point.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PointOrigin {
    /// The file, or the picture's name in the papers' text format.
    #[serde(rename = "image")]
    pub file: String,
    /// The patch's upper edge in pixels; in the papers' text format the given row; otherwise the
    /// row number.
    pub row: u64,
    /// The patch's left edge in pixels; in the papers' text format the given column; otherwise 0.
    pub column: u64,
}
