//! A simulated cluster of controllers and their etcd. A seed determines everything, in steps of a
//! few milliseconds. The invariants are asserted at every step.

use super::super::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

const STEP: Duration = Duration::from_millis(5);
const CONTROLLERS: usize = 3;

/// A simulated etcd with one member, limited to the calls of elections.
#[derive(Default)]
struct Store {
    revision: i64,
    /// End of each lease in true time, and its length.
    leases: BTreeMap<i64, (Time, Duration)>,
    record: LeaderRecord,
    /// Revision in which the leader's key was last changed.
    changed: i64,
}

impl Store {
    fn expire(&mut self, now: Time) {
        self.leases.retain(|_, (end, _)| *end > now);
        let over = |leader: &Leader| !self.leases.contains_key(&leader.lease);
        if self.record.leader.as_ref().is_some_and(over) {
            self.record.leader = None;
            self.revision += 1;
            self.changed = self.revision;
        }
    }

    /// Returns the response to a request, or `None` for a watch without a change.
    fn apply(&mut self, now: Time, from: usize, request: &EtcdRequest, clock: u64) -> Option<EtcdResponse> {
        Some(match *request {
            EtcdRequest::Read => {
                EtcdResponse::Read(LeaderRecord { revision: self.revision, ..self.record.clone() }, clock)
            }
            EtcdRequest::Watch { revision } => {
                return (self.changed > revision).then_some(EtcdResponse::Watched);
            }
            EtcdRequest::Grant { ttl } => {
                self.revision += 1;
                self.leases.insert(self.revision, (now + ttl, ttl));
                EtcdResponse::Granted { lease: self.revision, ttl }
            }
            EtcdRequest::Claim { lease, generation, generation_revision } => {
                let good = self.record.leader.is_none()
                    && self.record.generation_revision == generation_revision
                    && self.leases.contains_key(&lease);
                if good {
                    self.revision += 1;
                    self.changed = self.revision;
                    let leader = Some(Leader { name: from.to_string(), lease });
                    let (generation_revision, revision) = (self.revision, self.revision);
                    self.record = LeaderRecord { leader, generation, generation_revision, revision };
                }
                EtcdResponse::Claimed(good)
            }
            EtcdRequest::Renew { lease } => match self.leases.get_mut(&lease) {
                Some((end, ttl)) => {
                    *end = now + *ttl;
                    EtcdResponse::Renewed { ttl: *ttl }
                }
                None => EtcdResponse::Renewed { ttl: Duration::ZERO },
            },
            EtcdRequest::Revoke { lease } => {
                self.leases.remove(&lease);
                self.expire(now);
                EtcdResponse::Revoked
            }
        })
    }
}

/// A controller process. It may pause, exit and be restarted.
struct Process {
    election: Election,
    /// Rate of its clock, and the error of its calendar in nanoseconds.
    rate: f64,
    calendar: i64,
    /// Number of the request in progress; the request, and the time until which its response is
    /// awaited, by this process's clock.
    request: u64,
    asking: Option<(EtcdRequest, Time)>,
    leads: Option<u64>,
    stands_still_until: Time,
    /// Time of its restart.
    starts_at: Option<Time>,
}

enum Mail {
    Request(usize, u64, EtcdRequest),
    Response(usize, u64, EtcdResponse),
}

pub(super) struct World {
    chance: ChaCha8Rng,
    now: Time,
    ttl: Duration,
    store: Store,
    away_until: Time,
    processes: Vec<Process>,
    /// Messages in flight, each with its time of arrival.
    mail: Vec<(Time, Mail)>,
    /// Highest generation that a switch has received.
    fence: u64,
    calm: bool,
}

impl World {
    pub(super) fn new(seed: u64, ttl: Duration) -> World {
        let mut chance = ChaCha8Rng::seed_from_u64(seed);
        let hour = 3_600_000_000_000;
        let processes = (0..CONTROLLERS).map(|_| Process {
            election: Election::new(ttl),
            // The rate is as inaccurate as that of the worst quartz clocks.
            rate: 1.0 + chance.random_range(-5e-4..5e-4),
            calendar: chance.random_range(-hour..hour),
            request: 0,
            asking: None,
            leads: None,
            stands_still_until: Time::ZERO,
            starts_at: None,
        });
        let processes = processes.collect();
        World {
            chance,
            now: Time::ZERO,
            ttl,
            store: Store::default(),
            away_until: Time::ZERO,
            processes,
            mail: Vec::new(),
            fence: 0,
            calm: false,
        }
    }

    /// Stops injecting faults.
    pub(super) fn calm(&mut self) {
        self.calm = true;
        self.away_until = self.now;
        self.processes.iter_mut().for_each(|process| process.stands_still_until = self.now);
    }

    /// Returns the leaders, each with its generation.
    pub(super) fn leaders(&self) -> Vec<(usize, u64)> {
        let leads = self.processes.iter().enumerate();
        leads.filter_map(|(number, process)| Some((number, process.leads?))).collect()
    }

