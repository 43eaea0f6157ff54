//! The engine's answers in the words of `local.proto`.

use cool_proto::local::{self, failure::Kind};

/// How a call ended.
pub(super) fn answer(
    result: Result<cool_engine::Stats, cool_engine::Failure>,
) -> Result<local::Stats, local::Failure> {
    result.map(stats).map_err(failure)
}

fn stats(stats: cool_engine::Stats) -> local::Stats {
    let cool_engine::Stats { nanoseconds, traffic, plan, arrived } = stats;
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
    };
    local::Failure { kind: kind.into(), message: failure.message, ranks: failure.ranks }
}
