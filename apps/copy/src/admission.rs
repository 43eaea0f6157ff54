//! Admission of late nodes to a copy by broadcasts.
//!
//! The ranks of late nodes run in a job of their own and meet the source's rank at a rendezvous.
//! Between two pieces, all ranks form a larger group that includes them, and continue in it. The
//! source sends as a data carousel: it resumes where it was, so that no node waits longer because
//! of late ones, and sends the blocks that only late nodes are missing at the end.

use crate::background::TICK;
use crate::errors::CopyError;
use crate::secret::CopySecret;
use cool::{Comm, Error, Op};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

/// Time after which late ranks that do not meet the source's rank assume that the copy has ended.
const MEETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which the source's rank waits at the rendezvous before it joins it anew.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// Time within which the larger group must form, because all its ranks exist already.
const FORMATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Ranks in the group of two that meets at the rendezvous.
const SOURCE: usize = 0;
const NEWCOMER: usize = 1;

/// Returns the key of the rendezvous between late ranks and the source's rank.
fn rendezvous_key(secret: CopySecret) -> String {
    format!("copy {:016x}", secret.seed())
}

/// Returns the key of a larger group. The larger groups of a copy are numbered.
fn group_key(secret: CopySecret, number: u64) -> String {
    format!("{} {number}", rendezvous_key(secret))
}

/// Late ranks that have met the source's rank.
pub(crate) struct Newcomers {
    /// The source's rank and the first of the late ranks.
    pair: Comm,
    group: LargerGroup,
}

/// The group that includes the late ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LargerGroup {
    /// Number among the larger groups of this copy, from 1.
    number: u64,
    /// Number of late ranks.
    count: u64,
}

/// Waits for late ranks, at the source's rank, in a thread that ends when this is dropped.
pub(crate) struct NewcomerListener {
    met: Receiver<Newcomers>,
    /// Nothing is sent on this channel. The thread ends when the sender is dropped together with
    /// the listener.
    _open: Sender<()>,
}

impl NewcomerListener {
    pub(crate) fn start(secret: CopySecret) -> io::Result<NewcomerListener> {
        // The channel has no capacity, because newcomers must be admitted before the thread meets
        // others.
        let (sender, met) = sync_channel(0);
        let (open, is_open) = channel();
        thread::Builder::new().name("meet".into()).spawn(move || {
            let mut number = 1;
            loop {
                let continues = match meet(secret, number) {
                    Ok(newcomers) => {
                        number += 1;
                        sender.send(newcomers).is_ok()
                    }
                    // For example, the controller may be unreachable for a while.
                    Err(_) => is_open.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout),
                };
                if !continues {
                    return;
                }
            }
        })?;
        Ok(NewcomerListener { met, _open: open })
    }

    /// Returns late ranks that wait to be admitted, if there are any. Does not wait for them.
    pub(crate) fn waiting(&self) -> Option<Newcomers> {
        self.met.try_recv().ok()
    }
}

fn meet(secret: CopySecret, number: u64) -> Result<Newcomers, Error> {
    let pair = Comm::join(&rendezvous_key(secret), SOURCE, 2, LISTEN_TIMEOUT)?;
    let mut count = [0];
    pair.bcast(&mut count, NEWCOMER)?;
    Ok(Newcomers { pair, group: LargerGroup { number, count: count[0] } })
}

/// Agrees with all ranks of the copy, at the end of a pass, on the group to form next. Only the
/// source's rank passes `newcomers`, because only that rank has met them. Returns `None` if no late
/// ranks wait.
pub(crate) fn agree(comm: &Comm, newcomers: Option<&Newcomers>) -> Result<Option<LargerGroup>, Error> {
    let LargerGroup { number, count } = newcomers.map_or_else(LargerGroup::default, |met| met.group);
    let mut words = [number, count];
    comm.allreduce_in_place(&mut words, Op::Max)?;
    let [number, count] = words;
    Ok((count > 0).then_some(LargerGroup { number, count }))
}

/// Forms the larger group and returns it. Returns `None` if it does not form; all ranks must then
/// continue without the newcomers.
pub(crate) fn admit(
    comm: &Comm,
    secret: CopySecret,
    LargerGroup { number, count }: LargerGroup,
    newcomers: Option<Newcomers>,
) -> Result<Option<Comm>, Error> {
    if let Some(Newcomers { pair, .. }) = newcomers {
        // If the newcomers have disconnected, the group does not form.
        drop(pair.bcast(&mut [number, comm.size() as u64], SOURCE));
    }
    // A group of an impossible size does not form.
    let size = usize::try_from(count).unwrap_or(usize::MAX).saturating_add(comm.size());
    let larger = Comm::join(&group_key(secret, number), comm.rank(), size, FORMATION_TIMEOUT);
    let mut formed = [u8::from(larger.is_ok())];
    comm.allreduce_in_place(&mut formed, Op::Min)?;
    Ok(larger.ok().filter(|_| formed == [1]))
}

/// Meets the source's rank, with all ranks of a job of late nodes, and returns the larger group.
pub(crate) fn enter(newcomers: &Comm, secret: CopySecret) -> Result<Comm, CopyError> {
    let mut invitation = [0; 2];
    let mut missed = None;
    if newcomers.rank() == 0 {
        match receive_invitation(newcomers.size(), secret) {
            Ok(words) => invitation = words,
            Err(error) => missed = Some(error),
        }
    }
    newcomers.bcast(&mut invitation, 0)?;
    let [number, before] = invitation;
    if before == 0 {
        return Err(CopyError::TooLate(missed.map_or_else(String::new, |error| format!(" ({error})"))));
    }
    // The size of a group, which fits.
    let before = before as usize;
    let (rank, size) = (before + newcomers.rank(), before + newcomers.size());
    Ok(Comm::join(&group_key(secret, number), rank, size, FORMATION_TIMEOUT)?)
}

/// Returns the number of the larger group, and the size of the group before it.
fn receive_invitation(count: usize, secret: CopySecret) -> Result<[u64; 2], Error> {
    let pair = Comm::join(&rendezvous_key(secret), NEWCOMER, 2, MEETING_TIMEOUT)?;
    pair.bcast(&mut [count as u64], NEWCOMER)?;
    let mut invitation = [0; 2];
    pair.bcast(&mut invitation, SOURCE)?;
    Ok(invitation)
}
