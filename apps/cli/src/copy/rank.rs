//! One rank of a copy: the source's node reads and broadcasts, the others say what they lack, and write.
//!
//! All that ranks do together is a pass: the source's manifest to all, what all of them have, what somebody lacks, first by swarm if that
//! was asked for. If a node is lost the others begin a pass anew, in which what came before is there already, and so do all with
//! newcomers when broadcasts admit them; a swarm goes on.

mod broadcasts;

use super::admission::{self, LargerGroup, Newcomers, NewcomersMet};
use super::fault::Fault;
use super::group::{lost, own_node, rank_on, say_lost, set_way, share};
use super::join::{LateRank, join};
use super::pipeline::Form;
use super::said::{CopyVia, Said, Task};
use super::secret::SECRET_VARIABLE;
use super::stored::{self, CopySource};
use super::swarm::{State, Swarm};
use super::target::Target;
use super::work::{Placed, Placing, TICK, Work};
use cool::{Comm, Op};
use cool_content::{BlockSet, Manifest, ManifestError};
use cool_peer::InquiryError;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The rank's part of the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct RankOptions {
    /// What to do, as JSON
    task: String,
}

impl RankOptions {
    pub(super) fn task(&self) -> &str {
        &self.task
    }
}

/// Why a rank of a copy fails, rather than its node having no copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RankError {
    #[error("the task is not one that `cool copy` makes: {0}")]
    Task(serde_json::Error),
    #[error("{SECRET_VARIABLE}: {0}")]
    Secret(&'static str),
    #[error(transparent)]
    Cool(#[from] cool::Error),
    #[error("cannot report: {0}")]
    Report(std::io::Error),
}

/// Why a pass comes to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stop {
    #[error(transparent)]
    Group(#[from] cool::Error),
    #[error("{0}")]
    Source(String),
    #[error("{0}, which has the source, is gone")]
    SourceGone(String),
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("what the source sends cannot be understood: {0}")]
    Manifest(#[from] ManifestError),
    #[error("{0}")]
    System(#[from] std::io::Error),
    #[error("the task has no secret, by which ranks know each other")]
    Secret,
    #[error(transparent)]
    Inquiry(#[from] InquiryError),
    #[error("it came when the copy was under way, and nobody is left that has what it lacks")]
    Alone,
    #[error("it came when the copy was over{0}")]
    Over(String),
}

/// Runs as the rank that the job started this process as.
pub(crate) fn rank(options: &RankOptions) -> Result<(), RankError> {
    let mut task: Task = serde_json::from_str(&options.task).map_err(RankError::Task)?;
    let secret = std::env::var(SECRET_VARIABLE).ok().map(|text| text.parse()).transpose();
    task.secret = secret.map_err(RankError::Secret)?;
    let comm = Comm::world()?;
    let began = Instant::now();
    let ended = match &task.late {
        Some(LateRank::Swarm(late)) => join(&own_node(&comm), &task, late, began),
        Some(LateRank::Broadcast) => come(&comm, &task, began),
        None => Ok(copy(comm, &task, began)),
    };
    let CopyEnd { error, told } = match ended {
        Ok(ended) => ended,
        Err(stop) => return Said::Missed { reason: stop.to_string() }.say().map_err(RankError::Report),
    };
    if told { Ok(()) } else { Said::ended(began, error).say().map_err(RankError::Report) }
}

/// How a rank has ended.
pub(super) struct CopyEnd {
    /// Why this node has no copy.
    pub(super) error: Option<String>,
    /// Whether that was said when it was known.
    told: bool,
}

impl CopyEnd {
    pub(super) fn untold(stop: Option<Stop>) -> CopyEnd {
        CopyEnd { error: stop.map(|stop| stop.to_string()), told: false }
    }

    /// Waits until a copy is in its place.
    pub(super) fn placed(placing: Placing, task: &Task) -> CopyEnd {
        let wrong = || Placed { outcome: Err(Fault::Wrong(task.source.clone())), told: false };
        let Placed { outcome, told } = placing.end().unwrap_or_else(wrong);
        CopyEnd { error: outcome.err().map(|fault| fault.to_string()), told }
    }
}

/// Takes part to the end.
pub(super) fn copy(comm: Comm, task: &Task, began: Instant) -> CopyEnd {
    let node = own_node(&comm);
    match Copying::new(task, &node, began) {
        Ok(mut copying) => {
            let stop = copying.run(comm).err();
            copying.end(stop)
        }
        Err(stop) => CopyEnd::untold(Some(stop)),
    }
}

/// Takes part from when the others admit it.
fn come(newcomers: &Comm, task: &Task, began: Instant) -> Result<CopyEnd, Stop> {
    let all = admission::enter(newcomers, task.secret.ok_or(Stop::Secret)?)?;
    Said::Admitted.say()?;
    Ok(copy(all, task, began))
}

/// What somebody lacks.
#[derive(Clone)]
pub(super) struct Lacking {
    pub(super) blocks: BlockSet,
    /// The block that is sent first, or the next of them: where the source was.
    pub(super) first: u32,
}

/// A node's copy, or why it has none.
type Kept = Result<Target, Fault>;

/// A rank's state from pass to pass.
struct Copying<'t> {
    task: &'t Task,
    node: &'t str,
    began: Instant,
    scanning: Option<Work<Result<CopySource, Fault>>>,
    manifest: Option<Arc<Manifest>>,
    /// Where this node has it, if it does; held so that its store keeps it.
    source: Option<CopySource>,
    /// On all nodes that get a copy but the source's, until it is being placed.
    target: Option<Kept>,
    /// The copy that a swarm has completed; or the source's node's own, which it makes beside sending.
    placing: Option<Placing>,
    /// While this node takes part in one; it has the copy then, however far that is.
    swarm: Option<Swarm>,
    /// Whether all were asked to take part.
    asked: bool,
    /// Where the source waits for newcomers of broadcasts, and those that it is about to admit.
    newcomers_met: Option<NewcomersMet>,
    newcomers: Option<Newcomers>,
    /// The block behind the last that the source has sent.
    next: u32,
    /// Bytes that went over the network, whether some went by swarm, and by which plan broadcasts went.
    sent: u64,
    by_swarm: bool,
    plan: String,
}

impl<'t> Copying<'t> {
    fn new(task: &'t Task, node: &'t str, began: Instant) -> Result<Copying<'t>, Stop> {
        let (what, at) = (task.clone(), node.to_owned());
        let open = move || CopySource::open(&what, &at);
        let scanning = task.share(node).map(|_| Work::start("scan", open));
        let scanning = scanning.transpose()?;
        Ok(Copying {
            task,
            node,
            began,
            scanning,
            manifest: None,
            source: None,
            target: None,
            placing: None,
            swarm: None,
            asked: false,
            newcomers_met: None,
            newcomers: None,
            next: 0,
            sent: 0,
            by_swarm: false,
            plan: String::new(),
        })
    }

    /// Does all that ranks do together. Who has all that it needs may leave the others, to which it is of no more use.
    fn run(&mut self, mut comm: Comm) -> Result<(), Stop> {
        loop {
            let ended = match self.pass(&comm) {
                Ok(None) => return Ok(()),
                Ok(Some(larger)) => self.admit(&comm, larger),
                Err(stop) => Err(stop),
            };
            match ended {
                Ok(larger) => comm = larger.unwrap_or(comm),
                Err(Stop::Group(error)) if error.is_loss() => {
                    let rest = comm.shrink()?;
                    let nodes = lost(&comm, &rest);
                    if let Some(swarm) = &self.swarm {
                        swarm.leave(&nodes);
                    }
                    say_lost(&rest, nodes)?;
                    comm = rest;
                    if self.is_whole() {
                        return Ok(());
                    }
                }
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Brings the copy to its place, if it is not there yet; `stop` is why the ranks do nothing together any more.
    fn end(mut self, stop: Option<Stop>) -> CopyEnd {
        self.end_swarm();
        if let Some(placing) = self.placing.take() {
            let placed = CopyEnd::placed(placing, self.task);
            return match stop {
                // Nobody gets a copy of a source that has changed, whatever its own node has.
                Some(stop) if placed.error.is_none() && self.is_source() => CopyEnd::untold(Some(stop)),
                _ => placed,
            };
        }
        let outcome = match (stop, self.target) {
            (Some(stop), _) => Err(stop),
            (None, Some(kept)) => kept.and_then(Target::finish).map_err(Stop::from),
            (None, None) => Ok(()),
        };
        CopyEnd::untold(outcome.err())
    }

    /// Whether this node needs nobody any more.
    fn is_whole(&self) -> bool {
        self.is_placed()
            || self
                .target
                .as_ref()
                .is_some_and(|kept| kept.as_ref().is_ok_and(|target| target.have().is_full()))
    }

    /// Whether its copy came by swarm and is in its place, or on its way to it.
    fn is_placed(&self) -> bool {
        !self.is_source() && self.placing.is_some()
    }

    fn is_source(&self) -> bool {
        self.node == self.task.from
    }

    /// Whether it is to have a copy, and not of its own source.
    fn gets(&self) -> bool {
        self.task.share(self.node).is_none()
    }

    /// What newcomers are to be admitted before the next pass; without any, it was the last one.
    fn pass(&mut self, comm: &Comm) -> Result<Option<LargerGroup>, Stop> {
        set_way(comm, self.task.via, self.task.background)?;
        let root = rank_on(comm, &self.task.from);
        let gone = || Stop::SourceGone(self.task.from.clone());
        if !self.goes_on_by_swarm(comm)? {
            let root = root.ok_or_else(gone)?;
            let manifest = self.share_manifest(comm, root)?;
            self.prepare(comm, &manifest)?;
            if self.task.via == CopyVia::Swarm {
                self.start_swarm(comm, root, &manifest)?;
            }
        }
        if self.task.via == CopyVia::Swarm {
            self.take_part(comm, root)?;
        }
        let Some(manifest) = self.manifest.clone() else { return Err(gone()) };
        let lacking = self.lacking(comm, &manifest)?;
        match root {
            // What has not come by now does not.
            None if self.is_whole() || lacking.blocks.is_empty() => return Ok(None),
            None => return Err(gone()),
            Some(root) if self.is_source() => self.send(comm, root, &manifest, lacking)?,
            Some(root) => self.receive(comm, root, &manifest, &lacking)?,
        }
        self.newcomers = self.newcomers.take().or_else(|| self.newcomers_met.as_ref()?.waiting());
        let larger = admission::agree(comm, self.newcomers.as_ref())?;
        if self.is_source() && larger.is_none() {
            self.say_sent()?;
        }
        Ok(larger)
    }

    /// The group that has newcomers, too, if it has come into being.
    fn admit(&mut self, comm: &Comm, larger: LargerGroup) -> Result<Option<Comm>, Stop> {
        let secret = self.task.secret.ok_or(Stop::Secret)?;
        Ok(admission::admit(comm, secret, larger, self.newcomers.take())?)
    }

    /// The source's manifest at all ranks.
    fn share_manifest(&mut self, comm: &Comm, root: usize) -> Result<Arc<Manifest>, Stop> {
        together(comm, self.scanning.as_mut())?;
        let scanned = self.scanning.take().and_then(Work::take).transpose();
        let mut failed = None;
        let mut bytes = Vec::new();
        let mut form = Form::Plain;
        match (scanned, &self.manifest) {
            (Ok(Some(source)), _) => {
                if self.is_source() {
                    Said::Source { bytes: source.manifest.bytes() }.say()?;
                    bytes = source.manifest.encode();
                }
                self.manifest = Some(Arc::clone(&source.manifest));
                self.source = Some(source);
            }
            (Ok(None), Some(manifest)) if self.is_source() => bytes = manifest.encode(),
            (Ok(None), _) => {}
            (Err(fault), _) if !self.is_source() => eprintln!("{fault}"),
            (Err(fault), _) => {
                (form, bytes) = (Form::GivesUp, fault.to_string().into_bytes());
                failed = Some(give_up(fault));
            }
        }
        let (form, bytes) = share(comm, root, usize::MAX, (form, bytes))?;
        if self.is_source() {
            self.sent += bytes.len() as u64;
        }
        if let Some(stop) = failed {
            return Err(stop);
        }
        if form == Form::GivesUp {
            return Err(self.given_up(&bytes));
        }
        if let Some(known) = &self.manifest {
            return Ok(Arc::clone(known));
        }
        let manifest = Arc::new(Manifest::decode(&bytes)?);
        self.manifest = Some(Arc::clone(&manifest));
        Ok(manifest)
    }

    /// What a node says of a source that has failed.
    fn given_up(&self, why: &[u8]) -> Stop {
        Stop::Source(format!("{} gives up: {}", self.task.from, String::from_utf8_lossy(why)))
    }

    /// Each node looks at what it has.
    fn prepare(&mut self, comm: &Comm, manifest: &Arc<Manifest>) -> Result<(), Stop> {
        let (task, node, manifest) = (self.task.clone(), self.node.to_owned(), Arc::clone(manifest));
        let mut preparing = None;
        if self.is_source() {
            if self.placing.is_none() && task.own && !task.is_source(&task.dest_on(&node)) {
                self.placing = Some(Placing::start(self.began, move || copy_here(&task, &node, manifest))?);
            }
        } else if self.gets() && self.target.is_none() && !self.is_placed() {
            preparing = Some(Work::start("prepare", move || stored::open(&task, &node, manifest))?);
        }
        together(comm, preparing.as_mut())?;
        if let Some(kept) = preparing.and_then(Work::take) {
            self.target = Some(kept);
        }
        Ok(())
    }

    /// What at least one of the nodes lacks that can have it.
    fn lacking(&self, comm: &Comm, manifest: &Manifest) -> Result<Lacking, Stop> {
        let blocks = manifest.blocks().len();
        let mut words = match &self.target {
            Some(Ok(target)) => target.have().words().to_vec(),
            _ => BlockSet::none(blocks).complement().words().to_vec(),
        };
        words.push(if self.is_source() { u64::from(self.next) } else { u64::MAX });
        comm.allreduce_in_place(&mut words, Op::BitAnd)?;
        // Of no use without a source.
        let first = words.pop().and_then(|first| u32::try_from(first).ok()).unwrap_or(0);
        Ok(Lacking { blocks: BlockSet::from_words(blocks, &words).complement(), first })
    }

    /// Whether all that are left were asked to take part, so that a swarm goes on whoever has been lost. If only some were, since
    /// one was lost meanwhile, they end it.
    fn goes_on_by_swarm(&mut self, comm: &Comm) -> Result<bool, Stop> {
        if self.task.via != CopyVia::Swarm {
            return Ok(false);
        }
        let all = of_all(comm, u8::from(self.asked), Op::Min)? == 1;
        if !all {
            self.asked = false;
            self.end_swarm();
        }
        Ok(all)
    }

    /// Begins to spread what somebody lacks.
    fn start_swarm(&mut self, comm: &Comm, root: usize, manifest: &Arc<Manifest>) -> Result<(), Stop> {
        let lacking = self.lacking(comm, manifest)?.blocks;
        if lacking.is_empty() {
            return Ok(());
        }
        if self.is_source() {
            Said::Sending { bytes: bytes_of(manifest, &lacking) }.say()?;
        }
        let target = self.target.take_if(|kept| kept.is_ok()).and_then(Result::ok);
        let share = self.source.as_ref().and_then(|source| Some((source, self.task.share(self.node)?)));
        let source = share.map(|(source, share)| (&*source.root, share));
        match Swarm::start(comm, root, (self.task, self.began), (manifest, &lacking), (source, target))? {
            Ok(swarm) => (self.swarm, self.by_swarm) = (Some(swarm), true),
            Err(target) => self.target = self.target.take().or(target.map(Ok)),
        }
        self.asked = true;
        Ok(())
    }

    /// Passes on what comes, until nobody lacks anything, or nothing comes any more.
    fn take_part(&mut self, comm: &Comm, root: Option<usize>) -> Result<(), Stop> {
        let worst = loop {
            let mine = self.swarm.as_ref().map_or(State::Content, |swarm| swarm.state(TICK));
            let worst = of_all(comm, mine as u8, Op::Max)?;
            if worst != State::Busy as u8 {
                break worst;
            }
        };
        let fault = self.end_swarm().map(|fault| self.task.blame(self.source_root(), fault));
        self.add_up_sent(comm)?;
        if let Some(root) = root.filter(|_| worst == State::GivesUp as u8) {
            let why = fault.as_ref().map_or_else(Vec::new, |fault| fault.to_string().into_bytes());
            let (_, why) = share(comm, root, usize::MAX, (Form::GivesUp, why))?;
            return Err(fault.map_or_else(|| self.given_up(&why), give_up));
        }
        if let Some(fault) = fault {
            eprintln!("{fault}; it comes from others");
        }
        Ok(())
    }

    /// Takes back what the swarm had; why the source cannot be read, if so.
    fn end_swarm(&mut self) -> Option<Fault> {
        let ended = self.swarm.take()?.end();
        if !self.gets() {
            self.sent += ended.sent;
        }
        self.target = self.target.take().or(ended.target);
        self.placing = self.placing.take().or(ended.placing);
        ended.fault
    }

    /// The source knows what the others that have it have sent, too.
    fn add_up_sent(&mut self, comm: &Comm) -> Result<(), Stop> {
        if !self.task.others().is_empty() {
            let mut all = [std::mem::take(&mut self.sent)];
            comm.allreduce_in_place(&mut all, Op::Sum)?;
            self.sent = all[0] * u64::from(self.is_source());
        }
        Ok(())
    }

    /// Where this node has what is copied.
    fn source_root(&self) -> &Path {
        self.source.as_ref().map_or(&self.task.source, |source| &source.root)
    }
}

/// Bytes of some blocks.
pub(super) fn bytes_of(manifest: &Manifest, blocks: &BlockSet) -> u64 {
    blocks.iter().map(|block| u64::from(manifest.blocks()[block as usize].bytes)).sum()
}

/// The least or the most of what all ranks give.
fn of_all(comm: &Comm, mine: u8, op: Op) -> Result<u8, cool::Error> {
    let mut all = [mine];
    comm.allreduce_in_place(&mut all, op)?;
    Ok(all[0])
}

/// The source says that nobody gets a copy.
fn give_up(fault: Fault) -> Stop {
    let told = Said::GivesUp { reason: fault.to_string() }.say();
    told.map_or_else(Stop::System, |()| fault.into())
}

/// Waits until the work of all ranks is done, however long it takes; who works says so time and again.
fn together<T: Send + 'static>(comm: &Comm, mut work: Option<&mut Work<T>>) -> Result<(), Stop> {
    loop {
        let busy = work.as_mut().is_some_and(|work| !work.is_done());
        if of_all(comm, u8::from(busy), Op::Max)? == 0 {
            return Ok(());
        }
    }
}

/// The copy on the source's own node, for which nothing has to be sent.
fn copy_here(task: &Task, node: &str, manifest: Arc<Manifest>) -> Result<(), Fault> {
    let mut target = stored::open(task, node, Arc::clone(&manifest))?;
    let taken = target.take_from(&task.source, &manifest);
    let changed = (!target.have().is_full()).then(|| Fault::Changed(task.source.clone()));
    match taken.err().or(changed) {
        None => target.finish(),
        Some(fault) => {
            target.give_up()?;
            Err(task.blame(&task.source, fault))
        }
    }
}
