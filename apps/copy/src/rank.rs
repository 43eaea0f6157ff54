//! One rank of a copy: at the source's node it reads and broadcasts, at the others it receives and
//! writes.
//!
//! The ranks work together in passes. In a pass, the source broadcasts its manifest, all ranks
//! determine which blocks any node is missing, and these are sent: by swarm first, if that was
//! chosen, then by broadcasts. If a node is lost, the others start another pass, in which the
//! blocks that have arrived count as present; all ranks and newcomers do the same when broadcasts
//! admit late nodes. A swarm continues across passes.

mod broadcasts;

use crate::admission::{self, LargerGroup, NewcomerListener, Newcomers};
use crate::background::{BackgroundTask, TICK};
use crate::copy_group::{broadcast_packed, configure_broadcasts, lost_nodes, own_node, rank_on, report_lost};
use crate::destination::{DestinationCopy, DestinationResult};
use crate::errors::{CopyError, CopyFileError, RankError, without_os_code};
use crate::install::Install;
use crate::join::join_swarm;
use crate::missing_blocks::{MissingBlocks, bytes_of};
use crate::pipeline::PieceForm;
use crate::protocol::{CopyEvent, CopyTask, CopyVia, LateRank};
use crate::rank_result::RankResult;
use crate::secret::SECRET_VARIABLE;
use crate::stored::{CopySource, open_destination};
use crate::swarm::{MemberState, SwarmMember};
use cool::{Comm, Op};
use cool_content::{BlockSet, Manifest};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Runs as the rank for which the job started this process, with a [`CopyTask`] as JSON.
///
/// # Errors
/// If the process cannot be a rank. If its node cannot have a copy, it reports that as an event.
pub fn run_copy_rank(task: &str) -> Result<(), RankError> {
    let mut task: CopyTask = serde_json::from_str(task).map_err(RankError::Task)?;
    let secret = std::env::var(SECRET_VARIABLE).ok().map(|text| text.parse()).transpose();
    task.secret = secret.map_err(RankError::Secret)?;
    let comm = Comm::world()?;
    let began = Instant::now();
    let ended = match &task.late {
        Some(LateRank::Swarm(late)) => join_swarm(&own_node(&comm), &task, late, began),
        Some(LateRank::Broadcast) => enter_late(&comm, &task, began),
        None => Ok(take_part(comm, &task, began)),
    };
    let RankResult { error, reported } = match ended {
        Ok(ended) => ended,
        Err(error) => {
            let reason = without_os_code(&error.to_string());
            return CopyEvent::Missed { reason }.send().map_err(RankError::Report);
        }
    };
    if reported { Ok(()) } else { CopyEvent::ended(began, error).send().map_err(RankError::Report) }
}

/// Takes part in a copy to its end.
pub(crate) fn take_part(comm: Comm, task: &CopyTask, began: Instant) -> RankResult {
    let node = own_node(&comm);
    match CopyRank::new(task, &node, began) {
        Ok(mut rank) => {
            let error = rank.run(comm).err();
            rank.end(error)
        }
        Err(error) => RankResult::unreported(Some(error)),
    }
}

/// Takes part as the rank of a late node, once the others have admitted it.
fn enter_late(newcomers: &Comm, task: &CopyTask, began: Instant) -> Result<RankResult, CopyError> {
    let all = admission::enter(newcomers, task.secret.ok_or(CopyError::NoSecret)?)?;
    CopyEvent::Admitted.send()?;
    Ok(take_part(all, task, began))
}

/// The state of a rank from pass to pass.
struct CopyRank<'t> {
    task: &'t CopyTask,
    node: &'t str,
    began: Instant,
    scan: Option<BackgroundTask<Result<CopySource, CopyFileError>>>,
    manifest: Option<Arc<Manifest>>,
    /// The content on this node, if the node has it. While this is held, the node's store keeps the
    /// object.
    source: Option<CopySource>,
    /// This node's copy, until it is being installed. `None` on nodes that get no copy, and on the
    /// source's node.
    destination: Option<DestinationResult>,
    /// The complete copy; on the source's node, the copy that it makes while it sends.
    install: Option<Install>,
    /// Set while this node is a member of a swarm, which then owns the target.
    swarm: Option<SwarmMember>,
    /// Whether this rank has completed the start of the swarm, in which all ranks are asked to join
    /// it.
    asked: bool,
    /// At the source's rank, for copies by broadcasts: waits for late ranks.
    newcomer_listener: Option<NewcomerListener>,
    /// Late ranks that are about to be admitted.
    newcomers: Option<Newcomers>,
    /// Number of the block after the last one that the source has sent.
    next: u32,
    /// Bytes sent over the network.
    sent: u64,
    /// Whether a swarm sent some of them.
    by_swarm: bool,
    /// The plan of the broadcasts.
    plan: String,
}

