//! `cool doctor`: diagnoses a deployment, as text or as JSON.

use crate::error::Error;
use crate::terminal_text::{self, printable};
use crate::units;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{DiagnoseRequest, Diagnosis, Finding};
use serde_json::json;
use std::io::Write;
use tonic::transport::Channel;

/// Diagnose the deployment, and suggest remedies
///
/// The controller and every agent check, for example, for switches and ports that are silent, nodes
/// that were not found, checksum offload that no hardware completes, clocks that differ, and
/// features that a switch does not have. Findings that may be intentional are shown as notes. Exits
/// with status 1 if something is wrong.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorOptions {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Requests the diagnosis, and prints it.
pub(crate) async fn examine(
    mut client: ControllerClient<Channel>,
    options: &DoctorOptions,
) -> Result<(), Error> {
    let diagnosis = client.diagnose(DiagnoseRequest {}).await?.into_inner();
    let text = if options.json { document(&diagnosis) } else { describe(&diagnosis) };
    std::io::stdout().write_all(text.as_bytes())?;
    match diagnosis.findings.iter().filter(|finding| !finding.note).count() {
        0 => Ok(()),
        findings => Err(Error::Unhealthy { findings }),
    }
}

fn document(diagnosis: &Diagnosis) -> String {
    let finding =
        |f: &Finding| json!({ "about": f.about, "wrong": f.wrong, "remedy": f.remedy, "note": f.note });
    let findings: Vec<_> = diagnosis.findings.iter().map(finding).collect();
    let Diagnosis { switches, nodes, .. } = diagnosis;
    terminal_text::json(&json!({ "switches": switches, "nodes": nodes, "findings": findings }))
}

fn describe(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    if diagnosis.findings.iter().all(|finding| finding.note) {
        let (switches, nodes) = (diagnosis.switches as usize, diagnosis.nodes as usize);
        let (switches, nodes) = (units::count(switches, "switch"), units::count(nodes, "node"));
        text += &format!("nothing is wrong: {switches}, {nodes}\n");
    }
    for Finding { about, wrong, remedy, note } in &diagnosis.findings {
        let [about, wrong, remedy] = [about, wrong, remedy].map(|part| printable(part));
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
    fn each_finding_is_shown_with_its_remedy() {
        let finding = |remedy: &str, note| Finding {
            about: "node h1".into(),
            wrong: "it is off".into(),
            remedy: remedy.into(),
            note,
        };
        let forged =
            Diagnosis { findings: vec![finding("\u{1b}[2J\nnode h2: fine", false)], ..Diagnosis::default() };
        assert_eq!(describe(&forged), "node h1: it is off\n    \\u{1b}[2J\\nnode h2: fine\n");
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
