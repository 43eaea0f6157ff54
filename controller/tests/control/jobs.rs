//! The life of jobs, with simulated agents over real gRPC.

use crate::support::{Controller, FakeAgent, event, finished, job, registration, soon};
use cool_controller::timeouts::Timeouts;
use cool_proto::control::{
    Exited, GroupFailed, HoldOutput, JobEvent, JobSpec, Recover, Register, SignalRequest, TopologyRequest,
    agent_message, controller_message, job_event, job_spec::Placement, job_view::State,
};
use cool_proto::features;
use cool_tls::Role;
use std::time::Duration;
use tonic::{Code, Streaming};

/// The refusal of two ranks on a node with two slots, of which one is in use.
const TOO_FEW_SLOTS: &str = "2 ranks requested, but 1 slot free (1 more in use by other jobs) on 1 node; \
                             wait until other jobs end, or request at most 1, or start agents with more --slots";

#[tokio::test]
async fn a_job_runs_from_its_group_to_its_release() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let mut h3 = FakeAgent::join(&controller, 3).await;
    let spec = JobSpec {
        args: vec!["a".into()],
        env: [("K".into(), "V".into())].into(),
        workdir: "/tmp".into(),
        placement: Placement::Interleaved.into(),
        ..job(3)
    };
    let mut events = controller.run(spec).await.unwrap();

    let group = h1.ready().await;
    assert_eq!(h3.ready().await, group);
    let nodes: Vec<_> = group.members.iter().map(|m| (m.rank, m.node.as_str(), m.rack)).collect();
    assert_eq!(nodes, [(0, "h1", 0), (1, "h3", 1), (2, "h1", 0)]);
    assert_eq!(group.trees[0].address, "239.192.0.1");
    let (first, second) = (h1.launched().await, h3.launched().await);
    assert_eq!((first.ranks, second.ranks), (vec![0, 2], vec![1]));
    assert_eq!((first.size, first.program.as_str(), first.args), (3, "program", vec!["a".to_owned()]));
    assert_eq!((first.env["K"].as_str(), first.workdir.as_str()), ("V", "/tmp"));
    assert!(
        matches!(event(&mut events).await, job_event::Body::Started(s) if s.group == Some(group.clone().without_keys()))
    );
    assert_eq!(controller.groups().await, [group.clone().without_keys()]);

    h3.print(group.job, 1, "hello").await;
    assert!(
        matches!(event(&mut events).await, job_event::Body::Output(o) if o.rank == 1 && o.line == b"hello")
    );
    h1.exit(group.job, 0, 0).await;
    h1.exit(group.job, 2, 0).await;
    h3.exit(group.job, 1, 0).await;
    let end = finished(&mut events).await;
    assert_eq!((end.code, end.rank, end.reason.as_str()), (0, None, ""));
    h1.released().await;
    h3.released().await;
    assert!(controller.groups().await.is_empty());
    assert!(controller.network.groups().is_empty());
}

#[tokio::test]
async fn the_first_failure_ends_the_others_and_names_its_rank() {
    let controller = Controller::start().await;
    let (mut events, group, [mut h1, mut h2]) = controller.start_job([1, 2], job(2)).await;

    h2.exit(group.job, 1, 7).await;
    h1.killed().await;
    let ended = Exited { job: group.job, rank: 0, code: -1, signal: 15, ..Default::default() };
    h1.send(agent_message::Body::Exited(ended)).await;
    let end = finished(&mut events).await;
    assert_eq!((end.code, end.rank, end.reason.as_str()), (7, Some(1), "rank 1 on h2 exited with status 7"));
    h1.released().await;
    // It must release the group without a kill, because it has no running rank.
    h2.released().await;
}

