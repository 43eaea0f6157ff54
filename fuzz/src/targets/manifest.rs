//! Manifests of copies, from the source's node: the paths of an accepted manifest must stay within
//! its source, and it must be encoded to the same manifest.

use cool_content::{BlockSet, Manifest, Occurrences, pieces};

pub(crate) fn check(bytes: &[u8]) {
    match Manifest::decode(bytes) {
        Ok(manifest) => {
            assert!(manifest.items().iter().all(|item| {
                let path = std::path::Path::new(std::str::from_utf8(item.path.as_bytes()).unwrap_or("bytes"));
                path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
            }));
            let all = BlockSet::none(manifest.blocks().len()).complement();
            let occurrences = Occurrences::new(&manifest);
            let sent = pieces(&manifest, &all, 1 << 20).flat_map(|piece| piece.blocks);
            assert!(sent.inspect(|block| assert!(!occurrences.of(*block).is_empty())).eq(all.iter()));
            assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(&manifest));
        }
        Err(refused) => assert!(!refused.to_string().is_empty()),
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_content::{Block, Builder, Digest, ItemPath, ModificationTime};

    let path = |names: &[&str]| {
        names.iter().fold(ItemPath::root(), |at, name| at.join(name.as_bytes()).expect("a name"))
    };
    let (when, block) = (ModificationTime::default(), |n| Block { digest: Digest::of(&[n]), bytes: 9 });
    let mut file = Builder::default();
    file.file((path(&[]), 0o644, when), 18, [(0, vec![block(0), block(1)])], Digest::of(b""));
    let mut directory = Builder::default();
    directory.folder(path(&[]), 0o755, when);
    directory.folder(path(&["d"]), 0o755, when);
    directory.file(
        (path(&["d", "f"]), 0o600, when),
        99,
        [(1, vec![block(0)]), (20, vec![block(0)])],
        Digest::of(b""),
    );
    directory.link(path(&["l"]), when, b"d/f".to_vec());
    vec![file.finish().expect("made").encode(), directory.finish().expect("made").encode()]
}

target!();
