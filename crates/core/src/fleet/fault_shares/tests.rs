//! Tests that separate faults of a backend from faults of prompts.

use super::*;

const CONFIG: BreakerConfig = BreakerConfig {
    connect_failures: 3,
    error_share: 0.3,
    min_responses: 20,
    window: Duration::from_secs(30),
    open: Duration::from_secs(2),
    max_open: Duration::from_secs(4),
};

const ALL: [u64; 4] = [0, 1, 2, 3];

/// Four backends of a model, and the responses to one client, in order of time.
#[derive(Default)]
struct Model {
    shares: FaultShares,
    millis: u64,
}

impl Model {
    fn now(&self) -> Timestamp {
        Timestamp(self.millis * 1000)
    }

    /// A response after a tenth of a second.
    fn learn(&mut self, backend: u64, is_fault: bool) -> PauseChanges {
        let started = self.now();
        self.millis += 100;
        let sign =
            Sign { backend, is_fault, is_refusal: false, client: 1, started, at: self.now() };
        self.shares.learn(
            &sign,
            Terms { config: &CONFIG, backends: &ALL, clients: 1, are_refusals: false },
        )
    }

    fn paused(&self) -> Vec<u64> {
        self.shares.pauses().map(|(backend, _)| backend).collect()
    }

    /// Returns the number of faults in a row on a backend until it is paused, if at most `most`.
    fn faults_until_paused(&mut self, backend: u64, most: u32) -> Option<u32> {
        (1..=most).find(|_| self.learn(backend, true).paused.is_some())
    }
}

#[test]
fn backend_that_fails_alone_is_paused_after_three_or_four_faults() {
    assert_eq!(Model::default().faults_until_paused(0, 9), Some(3), "nothing is known of others");
    let mut model = Model::default();
    for backend in [1, 2, 3].repeat(20) {
        model.learn(backend, false);
    }
    assert_eq!(model.faults_until_paused(0, 9), Some(3));
    assert_eq!(model.faults_until_paused(1, 9), Some(3), "a second one at the same time");
    assert_eq!(model.faults_until_paused(2, 9), Some(3), "and a third");
    model.faults_until_paused(3, 99);
    assert!(model.paused().len() < 4, "never all of them: {:?}", model.paused());
}

#[test]
fn faults_everywhere_speak_against_the_prompts() {
    let mut model = Model::default();
    assert_eq!(model.faults_until_paused(0, 9), Some(3));
    assert!(model.learn(1, true).is_empty() && model.learn(2, true).is_empty());
    assert_eq!(model.learn(3, true).released, [0], "all others fail, too");
    for backend in [0, 1, 2, 3].repeat(50) {
        model.learn(backend, true);
    }
    assert!(model.paused().is_empty());
}

#[test]
fn bad_prompts_do_not_hide_a_broken_backend() {
    let mut model = Model::default();
    for (turn, backend) in [1, 2, 3].repeat(60).into_iter().enumerate() {
        model.learn(backend, turn % 10 == 0);
    }
    let faults = model.faults_until_paused(0, 99).unwrap();
    assert!((4..=6).contains(&faults), "{faults} with a tenth of bad prompts");
}

#[test]
fn good_responses_count() {
    let mut model = Model::default();
    for turn in 0..400 {
        for backend in [1, 2, 3] {
            model.learn(backend, false);
        }
        // A quarter of them fail, two in a row.
        model.learn(0, turn % 8 < 2);
        assert!(model.paused().is_empty(), "after {turn}");
    }
    let faults = (0..60).find(|turn| model.learn(0, turn % 3 != 0).paused.is_some());
    assert!(faults.is_some(), "two thirds are too many");
}

#[test]
fn response_to_an_older_request_does_not_end_a_run() {
    let mut model = Model { millis: 1000, ..Model::default() };
    let learn = |model: &mut Model, is_fault, started| {
        let sign =
            Sign { backend: 0, is_fault, is_refusal: false, client: 1, started, at: model.now() };
        model.shares.learn(
            &sign,
            Terms { config: &CONFIG, backends: &ALL, clients: 1, are_refusals: false },
        )
    };
    model.learn(0, true);
    model.learn(0, true);
    model.millis += 100;
    learn(&mut model, false, Timestamp(0));
    assert!(model.learn(0, true).paused.is_some(), "it was sent before the first fault");
    let mut model = Model::default();
    model.learn(0, true);
    model.learn(0, true);
    model.learn(0, false);
    assert!(model.learn(0, true).paused.is_none());
}

#[test]
fn pause_ends_with_a_good_probe_and_doubles_with_a_failed_one() {
    let mut model = Model::default();
    model.learn(1, false);
    assert_eq!(model.faults_until_paused(0, 9), Some(3));
    assert!(model.learn(0, true).is_empty(), "one that was in flight");
    model.millis += 2000;
    assert_eq!(model.learn(0, true).paused, Some(Duration::from_secs(4)));
    model.millis += 4000;
    assert_eq!(model.learn(0, true).paused, Some(Duration::from_secs(4)), "the most");
    model.millis += 4000;
    assert_eq!(model.learn(0, false).released, [0]);
    assert!(model.paused().is_empty());
}

#[test]
fn faults_of_all_clients_count_once_two_have_met_them() {
    let mut shares = FaultShares::default();
    let mut learn = |client, at: u64| {
        let (started, at) = (Timestamp(at), Timestamp(at));
        let sign = Sign { backend: 0, is_fault: true, is_refusal: false, client, started, at };
        shares
            .learn(
                &sign,
                Terms { config: &CONFIG, backends: &ALL, clients: 2, are_refusals: false },
            )
            .paused
            .is_some()
    };
    assert!(!(1..=40).any(|at| learn(7, at)), "one client");
    assert!(learn(8, 50));
}

#[test]
fn number_of_rows_follows_the_backends_in_use() {
    let mut model = Model::default();
    for backend in 0..1000 {
        model.learn(backend, true);
    }
    assert!(model.shares.0.len() <= 302, "{}: those of 30 s", model.shares.0.len());
}
