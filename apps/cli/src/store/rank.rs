//! One rank of a question to stores: looks into this node's.

use super::milliseconds;
use super::said::{StoreAnswer, StoreDeed, StoreQuestion, StoredContent};
use crate::copy::{RankError, damages};
use crate::own_ranks;
use cool::Comm;
use cool_content::Digest;
use cool_store::{NameEntry, NamedObject, ObjectAbout, Store, StoreError, StoreName};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// The rank's part of the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreRankOptions {
    /// What is asked, as JSON
    question: String,
}

/// Why a node does not answer.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot answer: {0}")]
    Say(#[from] io::Error),
}

/// Runs as the rank that the job started this process as.
pub(crate) fn rank(options: &StoreRankOptions) -> Result<(), RankError> {
    let question: StoreQuestion = serde_json::from_str(&options.question).map_err(RankError::Task)?;
    let comm = Comm::world()?;
    let node = comm.place(comm.rank()).map_or_else(String::new, |place| place.name.clone());
    // Nobody waits for another.
    drop(comm);
    let error =
        answer(&question, &node, &mut |answer| own_ranks::say(&answer)).err().map(|error| error.to_string());
    own_ranks::say(&StoreAnswer::Ended { error }).map_err(RankError::Report)
}

type Say<'s> = &'s mut dyn FnMut(StoreAnswer) -> io::Result<()>;

fn answer(question: &StoreQuestion, node: &str, say: Say) -> Result<(), Unanswered> {
    let folder = question.store.on(node);
    let Some(store) = Store::open_existing(&folder)? else { return Ok(()) };
    let is_asked = |name: &StoreName| question.name.as_ref().is_none_or(|asked| asked == name);
    match question.deed {
        StoreDeed::List => list(&store, &folder, &is_asked, say),
        StoreDeed::Verify { drop } => verify(&store, drop, &is_asked, say),
        StoreDeed::Remove => {
            let removed = question.name.as_ref().map_or(Ok(false), |name| store.remove(name))?;
            if removed { Ok(say(StoreAnswer::Removed)?) } else { Ok(()) }
        }
    }
}

fn list(
    store: &Store,
    folder: &Path,
    is_asked: &dyn Fn(&StoreName) -> bool,
    say: Say,
) -> Result<(), Unanswered> {
    for NamedObject { name, entry, about } in store.list()?.into_iter().filter(|named| is_asked(&named.name))
    {
        say(match (entry, about) {
            (Some(NameEntry { id, put_ms }), Ok(ObjectAbout { bytes, items, used })) => {
                let tree = store.tree(id);
                StoreAnswer::Content(StoredContent {
                    name,
                    id,
                    put_ms,
                    used_ms: milliseconds(used),
                    bytes,
                    items,
                    tree,
                })
            }
            (_, Err(error)) => StoreAnswer::Damaged { name, what: error.to_string() },
            // A content that is known has an identity.
            (None, Ok(_)) => continue,
        })?;
    }
    let usage = store.usage()?;
    let folder = folder.to_owned();
    Ok(say(StoreAnswer::Store { folder, bytes: usage.bytes, quota: usage.quota })?)
}

/// Reads each content once, whatever names it has.
fn verify(
    store: &Store,
    drops: bool,
    is_asked: &dyn Fn(&StoreName) -> bool,
    say: Say,
) -> Result<(), Unanswered> {
    let mut known: BTreeSet<Digest> = BTreeSet::new();
    for NamedObject { name, entry, about } in store.list()?.into_iter().filter(|named| is_asked(&named.name))
    {
        let id = entry.map(|entry| entry.id);
        if id.is_some_and(|id| !known.insert(id)) {
            continue;
        }
        let found = match (about, id) {
            (Err(error), _) => vec![error.to_string()],
            (Ok(_), Some(id)) => read_again(store, id, say)?,
            // A content that is known has an identity.
            (Ok(_), None) => continue,
        };
        let is_damaged = !found.is_empty();
        for what in found {
            say(StoreAnswer::Damaged { name: name.clone(), what })?;
        }
        match id {
            _ if !(is_damaged && drops) => {}
            Some(id) => store.drop_object(id)?,
            None => drop(store.remove(&name)?),
        }
    }
    Ok(())
}

/// What of an object is not as it was put.
fn read_again(store: &Store, id: Digest, say: Say) -> Result<Vec<String>, Unanswered> {
    // Otherwise removed meanwhile.
    let Some(reading) = store.examine(id)? else { return Ok(Vec::new()) };
    let found = damages(&reading.tree, &reading.manifest);
    if found.is_empty() {
        say(StoreAnswer::Whole { bytes: reading.manifest.bytes() })?;
    }
    let line = |(path, why): (String, String)| match path.as_str() {
        "" => format!("it {why}"),
        _ => format!("{path} {why}"),
    };
    Ok(found.into_iter().map(line).collect())
}
