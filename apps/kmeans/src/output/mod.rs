//! The results of a clustering: models and their application to other points, tables, reports and
//! visual words.

pub mod apply;
pub mod model;
pub mod report;
pub mod tables;
pub mod visual_words;
