//! A confusion matrix with pictures, as one HTML file (after Zhang, Qiu et al., "Large-Scale Image
//! Classification using High Performance Clustering", figure 11).

use super::{ClassDirectories, TestResult};
use crate::data::inputs::entry::InputEntry;
use crate::data::inputs::pictures;
use crate::error::Error;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::codecs::jpeg::JpegEncoder;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Side of a picture in the matrix, in pixels.
const SIDE: u32 = 72;

/// JPEG quality of a picture in the matrix, of 100.
const JPEG_QUALITY: u8 = 75;

const STYLE: &str = "
body { font: 15px/1.5 system-ui, 'DejaVu Sans', sans-serif; color: #18222d; margin: 32px; }
p { color: #66737f; max-width: 76ch; }
table { border-collapse: collapse; }
th { font-weight: 600; padding: 4px 8px; white-space: nowrap; }
thead th { vertical-align: bottom; height: 9em; } thead span { writing-mode: vertical-rl; transform: rotate(180deg); }
tbody th { text-align: right; }
td { border: 1px solid #dfe5ea; width: 78px; height: 92px; text-align: center; vertical-align: bottom; padding: 2px; font-size: 13px; font-variant-numeric: tabular-nums; }
td img { display: block; margin: 0 auto; max-width: 72px; max-height: 72px; }
td.right { outline: 2px solid #18222d; outline-offset: -2px; }
td.sum { border: 0; white-space: nowrap; width: auto; padding-left: 12px; vertical-align: middle; text-align: right; }
";

/// Returns the page: for each pair of a true and a predicted class, the number of pictures and the
/// first of them.
///
/// # Errors
/// If a picture that is shown cannot be decoded.
pub fn page(tested: &TestResult, classes: &ClassDirectories) -> Result<String, Error> {
    let mut shown = BTreeMap::new();
    for ((entry, _), pair) in classes.pictures.iter().zip(&tested.predicted) {
        shown.entry(*pair).or_insert(entry);
    }
    let names: Vec<String> = tested.classes.iter().map(|name| escaped(name)).collect();
    let mut rows = String::new();
    for (truth, counts) in tested.confusion.iter().enumerate() {
        let all: u64 = counts.iter().sum();
        if all == 0 {
            continue;
        }
        let _ = write!(rows, "<tr><th>{}</th>", names[truth]);
        for (found, &count) in counts.iter().enumerate() {
            let picture = shown.get(&(truth, found)).map(|entry| {
                let name = escaped(&entry.name.display().to_string());
                Ok(format!("<img alt=\"\" title=\"{name}\" src=\"{}\">", thumbnail(entry)?))
            });
            let picture: Result<_, Error> = picture.transpose();
            let picture = picture?.unwrap_or_default();
            rows += &cell(truth == found, count, all, &picture);
        }
        let share = 100.0 * counts[truth] as f64 / all as f64;
        let _ = writeln!(rows, "<td class=sum>{share:.1} %</td></tr>");
    }
    let heads: String = names.iter().map(|name| format!("<th><span>{name}</span></th>")).collect();
    let (accuracy, pictures) = (100.0 * tested.accuracy, tested.pictures);
    Ok(format!(
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>Confusion matrix</title><style>{STYLE}</style></head>\n<body>\
         <h1>{accuracy:.1} % of {pictures} pictures</h1>\n<p>Mean over classes. One row per true class, one column per predicted class, with \
         the number of pictures and one of them. On the right, the share of each class that was recognized.</p>\n\
         <table><thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></body></html>\n"
    ))
}

/// Returns a cell, which is darker for a larger share of its row.
fn cell(right: bool, count: u64, all: u64, picture: &str) -> String {
    if count == 0 {
        return "<td></td>".to_owned();
    }
    let (class, color) = if right { (" class=right", "59,125,216") } else { ("", "232,89,12") };
    let share = count as f64 / all as f64;
    format!("<td{class} style=\"background:rgba({color},{:.2})\">{picture}{count}</td>", 0.1 + 0.6 * share)
}

/// Returns a small copy of a picture as a data URL.
fn thumbnail(entry: &InputEntry) -> Result<String, Error> {
    let small = pictures::decode(entry)?.thumbnail(SIDE, SIDE).into_rgb8();
    let mut bytes = Vec::new();
    small
        .write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY))
        .map_err(|source| Error::Picture { path: entry.name.clone(), source })?;
    Ok(format!("data:image/jpeg;base64,{}", STANDARD.encode(bytes)))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_of_classes_is_shown_by_a_picture_of_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let save = |name: &str| {
            let path = directory.path().join(name);
            image::RgbImage::new(100, 50).save(&path).expect("saved");
            InputEntry::file(path)
        };
        let pictures = ["a.png", "b.png", "c.png"].map(|name| (save(name), 0));
        let classes = ClassDirectories { names: vec!["sea & sky".into()], pictures: pictures.to_vec() };
        let tested = TestResult {
            accuracy: 2.0 / 3.0,
            classes: vec!["sea & sky".into(), "wood".into()],
            confusion: vec![vec![2, 1], vec![0, 0]],
            pictures: 3,
            predicted: vec![(0, 0), (0, 1), (0, 0)],
        };
        let page = page(&tested, &classes).expect("drawn");
        assert!(page.contains("66.7 % of 3 pictures") && page.contains("sea &amp; sky"), "{page}");
        assert!(page.contains("a.png") && page.contains("b.png") && !page.contains("c.png"), "{page}");
        assert_eq!(page.matches("data:image/jpeg;base64,/9j/").count(), 2);
        assert!(!page.contains("<th>wood</th>"), "a class without pictures has no row");
    }
}
