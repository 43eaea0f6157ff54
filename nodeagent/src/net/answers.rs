//! The engine's answers in the words of `local.proto`.

use cool_proto::local::{self, failure::Kind};
use tokio::sync::oneshot;

/// Where an answer goes.
pub(super) enum Reply {
    /// To a call or message.
    Called(oneshot::Sender<Result<local::Stats, local::Failure>>),
    /// To a watched call: whether others have this agent carry it out.
    Watched(oneshot::Sender<Result<bool, local::Failure>>),
}

impl Reply {
    /// Says how a call ended. The caller may have gone; its call went on for the sake of the others.
    pub(super) fn send(self, result: Result<cool_engine::Stats, cool_engine::Failure>) {
        let result = result.map_err(failure);
        match self {
            Reply::Called(reply) => drop(reply.send(result.map(stats))),
            Reply::Watched(reply) => drop(reply.send(result.map(|stats| stats.by_agent))),
        }
    }
}

fn stats(stats: cool_engine::Stats) -> local::Stats {
    let cool_engine::Stats { nanoseconds, traffic, plan, arrived, .. } = stats;
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

fn failure(failure: cool_engine::Failure) -> local::Failure {
    use cool_engine::FailureKind;
    let kind = match failure.kind {
        FailureKind::Invalid => Kind::Invalid,
        FailureKind::Mismatch => Kind::Mismatch,
        FailureKind::Timeout => Kind::Timeout,
        FailureKind::Lost => Kind::Lost,
        FailureKind::Aborted => Kind::Aborted,
        FailureKind::Revoked => Kind::Revoked,
        FailureKind::Truncated => Kind::Truncated,
        FailureKind::Cancelled => Kind::Cancelled,
    };
    local::Failure { kind: kind.into(), message: failure.message, ranks: failure.ranks }
}
