//! `cool doctor`: what is wrong with a deployment, in plain words, as text or as JSON.

use crate::error::Error;
use crate::units;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{DiagnoseRequest, Diagnosis, Finding};
use serde_json::json;
use std::io::Write;
use tonic::transport::Channel;

/// Check the deployment, and say what is wrong and what to do
///
/// Asks the controller, which asks every agent: switches and ports that are not heard, nodes that are not found,
/// checksum offload where nothing does it, clocks apart, switches that lack something. What may well be as it should be is a
/// note. Exits with 1 if something is wrong.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub(crate) async fn examine(mut client: ControllerClient<Channel>, options: &Options) -> Result<(), Error> {
    let diagnosis = client.diagnose(DiagnoseRequest {}).await?.into_inner();
    let text = if options.json { document(&diagnosis) } else { describe(&diagnosis) };
    std::io::stdout().write_all(text.as_bytes())?;
    match diagnosis.findings.iter().filter(|finding| !finding.note).count() {
        0 => Ok(()),
        findings => Err(Error::Unwell { findings }),
    }
}

fn document(diagnosis: &Diagnosis) -> String {
    let finding =
        |f: &Finding| json!({ "about": f.about, "wrong": f.wrong, "remedy": f.remedy, "note": f.note });
    let findings: Vec<_> = diagnosis.findings.iter().map(finding).collect();
    let Diagnosis { switches, nodes, .. } = diagnosis;
    format!("{:#}\n", json!({ "switches": switches, "nodes": nodes, "findings": findings }))
}

fn describe(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    if diagnosis.findings.iter().all(|finding| finding.note) {
        let (switches, nodes) = (diagnosis.switches as usize, diagnosis.nodes as usize);
        let (switches, nodes) = (units::count(switches, "switch"), units::count(nodes, "node"));
        text += &format!("nothing is wrong: {switches}, {nodes}\n");
    }
    for Finding { about, wrong, remedy, note } in &diagnosis.findings {
        let kind = if *note { "note: " } else { "" };
        text += &format!("{kind}{about}: {wrong}\n");
        if !remedy.is_empty() {
            text += &format!("    {remedy}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_told_with_what_to_do() {
        let finding = |remedy: &str, note| Finding {
            about: "node h1".into(),
            wrong: "it is off".into(),
            remedy: remedy.into(),
            note,
        };
        let findings = vec![finding("switch it on", false), finding("", true)];
        let text = describe(&Diagnosis { findings, switches: 1, nodes: 1 });
        assert_eq!(text, "node h1: it is off\n    switch it on\nnote: node h1: it is off\n");
        let text = describe(&Diagnosis { findings: vec![finding("", true)], switches: 1, nodes: 1 });
        assert_eq!(text, "nothing is wrong: 1 switch, 1 node\nnote: node h1: it is off\n");
        assert_eq!(
            describe(&Diagnosis { switches: 1, nodes: 2, ..Diagnosis::default() }),
            "nothing is wrong: 1 switch, 2 nodes\n"
        );
    }
}
