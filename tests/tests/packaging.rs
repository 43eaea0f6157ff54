//! The lists of files of the Debian packages (`deploy/debian/`) agree with the units, the programs and the documents.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// The packages that there are, each with the paths of its files.
fn packages() -> BTreeMap<String, Vec<String>> {
    let control = fs::read_to_string(folder("deploy/debian/control")).unwrap();
    let names = control.lines().filter_map(|line| line.strip_prefix("Package: "));
    let files = |name: &str| {
        let list = fs::read_to_string(folder("deploy/debian").join(format!("{name}.install"))).unwrap();
        list.lines().map(str::to_owned).collect()
    };
    names.map(|name| (name.to_owned(), files(name))).collect()
}

fn has(files: &[String], path: &str) -> bool {
    files.iter().any(|file| path == file || path.starts_with(&format!("{file}/")))
}

#[test]
fn a_unit_and_the_programs_that_it_starts_are_in_one_package_wherever_they_are_installed() {
    let packages = packages();
    let mut units = 0;
    for entry in fs::read_dir(folder("deploy")).unwrap() {
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
            // By name alone, so that the same unit finds it in /usr/local/bin.
            let program = command.split_whitespace().next().unwrap();
            assert!(has(files, &format!("usr/bin/{program}")), "{installed} starts {program}: {name}");
        }
    }
    assert!(units > 0);
}

#[test]
fn a_program_comes_with_its_page_and_its_completion() {
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
                assert!(has(&files, &format!("usr/share/{place}")), "{name} lacks {place}");
            }
        }
    }
    assert!(programs > 0);
}

#[test]
fn every_package_is_in_the_operators_document() {
    let document = fs::read_to_string(folder("docs/guide/deployment.md")).unwrap();
    for name in packages().keys() {
        assert!(document.contains(&format!("`{name}`")), "docs/guide/deployment.md says nothing of {name}");
    }
}
