//! The command `inspect`: describes a model file.

use crate::Error;
use crate::data::grid::{Metric, Precision};
use crate::data::inputs::pictures::PatchLayout;
use crate::output::model::Model;
use crate::peer_ranks::PeerRanks;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Describe a model file.
#[derive(Debug, Args)]
pub(crate) struct InspectCommand {
    /// Model file of `fit` or `classify train`.
    #[arg(value_name = "MODEL.cool")]
    model: PathBuf,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl InspectCommand {
    pub(crate) fn run(&self) -> Result<(), Error> {
        let model = Model::read(&PeerRanks::alone(), &self.model)?;
        let fields = fields(&model);
        if self.json {
            let fields: serde_json::Map<_, _> =
                fields.into_iter().map(|(name, value)| (name.replace(' ', "_"), value)).collect();
            println!("{:#}", serde_json::Value::Object(fields));
        } else {
            for (name, value) in fields {
                println!("{:<12} {}", name, plain(&value));
            }
        }
        Ok(())
    }
}

/// Returns the fields of a model by name.
fn fields(model: &Model) -> Vec<(&'static str, serde_json::Value)> {
    let (clusters, made) = (&model.clusters, &model.provenance);
    let mut fields = vec![
        ("clusters", json!(clusters.centroids.len())),
        ("coordinates", json!(clusters.centroids.dims)),
        (
            "precision",
            json!(match clusters.grid.precision {
                Precision::Byte => "bytes",
                Precision::Wide => "16-bit integers",
                Precision::Fine => "24-bit integers",
            }),
        ),
        (
            "metric",
            json!(match clusters.grid.metric {
                Metric::Euclidean => "euclidean",
                Metric::Cosine => "cosine",
            }),
        ),
        ("step", json!(clusters.grid.step)),
    ];
    if let Some(PatchLayout { patch, stride, .. }) = clusters.cut {
        fields.extend([("patch", json!(patch)), ("stride", json!(stride))]);
    }
    fields.extend([
        ("points", json!(made.points)),
        ("iterations", json!(made.iterations)),
        ("converged", json!(made.converged)),
        ("inertia", json!(made.inertia)),
        ("seed", json!(made.seed)),
        ("version", json!(made.version)),
        ("command", json!(made.command.join(" "))),
    ]);
    if let Some(classifier) = &model.classifier {
        let features = &classifier.features;
        fields.extend([
            ("classes", json!(classifier.classes)),
            ("trained with", json!(classifier.trained_with)),
            ("pyramid", json!(features.pyramid.levels)),
            ("kernel", json!(features.map.name())),
            ("features", json!(features.len(clusters.centroids.len()))),
        ]);
    }
    fields
}

fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
