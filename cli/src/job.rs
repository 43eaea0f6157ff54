//! A job from its submission to its end, as its caller sees it.

use crate::error::Error;
use clap::ValueEnum;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{AttendRequest, Group, JobEvent, JobSpec, Output, job_event::Body, job_spec};
use std::time::Duration;
use tokio::time::{interval, timeout};
use tonic::Streaming;
use tonic::transport::Channel;

/// How long a controller that is gone may take to be there again; it gives jobs up after 30 s itself.
const COME_BACK_WITHIN: Duration = Duration::from_secs(60);
const TRY_EVERY: Duration = Duration::from_millis(200);

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
    loop {
        let event = match events.message().await {
            Ok(Some(event)) => event,
            Ok(None) => return Err(Error::Unfinished(job)),
            Err(status) => {
                events = attend(client, job, status.into()).await?;
                continue;
            }
        };
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
}

/// Comes back to a job whose controller is gone, once another one runs and has taken it over.
async fn attend(
    client: &mut ControllerClient<Channel>,
    job: u64,
    why: Error,
) -> Result<Streaming<JobEvent>, Error> {
    if job == 0 || !matches!(why, Error::Lost(_)) {
        return Err(why);
    }
    eprintln!("cool: {why}; job {job} goes on, waiting for a controller");
    let came_back = timeout(COME_BACK_WITHIN, async {
        let mut tries = interval(TRY_EVERY);
        loop {
            tries.tick().await;
            if let Ok(events) = client.attend(AttendRequest { job }).await {
                return events.into_inner();
            }
        }
    });
    came_back.await.map_err(|_| why)
}