    pub(super) fn run(&mut self, length: Duration) {
        let end = self.now + length;
        while self.now < end {
            self.now += STEP;
            self.store.expire(self.now);
            if !self.calm {
                self.trouble();
            }
            self.deliver();
            (0..CONTROLLERS).for_each(|number| self.turn(number));
            self.check();
        }
    }

    /// Asserts that at most one controller acts as leader at a time.
    fn check(&self) {
        let acting = self.processes.iter().filter(|p| p.leads.is_some() && p.stands_still_until <= self.now);
        assert!(acting.count() <= 1, "two lead at {:?}", self.now);
    }

    fn trouble(&mut self) {
        const LONGEST_MILLIS: u64 = 8000;
        if self.chance.random_bool(0.0003) {
            self.away_until = self.now + Duration::from_millis(self.chance.random_range(0..LONGEST_MILLIS));
        }
        for number in 0..CONTROLLERS {
            match self.chance.random_range(0..10_000) {
                0..4 => {
                    let still = Duration::from_millis(self.chance.random_range(0..LONGEST_MILLIS));
                    self.processes[number].stands_still_until = self.now + still;
                }
                4..7 => self.end(number),
                7..10 => {
                    // It had stopped serving before.
                    self.processes[number].leads = None;
                    let local = self.local(number);
                    self.processes[number].election.handle(local, Input::Resign);
                }
                _ => {}
            }
        }
    }

    fn end(&mut self, number: usize) {
        let later = self.now + Duration::from_millis(self.chance.random_range(0..2000));
        let process = &mut self.processes[number];
        (process.leads, process.asking, process.starts_at) = (None, None, Some(later));
        process.request += 1;
    }

    /// Returns the time of a controller's clock.
    fn local(&self, number: usize) -> Time {
        Time::from_nanos((self.now.as_nanos() as f64 * self.processes[number].rate) as u64)
    }

    fn send(&mut self, mail: Mail) {
        let millis = match self.calm {
            true => self.chance.random_range(0..20),
            false if self.chance.random_bool(0.1) => return,
            false if self.chance.random_bool(0.1) => self.chance.random_range(0..5000),
            false => self.chance.random_range(0..100),
        };
        self.mail.push((self.now + Duration::from_millis(millis), mail));
    }

    fn deliver(&mut self) {
        let now = self.now;
        let due: Vec<_> = self.mail.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, mail) in due {
            match mail {
                Mail::Request(..) if now < self.away_until => {}
                Mail::Request(from, number, request) => {
                    let calendar = super::CLOCK.saturating_add_signed(self.processes[from].calendar);
                    match self.store.apply(now, from, &request, calendar + now.as_nanos()) {
                        Some(answer) => self.send(Mail::Response(from, number, answer)),
                        None => self.mail.push((now + STEP, Mail::Request(from, number, request))),
                    }
                }
                Mail::Response(to, number, answer) => {
                    let process = &self.processes[to];
                    if process.stands_still_until > now {
                        // The message waits until the process continues.
                        self.mail.push((process.stands_still_until, Mail::Response(to, number, answer)));
                    } else if process.request == number && process.asking.is_some() {
                        self.answered(to, Some(answer));
                    }
                }
            }
        }
    }

    fn answered(&mut self, number: usize, answer: Option<EtcdResponse>) {
        let local = self.local(number);
        self.processes[number].asking = None;
        self.processes[number].election.handle(local, Input::Responded(answer));
    }

    /// Runs a process for one step, unless it is paused.
    fn turn(&mut self, number: usize) {
        let local = self.local(number);
        let process = &mut self.processes[number];
        if process.stands_still_until > self.now {
            return;
        }
        if process.starts_at.is_some_and(|at| at <= self.now) {
            (process.starts_at, process.election) = (None, Election::new(self.ttl));
        }
        if process.starts_at.is_some() {
            return;
        }
        if let Some((request, _)) = process.asking.clone().filter(|(_, until)| *until <= local) {
            let watched = matches!(request, EtcdRequest::Watch { .. }).then_some(EtcdResponse::Watched);
            self.answered(number, watched);
        }
        while let Poll::Output(output) = self.processes[number].election.poll(local) {
            let process = &mut self.processes[number];
            match output {
                Output::Send(request, within) => {
                    process.request += 1;
                    process.asking = Some((request.clone(), local + within));
                    let mail = Mail::Request(number, process.request, request);
                    self.send(mail);
                }
                Output::StandBy(_) => {}
                Output::Lead(generation) => {
                    assert!(
                        generation >= self.fence + last_generation::tick_nanos(),
                        "no generation comes again"
                    );
                    (process.leads, self.fence) = (Some(generation), generation);
                }
                Output::Lost(_) | Output::Resigned => self.end(number),
            }
        }
    }
}
