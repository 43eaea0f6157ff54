//! The engine's replies to ranks' requests, converted to the messages of `local.proto`.

use cool_proto::local::{self, failure::Kind};
use tokio::sync::oneshot;

/// The channel on which the reply to a request is sent.
pub(crate) enum EngineReply {
    /// Replies to a call or a transfer with its statistics.
    Stats(oneshot::Sender<Result<local::Stats, local::Failure>>),
    /// Replies to a watched call. The result is whether the rank must pass the call to the engine,
    /// because other ranks have.
    ByAgent(oneshot::Sender<Result<bool, local::Failure>>),
}

impl EngineReply {
    /// Sends the result of a request. The caller may have stopped waiting meanwhile; the engine
    /// still executes its call, because other ranks take part in it.
    pub(crate) fn send(self, result: Result<cool_engine::CallStats, cool_engine::CallFailure>) {
        let result = result.map_err(failure);
        match self {
            EngineReply::Stats(reply) => drop(reply.send(result.map(stats))),
            EngineReply::ByAgent(reply) => drop(reply.send(result.map(|stats| stats.by_agent))),
        }
    }
}

fn stats(stats: cool_engine::CallStats) -> local::Stats {
    let cool_engine::CallStats { nanoseconds, traffic, plan, arrived, .. } = stats;
    local::Stats {
        nanoseconds,
        bytes_multicast: traffic.bytes_multicast,
        bytes_unicast: traffic.bytes_unicast,
        chunks_repaired: traffic.chunks_repaired,
        chunks_resent: traffic.chunks_resent,
        plan,
        arrived: arrived.map(|a| local::Arrived { source: a.source, tag: a.tag, bytes: a.bytes }),
    }
}

fn failure(failure: cool_engine::CallFailure) -> local::Failure {
    use cool_engine::CallFailureKind;
    let kind = match failure.kind {
        CallFailureKind::Invalid => Kind::Invalid,
        CallFailureKind::Mismatch => Kind::Mismatch,
        CallFailureKind::Timeout => Kind::Timeout,
        CallFailureKind::Lost => Kind::Lost,
        CallFailureKind::Aborted => Kind::Aborted,
        CallFailureKind::Revoked => Kind::Revoked,
        CallFailureKind::Truncated => Kind::Truncated,
        CallFailureKind::Cancelled => Kind::Cancelled,
    };
    local::Failure { kind: kind.into(), message: failure.message, ranks: failure.ranks }
}
