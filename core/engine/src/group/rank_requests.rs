//! Hands each variant of [`RankRequest`] and [`RankCommand`] to the part of the group that serves
//! it. A new request of a rank needs a variant there and a line here.

use super::Group;
use crate::api::{RankCommand, RankRequest};
use crate::engine_resources::EngineResources;
use crate::failure::CallFailure;
use cool_machine::Time;

impl Group {
    /// Serves a rank's request. The reply is sent through `resources`, now or later.
    ///
    /// # Errors
    /// Returns an error if the request makes the group fail.
    pub(crate) fn request(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        token: u64,
        request: RankRequest,
    ) -> Result<(), CallFailure> {
        match request {
            RankRequest::Call(request) => self.queue_call(now, resources, token, request),
            RankRequest::Transfer(request) => self.transfer(now, resources, token, request),
        }
    }

    /// Serves a rank's request that has no reply.
    ///
    /// # Errors
    /// Returns an error if the request makes the group fail.
    pub(crate) fn command(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        rank: u32,
        command: RankCommand,
    ) -> Result<(), CallFailure> {
        match command {
            RankCommand::Cancel { id } => {
                self.cancel(now, resources, rank, id);
                Ok(())
            }
            RankCommand::Watched { call_number, report } => {
                self.on_watch_report(now, resources, (call_number, rank), report)
            }
            RankCommand::Revoke { cause } => Err(self.revoked(rank, &cause)),
            RankCommand::Lost { why, completed_calls } => {
                self.lose_rank(now, resources, (rank, completed_calls), why)
            }
        }
    }
}
