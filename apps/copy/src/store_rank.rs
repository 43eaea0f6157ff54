//! One rank of a request to stores: it opens the store of its node and replies.

use crate::errors::{RankError, without_os_code};
use crate::rank_output::send_event;
use crate::store_protocol::{ObjectInfo, StoreOperation, StoreReply, StoreRequest};
use crate::verify::find_damage;
use cool::Comm;
use cool_content::Digest;
use cool_store::{NameEntry, NamedObject, ObjectAbout, Store, StoreError, StoreName};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// An error because of which a rank does not complete a request.
#[derive(Debug, thiserror::Error)]
enum StoreRankError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot reply: {0}")]
    Reply(#[from] io::Error),
}

/// Runs as the rank for which the job started this process, with a [`StoreRequest`] as JSON.
///
/// # Errors
/// If the process cannot be a rank. Errors of its store are part of the last reply.
pub fn run_store_rank(request: &str) -> Result<(), RankError> {
    let request: StoreRequest = serde_json::from_str(request).map_err(RankError::Task)?;
    let comm = Comm::world()?;
    let node = comm.place(comm.rank()).map_or_else(String::new, |place| place.name.clone());
    // The ranks work independently from here on.
    drop(comm);
    let outcome = execute(&request, &node, &mut |reply| send_event(&reply));
    let error = outcome.err().map(|error| without_os_code(&error.to_string()));
    send_event(&StoreReply::Ended { error }).map_err(RankError::Report)
}

type Reply<'r> = &'r mut dyn FnMut(StoreReply) -> io::Result<()>;

fn execute(request: &StoreRequest, node: &str, reply: Reply) -> Result<(), StoreRankError> {
    let directory = request.store.on(node);
    let Some(store) = Store::open_existing(&directory)? else { return Ok(()) };
    let is_requested = |name: &StoreName| request.name.as_ref().is_none_or(|wanted| wanted == name);
    match request.operation {
        StoreOperation::List => list(&store, &directory, &is_requested, reply),
        StoreOperation::Verify { drop } => verify(&store, drop, &is_requested, reply),
        StoreOperation::Remove => {
            let removed = request.name.as_ref().map_or(Ok(false), |name| store.remove(name))?;
            if removed { Ok(reply(StoreReply::Removed)?) } else { Ok(()) }
        }
    }
}

fn list(
    store: &Store,
    directory: &Path,
    is_requested: &dyn Fn(&StoreName) -> bool,
    reply: Reply,
) -> Result<(), StoreRankError> {
    let named = store.list()?.into_iter().filter(|named| is_requested(&named.name));
    for NamedObject { name, entry, about } in named {
        reply(match (entry, about) {
            (Some(NameEntry { id, put_ms }), Ok(ObjectAbout { bytes, items, used })) => {
                let tree = store.tree(id);
                let used_ms = unix_ms(used);
                StoreReply::Object(ObjectInfo { name, id, put_ms, used_ms, bytes, items, tree })
            }
            (_, Err(error)) => StoreReply::Damaged { name, damage: error.to_string() },
            // Cannot happen, because an object that can be read has an identity.
            (None, Ok(_)) => continue,
        })?;
    }
    let usage = store.usage()?;
    let folder = directory.to_owned();
    Ok(reply(StoreReply::Store { folder, bytes: usage.bytes, quota: usage.quota })?)
}

/// Reads every object once, even if it has several names.
fn verify(
    store: &Store,
    drop_damaged: bool,
    is_requested: &dyn Fn(&StoreName) -> bool,
    reply: Reply,
) -> Result<(), StoreRankError> {
    let mut known: BTreeSet<Digest> = BTreeSet::new();
    let named = store.list()?.into_iter().filter(|named| is_requested(&named.name));
    for NamedObject { name, entry, about } in named {
        let id = entry.map(|entry| entry.id);
        if id.is_some_and(|id| !known.insert(id)) {
            continue;
        }
        let found = match (about, id) {
            (Err(error), _) => vec![error.to_string()],
            (Ok(_), Some(id)) => verify_object(store, id, reply)?,
            // Cannot happen, because an object that can be read has an identity.
            (Ok(_), None) => continue,
        };
        let is_damaged = !found.is_empty();
        for damage in found {
            reply(StoreReply::Damaged { name: name.clone(), damage })?;
        }
        match id {
            _ if !(is_damaged && drop_damaged) => {}
            Some(id) => store.drop_object(id)?,
            None => drop(store.remove(&name)?),
        }
    }
    Ok(())
}

/// Returns the differences between an object and its manifest. Replies `Intact` if there are none.
fn verify_object(store: &Store, id: Digest, reply: Reply) -> Result<Vec<String>, StoreRankError> {
    // An object that was removed meanwhile is not damaged.
    let Some(reading) = store.examine(id)? else { return Ok(Vec::new()) };
    let found = find_damage(&reading.tree, &reading.manifest);
    if found.is_empty() {
        reply(StoreReply::Intact { bytes: reading.manifest.bytes() })?;
    }
    let line = |(path, damage): (String, String)| match path.as_str() {
        "" => format!("it {damage}"),
        _ => format!("{path} {damage}"),
    };
    Ok(found.into_iter().map(line).collect())
}

/// Returns a time in milliseconds since 1970.
#[must_use]
pub fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
