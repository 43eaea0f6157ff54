//! The file lists of the Debian packages (`deploy/debian/`) agree with units, programs and
//! documents.

use std::collections::BTreeMap;
use std::fs;

use crate::workspace::{read, root};

/// Returns the packages, each with the paths of its files.
fn packages() -> BTreeMap<String, Vec<String>> {
    let control = read("deploy/debian/control");
    let names = control.lines().filter_map(|line| line.strip_prefix("Package: "));
    let files = |name: &str| {
        let list = read(&format!("deploy/debian/{name}.install"));
        list.lines().map(str::to_owned).collect()
    };
    names.map(|name| (name.to_owned(), files(name))).collect()
}

fn has(files: &[String], path: &str) -> bool {
    files.iter().any(|file| path == file || path.starts_with(&format!("{file}/")))
}

#[test]
fn a_unit_and_its_programs_are_in_one_package() {
    let packages = packages();
    let mut units = 0;
    for entry in fs::read_dir(root().join("deploy")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "service") {
            continue;
        }
        units += 1;
        let installed = format!("lib/systemd/system/{}", path.file_name().unwrap().display());
        let (name, files) = packages.iter().find(|(_, files)| has(files, &installed)).expect(&installed);
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter_map(|line| line.split_once('='));
        for (_, command) in lines.filter(|(key, _)| ["ExecStartPre", "ExecStart"].contains(key)) {
            // The unit names the program without a directory, so that it also finds a program in
            // /usr/local/bin.
            let program = command.split_whitespace().next().unwrap();
            assert!(has(files, &format!("usr/bin/{program}")), "{installed} starts {program}: {name}");
        }
    }
    assert!(units > 0);
}

#[test]
fn a_program_has_a_manual_page_and_a_completion() {
    let mut programs = 0;
    for (name, files) in packages() {
        for program in files.iter().filter_map(|file| file.strip_prefix("usr/bin/")) {
            programs += 1;
            let page = ["1", "8"].iter().any(|n| has(&files, &format!("usr/share/man/man{n}/{program}.{n}")));
            assert!(page, "{name} has no page of {program}");
            for place in [
                format!("bash-completion/completions/{program}.bash"),
                format!("fish/vendor_completions.d/{program}.fish"),
                format!("zsh/vendor-completions/_{program}"),
            ] {
                assert!(has(&files, &format!("usr/share/{place}")), "{name} does not contain {place}");
            }
        }
    }
    assert!(programs > 0);
}

#[test]
fn every_package_is_in_the_operators_document() {
    let document = read("docs/guide/deployment.md");
    for name in packages().keys() {
        assert!(document.contains(&format!("`{name}`")), "docs/guide/deployment.md does not mention {name}");
    }
}

#[test]
fn logs_are_rotated_as_the_user_that_owns_their_directory() {
    // As root, logrotate would follow links that this user makes.
    let stanza = read("deploy/cool.logrotate");
    let words: Vec<Vec<&str>> = stanza.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(words.contains(&vec!["su", "cool", "cool"]) && words.contains(&vec!["nocreate"]));
    let unit = read("deploy/cool-controller.service");
    assert!(unit.contains("\nUser=cool\n") && unit.contains("\nLogsDirectory=cool\n"));
}