#[tokio::test]
async fn signals_and_failed_starts_are_reported() {
    let ends = [
        (
            Exited { code: -1, signal: 9, ..Default::default() },
            137,
            "rank 0 on h1 was killed by signal 9 (SIGKILL)",
        ),
        (
            Exited { code: -1, error: "cannot start program: no such file".into(), ..Default::default() },
            1,
            "rank 0 on h1: cannot start program: no such file",
        ),
        (
            Exited {
                code: 127,
                error: "cannot start x: there is no such program".into(),
                ..Default::default()
            },
            127,
            "rank 0 on h1: cannot start x: there is no such program",
        ),
    ];
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    for (exited, code, reason) in ends {
        let mut events = controller.run(job(1)).await.unwrap();
        let group = h1.ready().await;
        h1.launched().await;
        h1.send(agent_message::Body::Exited(Exited { job: group.job, ..exited })).await;
        let end = finished(&mut events).await;
        assert_eq!((end.code, end.reason.as_str()), (code, reason));
        h1.released().await;
    }
}

#[tokio::test]
async fn a_lost_node_fails_its_job_and_is_named() {
    let controller = Controller::start().await;
    let (mut events, group, [mut h1, h2]) = controller.start_job([1, 2], job(2)).await;

    h2.leave().await;
    h1.killed().await;
    h1.exit(group.job, 0, 1).await;
    let end = finished(&mut events).await;
    assert_eq!((end.code, end.rank), (1, Some(1)));
    assert!(end.reason.starts_with("node h2 was lost: "), "{}", end.reason);
    h1.released().await;
}

