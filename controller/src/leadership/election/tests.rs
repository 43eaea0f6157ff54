//! The election by hand, then by seeds: controllers that stop, stand still and have wrong clocks, an etcd that goes away, and
//! messages that are lost or late.

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

/// All that the machine says at a time.
fn says(election: &mut Election, now: Time) -> Vec<Output> {
    std::iter::from_fn(|| match election.poll(now) {
        Poll::Output(output) => Some(output),
        Poll::Idle(_) => None,
    })
    .collect()
}

/// What it says then to this answer.
fn hears(election: &mut Election, now: Time, answer: Option<Answer>) -> Vec<Output> {
    election.handle(now, Input::Answered(answer));
    says(election, now)
}

fn led_by(name: &str, lease: i64) -> Answer {
    let leader = Some(Leader { name: name.into(), lease });
    Answer::Read(Record { leader, generation: 5, generation_revision: 3, revision: 9 }, CLOCK)
}

fn asked(outputs: &[Output]) -> Option<&Request> {
    outputs.iter().find_map(|output| match output {
        Output::Ask(request, _) => Some(request),
        _ => None,
    })
}

/// One that leads with lease 7, which it has asked for at 0 s.
fn leader() -> Election {
    let mut election = Election::new(TTL);
    assert_eq!(asked(&says(&mut election, at(0))), Some(&Request::Read));
    let nobody = Record { leader: None, generation: CLOCK + 9, generation_revision: 3, revision: 9 };
    let asks = hears(&mut election, at(0), Some(Answer::Read(nobody, CLOCK)));
    assert_eq!(asked(&asks), Some(&Request::Grant { ttl: TTL }));
    let asks = hears(&mut election, at(100), Some(Answer::Granted { lease: 7, ttl: TTL }));
    let generation = CLOCK + 9 + tick_nanos();
    let claim = Request::Claim { lease: 7, generation, generation_revision: 3 };
    assert_eq!(asked(&asks), Some(&claim), "later than whoever led before, whatever the clock says");
    let led = hears(&mut election, at(200), Some(Answer::Claimed(true)));
    assert_eq!(led[0], Output::Lead(generation));
    assert_eq!(asked(&led), Some(&Request::Renew { lease: 7 }));
    election
}

#[test]
fn whoever_finds_a_leader_waits_until_that_has_changed() {
    let mut election = Election::new(TTL);
    says(&mut election, at(0));
    let stands_by = hears(&mut election, at(1), Some(led_by("a", 1)));
    assert_eq!(stands_by[0], Output::StandBy(Some("a".into())));
    assert_eq!(asked(&stands_by), Some(&Request::Watch { revision: 9 }));
    let again = hears(&mut election, at(2), Some(Answer::Watched));
    assert_eq!(again, [Output::Ask(Request::Read, SECOND)]);
    assert_eq!(hears(&mut election, at(3), None), [], "not at once");
    assert_eq!(asked(&says(&mut election, at(203))), Some(&Request::Read));
}

#[test]
fn a_leader_stops_by_itself_before_its_lease_ends() {
    let mut election = leader();
    assert_eq!(hears(&mut election, at(800), None), []);
    assert_eq!(asked(&says(&mut election, at(1000))), Some(&Request::Renew { lease: 7 }));
    assert_eq!(says(&mut election, at(2499)), []);
    let lost = LeadershipLost::Unrenewed(Duration::from_millis(2500));
    assert_eq!(says(&mut election, at(2500)), [Output::Lost(lost)]);
    assert_eq!(hears(&mut election, at(2501), Some(Answer::Renewed { ttl: TTL })), [], "too late");
}

#[test]
fn a_renewal_counts_from_when_it_was_asked_for() {
    let mut election = leader();
    hears(&mut election, at(2000), Some(Answer::Renewed { ttl: TTL }));
    assert!(matches!(says(&mut election, at(2700))[..], [Output::Lost(_)]), "asked for at 200 ms");
}

#[test]
fn a_claim_that_is_confirmed_when_the_lease_may_be_over_is_given_back() {
    let mut election = Election::new(TTL);
    says(&mut election, at(0));
    hears(&mut election, at(0), Some(Answer::Read(Record::default(), CLOCK)));
    hears(&mut election, at(100), Some(Answer::Granted { lease: 7, ttl: TTL }));
    let late = hears(&mut election, at(2500), Some(Answer::Claimed(true)));
    assert_eq!(late, [Output::Ask(Request::Revoke { lease: 7 }, SECOND)]);
}

#[test]
fn a_leader_whose_lease_or_key_is_gone_stops_at_once() {
    let mut election = leader();
    let lost = hears(&mut election, at(300), Some(Answer::Renewed { ttl: Duration::ZERO }));
    assert_eq!(lost, [Output::Lost(LeadershipLost::Expired)]);
    let mut election = leader();
    hears(&mut election, at(300), Some(Answer::Renewed { ttl: TTL }));
    assert_eq!(asked(&says(&mut election, at(500))), Some(&Request::Read));
    let lost = hears(&mut election, at(500), Some(led_by("b", 8)));
    assert_eq!(lost, [Output::Lost(LeadershipLost::Deposed(Some("b".into())))]);
}

#[test]
fn whoever_resigns_gives_its_lease_back_and_waits_for_nothing_else() {
    let mut election = Election::new(TTL);
    says(&mut election, at(0));
    election.handle(at(1), Input::Resign);
    assert_eq!(says(&mut election, at(1)), [Output::Resigned]);
    let mut election = leader();
    election.handle(at(300), Input::Resign);
    assert_eq!(says(&mut election, at(300)), [Output::Ask(Request::Revoke { lease: 7 }, SECOND)]);
    assert_eq!(hears(&mut election, at(301), None), [Output::Resigned], "the lease ends by itself");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn never_do_two_lead_generations_grow_and_somebody_leads_when_etcd_is_there(seed: u64) {
        let mut world = World::new(seed, TTL);
        world.run(60 * SECOND);
        world.calm();
        // A claim whose answer was lost holds the key for a lease; then somebody claims, perhaps in several tries.
        world.run(3 * TTL);
        let leaders = world.leaders();
        world.run(20 * SECOND);
        prop_assert_eq!(leaders.len(), 1);
        prop_assert_eq!(world.leaders(), leaders, "whoever leads goes on");
    }
}
