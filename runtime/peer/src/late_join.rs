//! Late members: a node that joins late inquires about the common state, and any member replies.

use crate::channel::{ChannelError, ChannelSender};
use crate::config::SwarmConfig;
use crate::keys::{ChannelKeys, Contact, KeyPair, SwarmKey};
use crate::wire::{Frame, PART_BYTES, WireError};
use cool_swarm::{Code, Member};
use serde::{Deserialize, Serialize};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

/// Time without further bytes after which an inquiry is given up. The member may have to prepare
/// the description of the content first.
const ANSWER: Duration = Duration::from_secs(60);
/// Maximum time for which a member waits for a newcomer that prepares.
const PREPARING: Duration = Duration::from_secs(300);
/// Transfer number of the reply.
const ANSWERED: u32 = 0;

/// The common state, as a member returned it.
#[derive(Debug)]
pub struct LateJoinReply {
    /// The configuration with all members except the newcomer.
    pub config: SwarmConfig,
    /// The description of the content by [`crate::GenerationStore::describe`].
    pub content: Vec<u8>,
    /// Must be kept until the newcomer has ended.
    pub hold: InquiryHold,
}

/// While this exists, the member that replied waits for the newcomer.
#[derive(Debug)]
pub struct InquiryHold {
    /// The connection, which is open as long as this value exists.
    _channel: TcpStream,
}

/// The reasons why an inquiry can fail.
#[derive(Debug, thiserror::Error)]
pub enum InquiryError {
    /// None of the members replied.
    #[error("none of the swarm's {members} members replied; the last error: {why}")]
    Silent {
        /// Number of members that were contacted.
        members: usize,
        /// The error of the last one.
        why: String,
    },
    /// The system does not permit the inquiry.
    #[error("cannot contact the members of the swarm: {0}")]
    System(#[from] std::io::Error),
}

/// A configuration without its key, which the newcomer must already have, and a description of the
/// content.
#[derive(Serialize, Deserialize)]
pub(crate) struct CommonState {
    seed: u64,
    members: Vec<(Member, Contact)>,
    generations: Vec<u64>,
    blocks: u16,
    code: Code,
    rate: Option<u64>,
    limit: Option<u64>,
    content: Vec<u8>,
}

impl CommonState {
    pub(crate) fn new(config: &SwarmConfig, members: Vec<(Member, Contact)>) -> CommonState {
        let SwarmConfig { seed, blocks, code, rate, limit, .. } = *config;
        let (generations, content) = (config.generations.clone(), Vec::new());
        CommonState { seed, members, generations, blocks, code, rate, limit, content }
    }

    fn into_reply(self, key: SwarmKey, held: TcpStream) -> LateJoinReply {
        let CommonState { seed, members, generations, blocks, code, rate, limit, content } = self;
        let config = SwarmConfig { key, seed, members, generations, blocks, code, rate, limit };
        LateJoinReply { config, content, hold: InquiryHold { _channel: held } }
    }
}

/// Replies to an inquiry, and waits until the newcomer closes the channel. The content is described
/// in a thread that may block.
pub(crate) async fn answer(
    mut sender: ChannelSender,
    state: CommonState,
    describe: impl FnOnce() -> Vec<u8> + Send + 'static,
) {
    let put_together = spawn_blocking(move || {
        let state = CommonState { content: describe(), ..state };
        postcard::to_allocvec(&state).map_err(WireError::Decode)
    });
    let Ok(bytes) = put_together.await else { return };
    match send_state(&mut sender, bytes).await {
        // The wait is bounded, whatever the newcomer does.
        Ok(()) => drop(timeout(PREPARING, sender.closed()).await),
        Err(error) => tracing::debug!("reply to a newcomer: {error}"),
    }
}

async fn send_state(
    sender: &mut ChannelSender,
    bytes: Result<Vec<u8>, WireError>,
) -> Result<(), ChannelError> {
    for bytes in bytes?.chunks(PART_BYTES) {
        sender.send(&Frame::Part { transfer: ANSWERED, bytes }).await?;
    }
    sender.send(&Frame::Whole { transfer: ANSWERED }).await
}

/// Requests the common state from all given members at once, as a node that will become the member
/// `me` with this key pair. Returns the reply of the first member that can be reached. That member
/// waits for the newcomer as it waits for members that are missing blocks, for as long as
/// [`LateJoinReply::hold`] exists.
///
/// # Errors
/// Returns an error if none of the members replies.
pub fn inquire(
    contacts: &[Contact],
    key: SwarmKey,
    (me, key_pair): (Member, &KeyPair),
) -> Result<LateJoinReply, InquiryError> {
    let keys = Arc::new(ChannelKeys { swarm: key, own: key_pair.clone() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (state, held) = runtime.block_on(async {
        let mut opening = JoinSet::new();
        for contact in contacts.iter().copied() {
            let keys = Arc::clone(&keys);
            opening.spawn(async move { ChannelSender::connect(None, contact, &keys).await });
        }
        let mut why = "no member is listed".to_owned();
        while let Some(opened) = opening.join_next().await {
            let asked = async { ask(opened.map_err(std::io::Error::from)??, me).await };
            match asked.await {
                Ok(state) => return Ok(state),
                Err(error) => why = error.to_string(),
            }
        }
        Err(InquiryError::Silent { members: contacts.len(), why })
    })?;
    Ok(state.into_reply(key, held))
}

async fn ask(sender: ChannelSender, me: Member) -> Result<(CommonState, TcpStream), ChannelError> {
    let mut receiver = sender.inquire(me).await?;
    let mut state = Vec::new();
    loop {
        let next = timeout(ANSWER, receiver.next()).await.unwrap_or(Err(ChannelError::Slow(ANSWER)));
        match next? {
            Frame::Part { transfer: ANSWERED, bytes } => state.extend_from_slice(bytes),
            Frame::Whole { transfer: ANSWERED } => {
                let state = postcard::from_bytes(&state).map_err(WireError::Decode)?;
                return Ok((state, receiver.hold()?));
            }
            _ => return Err(ChannelError::Stranger),
        }
    }
}