#[tokio::test]
async fn ranks_that_do_not_end_keep_their_slots_and_are_named() {
    let controller =
        Controller::with_timeouts(Timeouts { end: Duration::from_millis(100), ..Timeouts::default() }).await;
    let (mut events, group, [mut h1]) = controller.start_job([1], job(2)).await;
    h1.exit(group.job, 0, 3).await;
    h1.killed().await;
    let end = finished(&mut events).await;
    assert_eq!(
        end.reason,
        "rank 0 on h1 exited with status 3; ranks on h1 have not ended within 100ms (`cool topology` lists them)"
    );
    h1.released().await;
    let warnings = async || {
        let topology = controller.client().await.get_topology(TopologyRequest {}).await.unwrap();
        topology.into_inner().warnings
    };
    assert!(
        warnings().await[0].starts_with("node h1: job 1 has ended, but not its rank 1,"),
        "{:?}",
        warnings().await
    );
    assert_eq!(controller.run(job(2)).await.unwrap_err().message(), TOO_FEW_SLOTS);
    // The process ends after all.
    h1.exit(group.job, 1, 0).await;
    let started = soon("the slot", async {
        loop {
            match controller.run(job(2)).await {
                Ok(events) => break events,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    let _events = started.await;
    assert_eq!(warnings().await, [""; 0]);
}

#[tokio::test]
async fn a_surviving_job_continues_while_any_rank_remains() {
    for (last, code) in [(Exited::default(), 0), (Exited { code: 3, ..Default::default() }, 3)] {
        let controller = Controller::start().await;
        let (mut events, group, [mut h1, h2]) =
            controller.start_job([1, 2], JobSpec { survive: true, ..job(4) }).await;
        let killed = Exited { job: group.job, rank: 0, code: -1, signal: 9, ..Default::default() };
        h1.send(agent_message::Body::Exited(killed)).await;
        h2.leave().await;
        h1.send(agent_message::Body::Exited(Exited { job: group.job, rank: 1, ..last })).await;
        assert_eq!(finished(&mut events).await.code, code);
        h1.released().await;
    }
    let controller = Controller::start().await;
    let (mut events, group, [h3]) = controller.start_job([3], JobSpec { survive: true, ..job(1) }).await;
    let killed = Exited { job: group.job, rank: 0, code: -1, signal: 9, ..Default::default() };
    h3.send(agent_message::Body::Exited(killed)).await;
    let end = finished(&mut events).await;
    assert_eq!((end.code, end.reason.as_str()), (137, "rank 0 on h3 was killed by signal 9 (SIGKILL)"));
}

#[tokio::test]
async fn the_exit_of_an_excluded_rank_does_not_end_its_job() {
    let controller = Controller::start().await;
    let mut agents = Vec::new();
    for host in 1..=3 {
        agents.push(FakeAgent::join(&controller, host).await);
    }
    let mut events = controller.run(JobSpec { survive: true, ..job(3) }).await.unwrap();
    let mut group = 0;
    for agent in &mut agents {
        group = agent.ready().await.id;
    }
    let mut id = 0;
    for agent in &mut agents {
        id = agent.launched().await.job;
    }
    // Two ranks cannot reach the third and do not wait for it.
    let recover = |rank, misses| {
        agent_message::Body::Recover(Recover { group, rank, timeout_ms: 60_000, agree: None, misses })
    };
    for (rank, agent) in (0..).zip(&agents[..2]) {
        agent.send(recover(rank, vec![2])).await;
    }
    for agent in &mut agents[..2] {
        assert_eq!(agent.ready().await.members.len(), 2);
    }
    agents[2].send(recover(2, vec![0, 1])).await;
    let refused = agents[2].receive().await;
    let controller_message::Body::Recovered(outcome) = refused else { panic!("not refused: {refused:?}") };
    assert!(outcome.failure.contains("rank 2 counts as lost"), "{}", outcome.failure);
    agents[2].exit(id, 2, 1).await;
    agents[0].exit(id, 0, 0).await;
    agents[1].exit(id, 1, 0).await;
    assert_eq!(finished(&mut events).await.code, 0);
}

#[tokio::test]
async fn a_job_ends_if_its_caller_does_not_reconnect() {
    let timeouts = Timeouts { caller: Duration::from_millis(50), ..Timeouts::default() };
    let controller = Controller::with_timeouts(timeouts).await;
    let (mut events, group, [mut h1]) = controller.start_job([1], job(2)).await;
    assert!(matches!(event(&mut events).await, job_event::Body::Started(_)));
    drop(events);
    h1.killed().await;
    h1.exit(group.job, 0, 1).await;
    h1.exit(group.job, 1, 1).await;
    h1.released().await;
}

#[tokio::test]
async fn a_group_that_cannot_be_formed_fails_its_job() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let mut events = controller.run(job(1)).await.unwrap();
    let group = h1.group().await;
    let failed = GroupFailed { group: group.id, reason: "no socket".into() };
    h1.send(agent_message::Body::GroupFailed(failed)).await;
    let end = finished(&mut events).await;
    assert_eq!((end.code, end.reason.as_str()), (1, "group 1 failed on h1: no socket"));
    h1.released().await;
}

#[tokio::test]
async fn agents_that_do_not_respond_are_named_and_skipped() {
    let timeouts = Timeouts {
        group_ready: Duration::from_millis(50),
        end: Duration::from_millis(50),
        ..Timeouts::default()
    };
    let controller = Controller::with_timeouts(timeouts).await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let mut h2 = FakeAgent::join(&controller, 2).await;
    let mut events = controller.run(job(2)).await.unwrap();
    h1.group().await;
    h2.group().await;
    let end = finished(&mut events).await;
    assert!(end.reason.contains("not ready on h1, h2 within 50ms"), "{}", end.reason);
    h1.released().await;
    h2.released().await;
}

#[tokio::test]
async fn a_rank_that_does_not_exit_does_not_block_its_job() {
    let timeouts = Timeouts { end: Duration::from_millis(50), ..Timeouts::default() };
    let controller = Controller::with_timeouts(timeouts).await;
    let (mut events, group, [mut h1]) = controller.start_job([1], job(2)).await;
    h1.exit(group.job, 0, 3).await;
    assert_eq!(finished(&mut events).await.rank, Some(0));
    h1.killed().await;
    h1.released().await;
}

#[tokio::test]
async fn slots_of_running_jobs_are_not_reused() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let _running = controller.run(job(1)).await.unwrap();
    h1.ready().await;
    let refused = controller.run(job(2)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), TOO_FEW_SLOTS);
}

#[tokio::test]
async fn jobs_without_room_or_program_are_refused() {
    let controller = Controller::start().await;
    let refused = controller.run(job(1)).await.unwrap_err();
    assert!(refused.message().contains("no node is ready"), "{refused}");
    let refused = controller.run(JobSpec { program: String::new(), ..job(1) }).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let refused = controller.run(JobSpec { placement: 9, ..job(1) }).await.unwrap_err();
    assert!(refused.message().contains("placement 9"), "{refused}");
}

#[tokio::test]
async fn reports_about_ranks_of_another_node_are_ignored() {
    let controller = Controller::start().await;
    let (mut events, group, [h1, h2]) = controller.start_job([1, 2], job(2)).await;
    h2.exit(group.job, 0, 5).await;
    h2.exit(group.job, 99, 5).await;
    h2.exit(group.job + 1, 0, 5).await;
    h2.exit(group.job, 1, 0).await;
    h1.exit(group.job, 0, 0).await;
    assert_eq!(finished(&mut events).await.code, 0);
}

#[tokio::test]
async fn a_controller_that_stops_hands_its_jobs_over() {
    let mut first = Controller::start().await;
    let mut h1 = FakeAgent::join(&first, 1).await;
    let mut events = first.run(job(1)).await.unwrap();
    let group = h1.ready().await;
    h1.launched().await;
    assert!(matches!(event(&mut events).await, job_event::Body::Started(_)));
    // The caller receives all earlier output, and then the status Unavailable.
    for line in 0..100 {
        h1.print(group.job, 0, &line.to_string()).await;
    }
    first.stop();
    let acknowledged = h1.controller_stopped().await;
    let mut lines = 0;
    let status = loop {
        match events.message().await {
            Ok(Some(JobEvent { body: Some(job_event::Body::Output(_)) })) => lines += 1,
            Ok(other) => panic!("{other:?}"),
            Err(status) => break status,
        }
    };
    assert_eq!((status.code(), acknowledged), (Code::Unavailable, 1 + lines));
    assert_eq!(first.network.groups(), [group.id], "its trees stay");
    drop((h1, events));
    first.ended().await;
}

#[tokio::test]
async fn a_users_job_runs_only_on_agents_that_can_run_it_as_the_user() {
    let controller = Controller::with_users().await;
    let before = Register { features: features::TAGS, ..registration(1) };
    let mut h1 = FakeAgent::try_join(&controller, before).await.unwrap();
    h1.registered().await;
    let mut ann = controller.client_as(Role::Tool, "users/ann").await;
    let refused = ann.run(job(1)).await.unwrap_err();
    assert!(refused.message().ends_with("agents too old to run jobs as a user: h1"), "{refused}");
    let _operators = controller.run(JobSpec { user: "ann".into(), ..job(1) }).await.unwrap();
    h1.ready().await;
    let mut h2 = FakeAgent::join(&controller, 2).await;
    let _anns = ann.run(job(1)).await.unwrap();
    h2.ready().await;
    assert_eq!(h2.launched().await.user, "ann");
}

#[tokio::test]
async fn jobs_are_listed_without_environment_variables() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    assert!(controller.jobs().await.is_empty());
    let env = [("SECRET".into(), "x".into())].into();
    let mut events = controller.run(JobSpec { env, user: "ann".into(), ..job(2) }).await.unwrap();
    let group = h1.ready().await;
    h1.launched().await;
    assert!(matches!(event(&mut events).await, job_event::Body::Started(_)));
    let jobs = controller.jobs().await;
    assert_eq!((jobs.len(), jobs[0].job, jobs[0].group), (1, group.job, group.id));
    assert_eq!(
        (jobs[0].state(), &jobs[0].nodes[..]),
        (State::Running, &["h1".to_owned(), "h1".to_owned()][..])
    );
    let spec = jobs[0].spec.clone().unwrap();
    assert_eq!((spec.program.as_str(), spec.user.as_str(), spec.env.len()), ("program", "ann", 0));
}

