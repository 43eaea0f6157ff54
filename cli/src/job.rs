//! A job from its submission to its end, as its caller sees it.

use crate::error::Error;
use clap::ValueEnum;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{Group, JobSpec, Output, job_event::Body, job_spec};
use tonic::transport::Channel;

/// In which order ranks are given to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Placement {
    /// Neighbouring ranks share a rack
    Racked,
    /// Neighbouring ranks are in different racks
    Interleaved,
}

impl From<Placement> for job_spec::Placement {
    fn from(placement: Placement) -> job_spec::Placement {
        match placement {
            Placement::Racked => job_spec::Placement::Racked,
            Placement::Interleaved => job_spec::Placement::Interleaved,
        }
    }
}

/// What a caller hears of its job.
pub(crate) enum Heard {
    /// The ranks are being started; this is their group.
    Started(Group),
    /// A line of a rank.
    Line(Output),
}

/// Runs a job to its end. Ctrl-C, an error of `hear`, or dropping the future cancels it.
pub(crate) async fn run(
    mut client: ControllerClient<Channel>,
    spec: JobSpec,
    hear: impl FnMut(Heard) -> Result<(), Error>,
) -> Result<(), Error> {
    tokio::select! {
        ended = follow(&mut client, spec, hear) => ended,
        pressed = tokio::signal::ctrl_c() => pressed.map_err(Error::Runtime).and(Err(Error::Interrupted)),
    }
}

async fn follow(
    client: &mut ControllerClient<Channel>,
    spec: JobSpec,
    mut hear: impl FnMut(Heard) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut events = client.run(spec).await?.into_inner();
    let mut job = 0;
    while let Some(event) = events.message().await? {
        match event.body {
            Some(Body::Started(started)) => {
                job = started.job;
                hear(Heard::Started(started.group.unwrap_or_default()))?;
            }
            Some(Body::Output(output)) => hear(Heard::Line(output))?,
            Some(Body::Finished(finished)) if finished.code == 0 => return Ok(()),
            Some(Body::Finished(finished)) => return Err(Error::Failed { job, finished }),
            // How each rank ended is summed up at the end.
            Some(Body::Exited(_)) | None => {}
        }
    }
    Err(Error::Unfinished(job))
}
