//! Nodes that come while a copy by broadcasts is under way: their ranks, in a job of their own, meet that of the source at a rendezvous.
//! Between two pieces all ranks form a group that has them, too, and go on in it. The source sends as a data carousel: from where it
//! was, so that nobody waits longer for a newcomer, and at the end what only newcomers lack.

use super::rank::Stop;
use super::secret::Secret;
use super::work::TICK;
use cool::{Comm, Error, Op};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

/// Until newcomers that do not meet the source's rank take the copy for ended.
const MEET_WITHIN: Duration = Duration::from_secs(10);
/// Until the source's rank waits anew.
const WAIT_AT_MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// Until a group that has not come into being is none: all its ranks are there already.
const FORM_WITHIN: Duration = Duration::from_secs(10);
/// The ranks of a pair.
const SOURCE: usize = 0;
const NEWCOMER: usize = 1;

/// What newcomers and the source's rank know each other by.
fn key(secret: Secret) -> String {
    format!("copy {:016x}", secret.seed())
}

/// That of a larger group: the copy's are numbered.
fn group_key(secret: Secret, number: u64) -> String {
    format!("{} {number}", key(secret))
}

/// Newcomers that have met the source's rank.
pub(super) struct Newcomers {
    /// Of that and the first of them.
    pair: Comm,
    group: LargerGroup,
}

/// What all ranks know of the group that has newcomers, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LargerGroup {
    /// Of the copy's, from 1.
    number: u64,
    /// How many newcomers.
    count: u64,
}

/// Where the source's rank waits for newcomers, in a thread that ends when this is dropped.
pub(super) struct NewcomersMet {
    met: Receiver<Newcomers>,
    /// Nothing is sent.
    _open: Sender<()>,
}

impl NewcomersMet {
    pub(super) fn wait(secret: Secret) -> io::Result<NewcomersMet> {
        // Newcomers that have met it are admitted before others meet it.
        let (give, met) = sync_channel(0);
        let (open, is_open) = channel();
        thread::Builder::new().name("meet".into()).spawn(move || {
            let mut number = 1;
            loop {
                let goes_on = match meet(secret, number) {
                    Ok(newcomers) => {
                        number += 1;
                        give.send(newcomers).is_ok()
                    }
                    // The controller may be away for a while.
                    Err(_) => is_open.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout),
                };
                if !goes_on {
                    return;
                }
            }
        })?;
        Ok(NewcomersMet { met, _open: open })
    }

    /// Those that wait, if any do.
    pub(super) fn waiting(&self) -> Option<Newcomers> {
        self.met.try_recv().ok()
    }
}

fn meet(secret: Secret, number: u64) -> Result<Newcomers, Error> {
    let pair = Comm::join(&key(secret), SOURCE, 2, WAIT_AT_MOST)?;
    let mut count = [0];
    pair.bcast(&mut count, NEWCOMER)?;
    Ok(Newcomers { pair, group: LargerGroup { number, count: count[0] } })
}

/// The ranks of a copy agree at the end of a pass whether they admit newcomers, which only the source's has met.
pub(super) fn agree(comm: &Comm, newcomers: Option<&Newcomers>) -> Result<Option<LargerGroup>, Error> {
    let LargerGroup { number, count } = newcomers.map_or_else(LargerGroup::default, |met| met.group);
    let mut words = [number, count];
    comm.allreduce_in_place(&mut words, Op::Max)?;
    let [number, count] = words;
    Ok((count > 0).then_some(LargerGroup { number, count }))
}

/// All ranks form the group that has the newcomers, too; if it does not come into being, they go on without them.
pub(super) fn admit(
    comm: &Comm,
    secret: Secret,
    LargerGroup { number, count }: LargerGroup,
    newcomers: Option<Newcomers>,
) -> Result<Option<Comm>, Error> {
    if let Some(Newcomers { pair, .. }) = newcomers {
        // If they are gone the group does not come into being.
        drop(pair.bcast(&mut [number, comm.size() as u64], SOURCE));
    }
    // Of more ranks than can be there is no group.
    let size = usize::try_from(count).unwrap_or(usize::MAX).saturating_add(comm.size());
    let larger = Comm::join(&group_key(secret, number), comm.rank(), size, FORM_WITHIN);
    let mut formed = [u8::from(larger.is_ok())];
    comm.allreduce_in_place(&mut formed, Op::Min)?;
    Ok(larger.ok().filter(|_| formed == [1]))
}

/// The ranks of a job of newcomers meet the source's, and come to the group of the copy.
pub(super) fn enter(newcomers: &Comm, secret: Secret) -> Result<Comm, Stop> {
    let mut told = [0; 2];
    let mut missed = None;
    if newcomers.rank() == 0 {
        match be_told(newcomers.size(), secret) {
            Ok(words) => told = words,
            Err(error) => missed = Some(error),
        }
    }
    newcomers.bcast(&mut told, 0)?;
    let [number, before] = told;
    if before == 0 {
        return Err(Stop::Over(missed.map_or_else(String::new, |error| format!(" ({error})"))));
    }
    // The size of a group.
    let before = before as usize;
    let (rank, size) = (before + newcomers.rank(), before + newcomers.size());
    Ok(Comm::join(&group_key(secret, number), rank, size, FORM_WITHIN)?)
}

/// The number of the larger group, and the size of the group that there is.
fn be_told(count: usize, secret: Secret) -> Result<[u64; 2], Error> {
    let pair = Comm::join(&key(secret), NEWCOMER, 2, MEET_WITHIN)?;
    pair.bcast(&mut [count as u64], NEWCOMER)?;
    let mut told = [0; 2];
    pair.bcast(&mut told, SOURCE)?;
    Ok(told)
}