#[tokio::test]
async fn a_canceled_job_reports_the_user_that_canceled_it() {
    let controller = Controller::start().await;
    let (mut events, group, [mut h1]) = controller.start_job([1], job(1)).await;
    controller.cancel(group.job).await.unwrap();
    h1.killed().await;
    h1.exit(group.job, 0, 1).await;
    let end = finished(&mut events).await;
    assert_eq!((end.code, end.rank, end.reason.as_str()), (143, None, "canceled by ann"));
    h1.released().await;
    assert_eq!(controller.cancel(group.job).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_job_whose_caller_does_not_read_can_be_canceled() {
    let controller = Controller::start().await;
    let (_unread, group, [mut h1]) = controller.start_job([1], job(1)).await;
    flood(&mut h1, group.job).await;
    controller.cancel(group.job).await.unwrap();
    h1.killed().await;
}

/// Number of lines of 16 KiB: fewer than are kept for a caller, more than it may leave unread.
const MANY: u64 = 150;

/// Prints lines of a rank until its agent must block the rank.
async fn flood(agent: &mut FakeAgent, job: u64) {
    for number in 1..=MANY {
        agent.print_line(job, 0, number, &"x".repeat(1 << 14)).await;
    }
    assert_eq!(agent.held().await, HoldOutput { job, held: true });
}

/// Returns the numbers of the lines received, up to `last`.
async fn lines(events: &mut Streaming<JobEvent>, last: u64) -> Vec<u64> {
    let mut lines = Vec::new();
    while lines.last() != Some(&last) {
        if let job_event::Body::Output(output) = event(events).await {
            lines.push(output.number);
        }
    }
    lines
}

#[tokio::test]
async fn a_caller_that_does_not_read_blocks_only_its_own_ranks() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let mut unread = controller.run(job(1)).await.unwrap();
    let unread_job = h1.ready().await.job;
    h1.launched().await;
    flood(&mut h1, unread_job).await;
    // Another job on the same node.
    let mut events = controller.run(job(1)).await.unwrap();
    let group = h1.ready().await;
    h1.launched().await;
    h1.exit(group.job, 0, 0).await;
    assert_eq!(finished(&mut events).await.code, 0);
    h1.released().await;
    assert_eq!(lines(&mut unread, MANY).await, (1..=MANY).collect::<Vec<_>>());
    assert_eq!(h1.held().await, HoldOutput { job: unread_job, held: false });
    h1.exit(unread_job, 0, 0).await;
    assert_eq!(finished(&mut unread).await.code, 0);
}

#[tokio::test]
async fn all_lines_of_ending_ranks_reach_a_slow_caller() {
    let controller = Controller::start().await;
    let (mut events, group, [h1, mut h2]) = controller.start_job([1, 2], job(2)).await;
    let job = group.job;
    h1.exit(job, 0, 7).await;
    h2.killed().await;
    let print = async |h2: &FakeAgent, first: u64| {
        for number in first..first + MANY {
            h2.print_line(job, 1, number, &"x".repeat(1 << 14)).await;
        }
    };
    print(&h2, 1).await;
    assert_eq!(h2.held().await, HoldOutput { job, held: true });
    // More lines than are kept for a caller, if the ranks did not wait for it.
    assert_eq!(lines(&mut events, MANY).await, (1..=MANY).collect::<Vec<_>>());
    assert_eq!(h2.held().await, HoldOutput { job, held: false });
    print(&h2, MANY + 1).await;
    h2.exit(job, 1, 0).await;
    assert_eq!(lines(&mut events, 2 * MANY).await, (MANY + 1..=2 * MANY).collect::<Vec<_>>());
    assert_eq!(finished(&mut events).await.code, 7);
}

#[tokio::test]
async fn a_reconnecting_caller_receives_every_line() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let mut events = controller.run(job(1)).await.unwrap();
    let id = h1.ready().await.job;
    h1.launched().await;
    for number in 1..=3 {
        h1.print_line(id, 0, number, "acknowledged").await;
    }
    assert_eq!(lines(&mut events, 2).await, [1, 2]);
    drop(events);
    h1.print_line(id, 0, 4, "meanwhile").await;
    // Lines in flight are sent again, and every new connection receives the start of the job.
    let mut events = controller.attend(id).await.unwrap();
    assert!(matches!(event(&mut events).await, job_event::Body::Started(_)));
    assert_eq!(lines(&mut events, 4).await, [1, 2, 3, 4]);
    drop(events);
    h1.print_line(id, 0, 5, "last").await;
    h1.exit(id, 0, 7).await;
    h1.released().await;
    assert!(controller.jobs().await.is_empty());
    // The job has ended, but its caller has not received the result yet.
    let mut events = controller.attend(id).await.unwrap();
    assert!(lines(&mut events, 5).await.ends_with(&[4, 5]));
    assert_eq!(finished(&mut events).await.code, 7);
    drop(events);
    let again = finished(&mut controller.attend(id).await.unwrap()).await;
    assert_eq!(again.code, 7, "it may have been lost on the way");
}

