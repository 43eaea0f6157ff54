//! Copies a file or directory to all nodes of the cluster and prints which nodes have it:
//! `copy_files SOURCE DEST`.

use cool::files::{FileCommand, FilesError};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, dest] = arguments.as_slice() else {
        eprintln!("usage: copy_files SOURCE DEST");
        return ExitCode::FAILURE;
    };
    match copy(source, dest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn copy(source: &str, dest: &str) -> Result<(), FilesError> {
    let copied = FileCommand::copy(source, dest).copied()?;
    println!("{} bytes on {} nodes", copied.bytes, copied.nodes.len());
    Ok(())
}
