//! Rules for the sources of the whole workspace: purity, names, language, documents, packaging.

mod documents;
mod english;
mod monitoring;
mod names;
mod packaging;
mod purity;
mod threads;
mod tidy;
mod workspace;