#[tokio::test]
async fn a_disconnected_caller_gets_the_newest_lines_only() {
    let controller = Controller::start().await;
    let mut h1 = FakeAgent::join(&controller, 1).await;
    let events = controller.run(job(1)).await.unwrap();
    let id = h1.ready().await.job;
    h1.launched().await;
    drop(events);
    let all = 1000;
    for number in 1..=all {
        h1.print_line(id, 0, number, &"x".repeat(1 << 14)).await;
    }
    h1.exit(id, 0, 0).await;
    loop {
        match h1.receive().await {
            controller_message::Body::Release(_) => break,
            // The controller may block the ranks until it notices that the caller has disconnected.
            controller_message::Body::Hold(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let mut events = controller.attend(id).await.unwrap();
    let kept = lines(&mut events, all).await;
    let (before, newest): (Vec<u64>, Vec<u64>) = kept.iter().partition(|number| **number < all - 200);
    assert_eq!(newest, (all - 200..=all).collect::<Vec<_>>());
    assert!((before.len() as u64) < all - 200, "some are lost");
    assert_eq!(finished(&mut events).await.code, 0);
}

#[tokio::test]
async fn a_job_ends_at_its_time_limit() {
    let controller = Controller::start().await;
    let (mut events, group, [mut h1]) =
        controller.start_job([1], JobSpec { time_limit_ms: 50, ..job(1) }).await;
    h1.killed().await;
    h1.exit(group.job, 0, 1).await;
    let end = finished(&mut events).await;
    assert_eq!((end.code, end.reason.as_str()), (124, "it exceeded its time limit of 50ms"));
}

#[tokio::test]
async fn signals_go_to_every_node_of_a_job() {
    let controller = Controller::start().await;
    let (_events, group, [mut h1, mut h2]) = controller.start_job([1, 2], job(2)).await;
    controller.signal(group.job, 10).await.unwrap();
    for agent in [&mut h1, &mut h2] {
        assert_eq!(agent.signalled().await, SignalRequest { job: group.job, signal: 10 });
    }
    assert_eq!(controller.signal(group.job, 0).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(controller.signal(99, 10).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_job_runs_only_on_the_named_nodes_and_racks() {
    let controller = Controller::start().await;
    let mut agents = Vec::new();
    for i in 1..=4 {
        agents.push(FakeAgent::join(&controller, i).await);
    }
    let hosts = vec!["h2".to_owned(), "h4".to_owned()];
    let _all = controller.run(JobSpec { hosts: hosts.clone(), ..job(0) }).await.unwrap();
    let group = agents[1].ready().await;
    assert_eq!(group.members.iter().map(|m| m.node.as_str()).collect::<Vec<_>>(), ["h2", "h4"]);
    let _rest = controller.run(JobSpec { racks: vec![1], ..job(3) }).await.unwrap();
    assert_eq!(agents[2].ready().await.members.len(), 3);
    let refused = |spec| async { controller.run(spec).await.unwrap_err().message().to_owned() };
    assert_eq!(
        refused(JobSpec { hosts: vec!["h2".into(), "h9".into()], ..job(1) }).await,
        "--hosts: no node h9 is ready; ready nodes: h1, h2, h3, h4"
    );
    assert!(
        refused(JobSpec { racks: vec![0, 7], ..job(1) }).await.starts_with("--racks: no node of rack 7 ")
    );
    let too_few = refused(JobSpec { hosts, racks: vec![0], ..job(2) }).await;
    assert_eq!(too_few, TOO_FEW_SLOTS);
}
