//! Tests of the election, first step by step, then by seeds: controllers that stop, pause or have
//! wrong clocks, an etcd that fails, and messages that are lost or late.

mod world;

use super::*;
use proptest::prelude::*;
use world::World;

const TTL: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(1);
const CLOCK: u64 = 1_795_000_000_000_000_000;

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

/// Returns all outputs of the machine at a time.
fn outputs(election: &mut Election, now: Time) -> Vec<Output> {
    std::iter::from_fn(|| match election.poll(now) {
        Poll::Output(output) => Some(output),
        Poll::Idle(_) => None,
    })
    .collect()
}

/// Returns the outputs after this response.
fn respond(election: &mut Election, now: Time, answer: Option<EtcdResponse>) -> Vec<Output> {
    election.handle(now, Input::Responded(answer));
    outputs(election, now)
}

fn led_by(name: &str, lease: i64) -> EtcdResponse {
    let leader = Some(Leader { name: name.into(), lease });
    EtcdResponse::Read(LeaderRecord { leader, generation: 5, generation_revision: 3, revision: 9 }, CLOCK)
}

fn asked(outputs: &[Output]) -> Option<&EtcdRequest> {
    outputs.iter().find_map(|output| match output {
        Output::Send(request, _) => Some(request),
        _ => None,
    })
}

/// Returns a leader with lease 7, requested at 0 s.
fn leader() -> Election {
    let mut election = Election::new(TTL);
    assert_eq!(asked(&outputs(&mut election, at(0))), Some(&EtcdRequest::Read));
    let nobody = LeaderRecord { leader: None, generation: CLOCK + 9, generation_revision: 3, revision: 9 };
    let asks = respond(&mut election, at(0), Some(EtcdResponse::Read(nobody, CLOCK)));
    assert_eq!(asked(&asks), Some(&EtcdRequest::Grant { ttl: TTL }));
    let asks = respond(&mut election, at(100), Some(EtcdResponse::Granted { lease: 7, ttl: TTL }));
    let generation = CLOCK + 9 + last_generation::tick_nanos();
    let claim = EtcdRequest::Claim { lease: 7, generation, generation_revision: 3 };
    assert_eq!(asked(&asks), Some(&claim), "later than whoever led before, whatever the clock says");
    let led = respond(&mut election, at(200), Some(EtcdResponse::Claimed(true)));
    assert_eq!(led[0], Output::Lead(generation));
    assert_eq!(asked(&led), Some(&EtcdRequest::Renew { lease: 7 }));
    election
}

#[test]
fn a_standby_waits_until_the_leader_changes() {
    let mut election = Election::new(TTL);
    outputs(&mut election, at(0));
    let stands_by = respond(&mut election, at(1), Some(led_by("a", 1)));
    assert_eq!(stands_by[0], Output::StandBy(Some("a".into())));
    assert_eq!(asked(&stands_by), Some(&EtcdRequest::Watch { revision: 9 }));
    let again = respond(&mut election, at(2), Some(EtcdResponse::Watched));
    assert_eq!(again, [Output::Send(EtcdRequest::Read, SECOND)]);
    assert_eq!(respond(&mut election, at(3), None), [], "not at once");
    assert_eq!(asked(&outputs(&mut election, at(203))), Some(&EtcdRequest::Read));
}

#[test]
fn a_leader_stops_before_its_lease_expires() {
    let mut election = leader();
    assert_eq!(respond(&mut election, at(800), None), []);
    assert_eq!(asked(&outputs(&mut election, at(1000))), Some(&EtcdRequest::Renew { lease: 7 }));
    assert_eq!(outputs(&mut election, at(2499)), []);
    let lost = LeadershipLost::Unrenewed(Duration::from_millis(2500));
    assert_eq!(outputs(&mut election, at(2500)), [Output::Lost(lost)]);
    assert_eq!(respond(&mut election, at(2501), Some(EtcdResponse::Renewed { ttl: TTL })), [], "too late");
}

#[test]
fn a_renewal_counts_from_the_time_of_its_request() {
    let mut election = leader();
    respond(&mut election, at(2000), Some(EtcdResponse::Renewed { ttl: TTL }));
    assert!(matches!(outputs(&mut election, at(2700))[..], [Output::Lost(_)]), "asked for at 200 ms");
}

#[test]
fn a_claim_confirmed_too_late_is_revoked() {
    let mut election = Election::new(TTL);
    outputs(&mut election, at(0));
    respond(&mut election, at(0), Some(EtcdResponse::Read(LeaderRecord::default(), CLOCK)));
    respond(&mut election, at(100), Some(EtcdResponse::Granted { lease: 7, ttl: TTL }));
    let late = respond(&mut election, at(2500), Some(EtcdResponse::Claimed(true)));
    assert_eq!(late, [Output::Send(EtcdRequest::Revoke { lease: 7 }, SECOND)]);
}

#[test]
fn a_leader_without_lease_or_key_stops_at_once() {
    let mut election = leader();
    let lost = respond(&mut election, at(300), Some(EtcdResponse::Renewed { ttl: Duration::ZERO }));
    assert_eq!(lost, [Output::Lost(LeadershipLost::Expired)]);
    let mut election = leader();
    respond(&mut election, at(300), Some(EtcdResponse::Renewed { ttl: TTL }));
    assert_eq!(asked(&outputs(&mut election, at(500))), Some(&EtcdRequest::Read));
    let lost = respond(&mut election, at(500), Some(led_by("b", 8)));
    assert_eq!(lost, [Output::Lost(LeadershipLost::Deposed(Some("b".into())))]);
}

#[test]
fn resigning_revokes_the_lease_and_waits_for_nothing_else() {
    let mut election = Election::new(TTL);
    outputs(&mut election, at(0));
    election.handle(at(1), Input::Resign);
    assert_eq!(outputs(&mut election, at(1)), [Output::Resigned]);
    let mut election = leader();
    election.handle(at(300), Input::Resign);
    assert_eq!(outputs(&mut election, at(300)), [Output::Send(EtcdRequest::Revoke { lease: 7 }, SECOND)]);
    assert_eq!(respond(&mut election, at(301), None), [Output::Resigned], "the lease ends by itself");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn one_controller_leads_at_a_time_with_growing_generations(seed: u64) {
        let mut world = World::new(seed, TTL);
        world.run(60 * SECOND);
        world.calm();
        // A claim without a response holds the key until its lease expires. Then a controller
        // claims again, perhaps after several attempts.
        world.run(3 * TTL);
        let leaders = world.leaders();
        world.run(20 * SECOND);
        prop_assert_eq!(leaders.len(), 1);
        prop_assert_eq!(world.leaders(), leaders, "whoever leads goes on");
    }
}
