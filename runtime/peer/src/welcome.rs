//! What one that comes late is told: it asks any member, which answers with all that members know alike.

use crate::channel::{ChannelError, Speaker, SwarmKey};
use crate::peer::SwarmPlan;
use crate::wire::{Frame, PART_BYTES, WireError};
use cool_swarm::{Code, Member};
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

/// Until a member is given up that says nothing more of its answer: it may have to put that together first.
const ANSWER: Duration = Duration::from_secs(60);
/// Until one that has asked, and prepares, is not waited for any more.
const PREPARING: Duration = Duration::from_secs(300);
/// The transfer that an answer is.
const ANSWERED: u32 = 0;

/// What a member has told.
#[derive(Debug)]
pub struct Welcome {
    /// As of all members, without the newcomer.
    pub plan: SwarmPlan,
    /// What [`crate::Contents::describe`] has said of the content.
    pub content: Vec<u8>,
    /// To be kept until the newcomer takes part no longer.
    pub hold: InquiryHold,
}

/// As long as there is this, the member that was asked waits for the newcomer.
#[derive(Debug)]
pub struct InquiryHold {
    /// Open as long as this is there.
    _channel: TcpStream,
}

/// Why nothing was told.
#[derive(Debug, thiserror::Error)]
pub enum InquiryError {
    /// None of the members has answered.
    #[error("none of {members} members of the swarm answers, the last one: {why}")]
    Silent {
        /// How many were asked.
        members: usize,
        /// What was wrong with the last one.
        why: String,
    },
    /// The system does not let it ask.
    #[error("members of the swarm cannot be asked: {0}")]
    System(#[from] std::io::Error),
}

/// A plan without its key, which whoever asks has.
#[derive(Serialize, Deserialize)]
pub(crate) struct Told {
    seed: u64,
    members: Vec<(Member, SocketAddr)>,
    generations: Vec<u64>,
    blocks: u16,
    code: Code,
    rate: Option<u64>,
    limit: Option<u64>,
    content: Vec<u8>,
}

impl Told {
    pub(crate) fn new(plan: &SwarmPlan, members: Vec<(Member, SocketAddr)>) -> Told {
        let SwarmPlan { seed, blocks, code, rate, limit, .. } = *plan;
        let (generations, content) = (plan.generations.clone(), Vec::new());
        Told { seed, members, generations, blocks, code, rate, limit, content }
    }

    fn welcome(self, key: SwarmKey, held: TcpStream) -> Welcome {
        let Told { seed, members, generations, blocks, code, rate, limit, content } = self;
        let plan = SwarmPlan { key, seed, members, generations, blocks, code, rate, limit };
        Welcome { plan, content, hold: InquiryHold { _channel: held } }
    }
}

/// Answers one that asks, and waits until it has no more use of that; the content is described in a thread that may block.
pub(crate) async fn answer(
    mut speaker: Speaker,
    told: Told,
    describe: impl FnOnce() -> Vec<u8> + Send + 'static,
) {
    let put_together = spawn_blocking(move || {
        let told = Told { content: describe(), ..told };
        postcard::to_allocvec(&told).map_err(WireError::Decode)
    });
    let Ok(bytes) = put_together.await else { return };
    match say(&mut speaker, bytes).await {
        // It is waited for no longer, whatever it does.
        Ok(()) => drop(timeout(PREPARING, speaker.closed()).await),
        Err(error) => tracing::debug!("what a newcomer is told: {error}"),
    }
}

async fn say(speaker: &mut Speaker, bytes: Result<Vec<u8>, WireError>) -> Result<(), ChannelError> {
    for bytes in bytes?.chunks(PART_BYTES) {
        speaker.send(&Frame::Part { transfer: ANSWERED, bytes }).await?;
    }
    speaker.send(&Frame::Whole { transfer: ANSWERED }).await
}

/// Asks members what one has to know that is to take part as the member `me`, all at once; the first that can be reached tells it,
/// and waits for it as for those that lack something, as long as the answer is held.
///
/// # Errors
/// If none does.
pub fn inquire(contacts: &[SocketAddr], key: SwarmKey, me: Member) -> Result<Welcome, InquiryError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (told, held) = runtime.block_on(async {
        let mut opening = JoinSet::new();
        for contact in contacts.iter().copied() {
            opening.spawn(async move { Speaker::connect(contact, &key).await });
        }
        let mut why = "it is not there".to_owned();
        while let Some(opened) = opening.join_next().await {
            let asked = async { ask(opened.map_err(std::io::Error::from)??, me).await };
            match asked.await {
                Ok(told) => return Ok(told),
                Err(error) => why = error.to_string(),
            }
        }
        Err(InquiryError::Silent { members: contacts.len(), why })
    })?;
    Ok(told.welcome(key, held))
}

async fn ask(speaker: Speaker, me: Member) -> Result<(Told, TcpStream), ChannelError> {
    let mut listener = speaker.inquire(me).await?;
    let mut told = Vec::new();
    loop {
        let next = timeout(ANSWER, listener.next()).await.unwrap_or(Err(ChannelError::Slow(ANSWER)));
        match next? {
            Frame::Part { transfer: ANSWERED, bytes } => told.extend_from_slice(bytes),
            Frame::Whole { transfer: ANSWERED } => {
                let told = postcard::from_bytes(&told).map_err(WireError::Decode)?;
                return Ok((told, listener.hold()?));
            }
            _ => return Err(ChannelError::Stranger),
        }
    }
}
