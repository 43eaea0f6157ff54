//! A type name must have one meaning, and must name a thing; a bare participle does not.

use std::collections::{BTreeMap, BTreeSet};

use crate::workspace::{is_product, texts};

/// Maximum number of type names, private ones included, that product code may declare more than
/// once. Lower it whenever the number falls.
const SHARED_NAMES_MAX: usize = 7;

/// Public names that several crates declare, each group with the reason why they mislead no reader.
/// The crates in [`APPLICATIONS`] are exempt: besides each other, only the Python bindings, tests,
/// fuzz targets and cool-manual depend on them.
const SHARED_PUBLIC_NAMES: [(&str, &[&str]); 3] = [
    ("the interface of each machine, used by its module path", &["Input", "Output"]),
    ("of each library or program, used by its crate path", &["Error", "Options"]),
    ("terms of OpenFlow in its codec, of MPI in the API, and of the network's graph", &["Message", "Port"]),
];

/// Directories of applications. Their public names may equal those of other crates.
const APPLICATIONS: [&str; 2] = ["apps/kmeans", "apps/mapcollective"];

/// Participles that are nouns in their field or names of a public interface, each with the reason.
const NOUNS: [(&str, &str); 16] = [
    ("Clustering", "the result of K-means"),
    ("Completed", "public in libcool, which keeps its interface"),
    ("Embedded", "public in libcool, which keeps its interface"),
    ("Keyring", "a collection of keys"),
    ("Located", "public in libcool, which keeps its interface"),
    ("Malformed", "public in cool-map, which mirrors cool.map of Python"),
    ("Mapped", "public in cool-map, which mirrors cool.map of Python"),
    ("Mapping", "mapped memory: mmap(2)"),
    ("Masked", "public in rs-openflow: a match with a mask (OpenFlow 1.3.5, 7.2.3)"),
    ("Padding", "unused bytes of a message"),
    ("Pending", "public in libcool, which keeps its interface"),
    ("Probed", "public in libcool, which keeps its interface"),
    ("Received", "public in libcool, which keeps its interface"),
    ("Timing", "the times of a schedule"),
    ("Tuning", "options that affect speed only"),
    ("Warning", "a message to the operator"),
];

/// Irregular participles, and past tenses that might be used as names.
const IRREGULAR: [&str; 28] = [
    "Begun", "Bound", "Broken", "Built", "Came", "Chosen", "Drawn", "Found", "Given", "Gone", "Heard",
    "Held", "Kept", "Known", "Left", "Lost", "Made", "Met", "Said", "Seen", "Sent", "Spent", "Taken", "Told",
    "Thrown", "Written", "Won", "Woken",
];

/// A type of product code.
struct Declaration {
    name: String,
    path: String,
    is_public: bool,
}

/// Returns the structs, enums, traits, unions and free type aliases that a Rust file declares.
fn declarations(path: &str, text: &str) -> Vec<Declaration> {
    let product = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let declaration = |line: &str| {
        let item = line.trim_start();
        let is_public = item.starts_with("pub ");
        let item = match item.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
            Some(rest) => rest.trim_start(),
            None => item,
        };
        let (kind, rest) = item.strip_prefix("unsafe ").unwrap_or(item).split_once(' ')?;
        // Indented aliases are associated types, which a trait has named.
        let counts = ["struct", "enum", "trait", "union"].contains(&kind)
            || (kind == "type" && !line.starts_with(' '));
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        let starts_upper = name.starts_with(|c: char| c.is_ascii_uppercase());
        (counts && starts_upper).then(|| Declaration {
            name: name.to_owned(),
            path: path.to_owned(),
            is_public,
        })
    };
    product.lines().filter_map(declaration).collect()
}

/// Returns the type declarations of all product code.
fn all_declarations() -> Vec<Declaration> {
    let files = texts(&["rs"]).into_iter().filter(|(path, _)| is_product(path));
    let found: Vec<Declaration> = files.flat_map(|(path, text)| declarations(&path, &text)).collect();
    assert!(found.len() > 1000, "only {} types found", found.len());
    found
}

#[test]
fn a_type_name_has_one_meaning() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Declaration { name, path, .. } in all_declarations() {
        places.entry(name).or_default().push(path);
    }
    places.retain(|_, paths| paths.len() > 1);
    let list: String = places.iter().map(|(name, paths)| format!("{name}: {}\n", paths.join(" "))).collect();
    let shared = places.len();
    assert!(shared <= SHARED_NAMES_MAX, "{shared} names are declared more than once:\n{list}");
}

#[test]
fn a_public_name_has_one_meaning_across_crates() {
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Declaration { name, path, is_public } in all_declarations() {
        let application = APPLICATIONS.iter().any(|directory| path.starts_with(directory));
        if let Some((directory, _)) = path.split_once("/src/").filter(|_| is_public && !application) {
            crates.entry(name).or_default().insert(directory.to_owned());
        }
    }
    crates.retain(|_, crates| crates.len() > 1);
    let shared: BTreeSet<&str> = SHARED_PUBLIC_NAMES.iter().flat_map(|(_, names)| *names).copied().collect();
    let ambiguous: BTreeMap<_, _> =
        crates.iter().filter(|(name, _)| !shared.contains(name.as_str())).collect();
    assert!(ambiguous.is_empty(), "in several crates, for different things: {ambiguous:#?}");
    let unused: Vec<_> = shared.iter().filter(|name| !crates.contains_key(**name)).collect();
    assert!(unused.is_empty(), "permitted, but no longer shared: {unused:?}");
}

#[test]
fn a_type_name_is_no_bare_participle() {
    let is_one_word = |name: &str| name.chars().filter(char::is_ascii_uppercase).count() == 1;
    let is_participle = |name: &str| {
        IRREGULAR.contains(&name) || name.len() > 5 && (name.ends_with("ed") || name.ends_with("ing"))
    };
    let bare: BTreeSet<String> = all_declarations()
        .into_iter()
        .filter(|declaration| is_one_word(&declaration.name) && is_participle(&declaration.name))
        .filter(|declaration| NOUNS.iter().all(|(noun, _)| *noun != declaration.name))
        .map(|declaration| {
            let visibility = if declaration.is_public { "pub " } else { "" };
            format!("{visibility}{} ({})", declaration.name, declaration.path)
        })
        .collect();
    assert!(bare.is_empty(), "name the thing, or add the noun with a reason to NOUNS: {bare:#?}");
}