impl<'t> CopyRank<'t> {
    fn new(task: &'t CopyTask, node: &'t str, began: Instant) -> Result<CopyRank<'t>, CopyError> {
        let (owned_task, owned_node) = (task.clone(), node.to_owned());
        let open = move || CopySource::open(&owned_task, &owned_node);
        let scan = task.source_index(node).map(|_| BackgroundTask::start("scan", open));
        let scan = scan.transpose()?;
        Ok(CopyRank {
            task,
            node,
            began,
            scan,
            manifest: None,
            source: None,
            destination: None,
            install: None,
            swarm: None,
            asked: false,
            newcomer_listener: None,
            newcomers: None,
            next: 0,
            sent: 0,
            by_swarm: false,
            plan: String::new(),
        })
    }

    /// Runs passes until the copy has ended. After a loss, a rank that has all its blocks may leave
    /// the others, because it needs nothing from them and they need nothing from it.
    fn run(&mut self, mut comm: Comm) -> Result<(), CopyError> {
        loop {
            let ended = match self.pass(&comm) {
                Ok(None) => return Ok(()),
                Ok(Some(larger)) => self.admit(&comm, larger),
                Err(error) => Err(error),
            };
            match ended {
                Ok(larger) => comm = larger.unwrap_or(comm),
                Err(CopyError::Group(error)) if error.is_loss() => {
                    let rest = comm.shrink()?;
                    let nodes = lost_nodes(&comm, &rest);
                    if let Some(swarm) = &self.swarm {
                        swarm.remove_members(&nodes);
                    }
                    report_lost(&rest, nodes)?;
                    comm = rest;
                    if self.is_complete() {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Installs the copy unless that was started already. `error` is why the last pass failed.
    fn end(mut self, error: Option<CopyError>) -> RankResult {
        self.end_swarm();
        if let Some(install) = self.install.take() {
            let installed = RankResult::of_install(install, self.task);
            return match error {
                // If the source has changed, no node gets a copy, and so its own node must not
                // either.
                Some(error) if installed.error.is_none() && self.is_source() => {
                    RankResult::unreported(Some(error))
                }
                _ => installed,
            };
        }
        let outcome = match (error, self.destination) {
            (Some(error), _) => Err(error),
            (None, Some(destination)) => {
                destination.and_then(DestinationCopy::finish).map_err(CopyError::from)
            }
            (None, None) => Ok(()),
        };
        RankResult::unreported(outcome.err())
    }

    /// Returns whether this node has all its blocks.
    fn is_complete(&self) -> bool {
        self.is_installed()
            || self.destination.as_ref().is_some_and(|destination| {
                destination.as_ref().is_ok_and(|destination| destination.have().is_full())
            })
    }

    /// Returns whether a copy that was received is in place or is being installed.
    fn is_installed(&self) -> bool {
        !self.is_source() && self.install.is_some()
    }

    fn is_source(&self) -> bool {
        self.node == self.task.from
    }

    /// Returns whether this node gets its copy from other nodes.
    fn receives(&self) -> bool {
        self.task.source_index(self.node).is_none()
    }

    /// Runs a pass, and returns the larger group to form before the next one; `None` if the copy
    /// has ended.
    fn pass(&mut self, comm: &Comm) -> Result<Option<LargerGroup>, CopyError> {
        configure_broadcasts(comm, self.task.via, self.task.background)?;
        let root = rank_on(comm, &self.task.from);
        let lost = || CopyError::SourceLost(self.task.from.clone());
        if !self.continues_by_swarm(comm)? {
            let root = root.ok_or_else(lost)?;
            let manifest = self.share_manifest(comm, root)?;
            self.prepare(comm, &manifest)?;
            if self.task.via == CopyVia::Swarm {
                self.start_swarm(comm, root, &manifest)?;
            }
        }
        if self.task.via == CopyVia::Swarm {
            self.run_swarm(comm, root)?;
        }
        let Some(manifest) = self.manifest.clone() else { return Err(lost()) };
        let missing = self.missing(comm, &manifest)?;
        match root {
            // Without the source, no more blocks arrive.
            None if self.is_complete() || missing.blocks.is_empty() => return Ok(None),
            None => return Err(lost()),
            Some(root) if self.is_source() => self.send(comm, root, &manifest, missing)?,
            Some(root) => self.receive(comm, root, &manifest, &missing)?,
        }
        self.newcomers = self.newcomers.take().or_else(|| self.newcomer_listener.as_ref()?.waiting());
        let larger = admission::agree(comm, self.newcomers.as_ref())?;
        if self.is_source() && larger.is_none() {
            self.report_sent()?;
        }
        Ok(larger)
    }

    /// Forms the group that includes late ranks, and returns it; `None` if it did not form.
    fn admit(&mut self, comm: &Comm, larger: LargerGroup) -> Result<Option<Comm>, CopyError> {
        let secret = self.task.secret.ok_or(CopyError::NoSecret)?;
        Ok(admission::admit(comm, secret, larger, self.newcomers.take())?)
    }

    /// Broadcasts the source's manifest, and returns it at all ranks.
    fn share_manifest(&mut self, comm: &Comm, root: usize) -> Result<Arc<Manifest>, CopyError> {
        wait_for_all(comm, self.scan.as_mut())?;
        let scanned = self.scan.take().and_then(BackgroundTask::wait).transpose();
        let mut failed = None;
        let mut bytes = Vec::new();
        let mut form = PieceForm::Plain;
        match (scanned, &self.manifest) {
            (Ok(Some(source)), _) => {
                if self.is_source() {
                    let identity = Some(source.manifest.identity());
                    CopyEvent::Source { bytes: source.manifest.bytes(), identity }.send()?;
                    bytes = source.manifest.encode();
                }
                self.manifest = Some(Arc::clone(&source.manifest));
                self.source = Some(source);
            }
            (Ok(None), Some(manifest)) if self.is_source() => bytes = manifest.encode(),
            (Ok(None), _) => {}
            (Err(error), _) if !self.is_source() => eprintln!("{error}"),
            (Err(error), _) => {
                (form, bytes) = (PieceForm::SourceFailed, error.to_string().into_bytes());
                failed = Some(report_source_failed(error));
            }
        }
        let (form, bytes) = broadcast_packed(comm, root, usize::MAX, (form, bytes))?;
        if self.is_source() {
            self.sent += bytes.len() as u64;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if form == PieceForm::SourceFailed {
            return Err(self.source_failed(&bytes));
        }
        if let Some(known) = &self.manifest {
            return Ok(Arc::clone(known));
        }
        let manifest = Arc::new(Manifest::decode(&bytes)?);
        self.manifest = Some(Arc::clone(&manifest));
        Ok(manifest)
    }

    /// Returns the error of all other nodes if the source has failed for this reason.
    fn source_failed(&self, reason: &[u8]) -> CopyError {
        CopyError::Source(format!("{} stopped sending: {}", self.task.from, String::from_utf8_lossy(reason)))
    }

    /// Prepares the copies of all nodes, with the blocks that are on them already.
    fn prepare(&mut self, comm: &Comm, manifest: &Arc<Manifest>) -> Result<(), CopyError> {
        let (task, node, manifest) = (self.task.clone(), self.node.to_owned(), Arc::clone(manifest));
        let mut preparing = None;
        if self.is_source() {
            if self.install.is_none() && task.copy_on_source && !task.is_source(&task.dest_on(&node)) {
                let copy = move || copy_on_source(&task, &node, manifest);
                self.install = Some(Install::start(self.began, copy)?);
            }
        } else if self.receives() && self.destination.is_none() && !self.is_installed() {
            preparing =
                Some(BackgroundTask::start("prepare", move || open_destination(&task, &node, manifest))?);
        }
        wait_for_all(comm, preparing.as_mut())?;
        if let Some(destination) = preparing.and_then(BackgroundTask::wait) {
            self.destination = Some(destination);
        }
        Ok(())
    }

    /// Determines, with all ranks, the blocks that a node is missing. Nodes that cannot have a copy
    /// do not count.
    fn missing(&self, comm: &Comm, manifest: &Manifest) -> Result<MissingBlocks, CopyError> {
        let blocks = manifest.blocks().len();
        let mut words = match &self.destination {
            Some(Ok(destination)) => destination.have().words().to_vec(),
            _ => BlockSet::none(blocks).complement().words().to_vec(),
        };
        words.push(if self.is_source() { u64::from(self.next) } else { u64::MAX });
        comm.allreduce_in_place(&mut words, Op::BitAnd)?;
        // The value is not used if there is no source.
        let first = words.pop().and_then(|first| u32::try_from(first).ok()).unwrap_or(0);
        Ok(MissingBlocks { blocks: BlockSet::from_words(blocks, &words).complement(), first })
    }

    /// Returns whether the swarm of an earlier pass continues. It continues after any loss if all
    /// remaining ranks were asked to join it. If only some were asked, because a node was lost
    /// meanwhile, they end the swarm.
    fn continues_by_swarm(&mut self, comm: &Comm) -> Result<bool, CopyError> {
        if self.task.via != CopyVia::Swarm {
            return Ok(false);
        }
        let all = reduce_status(comm, u8::from(self.asked), Op::Min)? == 1;
        if !all {
            self.asked = false;
            self.end_swarm();
        }
        Ok(all)
    }

    /// Starts the swarm, if any block is missing.
    fn start_swarm(&mut self, comm: &Comm, root: usize, manifest: &Arc<Manifest>) -> Result<(), CopyError> {
        let missing = self.missing(comm, manifest)?.blocks;
        if missing.is_empty() {
            return Ok(());
        }
        if self.is_source() {
            CopyEvent::Sending { bytes: bytes_of(manifest, &missing) }.send()?;
        }
        let destination = self.destination.take_if(|destination| destination.is_ok()).and_then(Result::ok);
        let share =
            self.source.as_ref().and_then(|source| Some((source, self.task.source_index(self.node)?)));
        let source = share.map(|(source, share)| (&*source.root, share));
        let joined = SwarmMember::start(
            comm,
            root,
            (self.task, self.began),
            (manifest, &missing),
            (source, destination),
        )?;
        match joined {
            Ok(swarm) => (self.swarm, self.by_swarm) = (Some(swarm), true),
            Err(destination) => self.destination = self.destination.take().or(destination.map(Ok)),
        }
        self.asked = true;
        Ok(())
    }

    /// Runs the swarm until no rank is missing blocks, or until blocks have stopped arriving.
    fn run_swarm(&mut self, comm: &Comm, root: Option<usize>) -> Result<(), CopyError> {
        let worst = loop {
            let mine = self.swarm.as_ref().map_or(MemberState::Content, |swarm| swarm.state(TICK));
            let worst = reduce_status(comm, mine as u8, Op::Max)?;
            if worst != MemberState::Busy as u8 {
                break worst;
            }
        };
        let error = self.end_swarm().map(|error| self.task.source_error(self.source_root(), error));
        self.add_up_sent(comm)?;
        if let Some(root) = root.filter(|_| worst == MemberState::SourceFailed as u8) {
            let reason = error.as_ref().map_or_else(Vec::new, |error| error.to_string().into_bytes());
            let (_, reason) = broadcast_packed(comm, root, usize::MAX, (PieceForm::SourceFailed, reason))?;
            return Err(error.map_or_else(|| self.source_failed(&reason), report_source_failed));
        }
        if let Some(error) = error {
            eprintln!("{error}; other nodes send it");
        }
        Ok(())
    }

    /// Ends this rank's part in the swarm and takes its target back. Returns the error if the
    /// source cannot be read.
    fn end_swarm(&mut self) -> Option<CopyFileError> {
        let ended = self.swarm.take()?.end();
        if !self.receives() {
            self.sent += ended.sent;
        }
        self.destination = self.destination.take().or(ended.destination);
        self.install = self.install.take().or(ended.install);
        ended.source_error
    }

    /// Adds the bytes that other nodes with the content have sent to the count of the source's
    /// rank.
    fn add_up_sent(&mut self, comm: &Comm) -> Result<(), CopyError> {
        if !self.task.others().is_empty() {
            let mut all = [std::mem::take(&mut self.sent)];
            comm.allreduce_in_place(&mut all, Op::Sum)?;
            self.sent = all[0] * u64::from(self.is_source());
        }
        Ok(())
    }

    /// Returns the path of the content on this node.
    fn source_root(&self) -> &Path {
        self.source.as_ref().map_or(&self.task.source, |source| &source.root)
    }
}

/// Returns the least or the greatest status of all ranks.
fn reduce_status(comm: &Comm, mine: u8, op: Op) -> Result<u8, cool::Error> {
    let mut all = [mine];
    comm.allreduce_in_place(&mut all, op)?;
    Ok(all[0])
}

/// Reports, at the source's rank, that no node gets a copy, and returns the error of this rank.
fn report_source_failed(error: CopyFileError) -> CopyError {
    let reported = CopyEvent::SourceFailed { reason: without_os_code(&error.to_string()) }.send();
    reported.map_or_else(CopyError::System, |()| error.into())
}

/// Waits until the background tasks of all ranks are done, however long that takes: busy ranks take
/// part in a collective every [`TICK`], so that no call times out.
fn wait_for_all<T: Send + 'static>(
    comm: &Comm,
    mut task: Option<&mut BackgroundTask<T>>,
) -> Result<(), CopyError> {
    loop {
        let busy = task.as_mut().is_some_and(|task| !task.is_done());
        if reduce_status(comm, u8::from(busy), Op::Max)? == 0 {
            return Ok(());
        }
    }
}

/// Makes the copy on the source's own node, for which nothing is sent.
fn copy_on_source(task: &CopyTask, node: &str, manifest: Arc<Manifest>) -> Result<(), CopyFileError> {
    let mut destination = open_destination(task, node, Arc::clone(&manifest))?;
    let copied = destination.take_from(&task.source, &manifest);
    let changed = (!destination.have().is_full()).then(|| CopyFileError::Changed(task.source.clone()));
    match copied.unwrap_or_else(Some).or(changed) {
        None => destination.finish(),
        Some(error) => Err(task.source_error(&task.source, destination.discard(error))),
    }
}
