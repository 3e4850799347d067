//! Balancers that share their requests in flight.

use super::*;

/// Returns a world of four engines, behind balancers that share their load if `shares`.
fn shared(mut spec: WorldSpec, balancers: u32, shares: bool) -> WorldSpec {
    let yaml =
        "shared_state: { redis: 'redis://10.0.0.9' }\nbackends: [{ url: 'http://10.0.0.1:1' }]\n";
    let other = Config::parse(yaml, "test.yaml", Path::new(""), &Environment::default()).unwrap();
    if shares {
        spec.config.shared_state = other.shared_state;
    }
    WorldSpec { balancers, ..spec }
}

#[test]
fn balancers_that_share_predict_better() {
    let found = |shares: bool| {
        let (mut error, mut coverage) = (0.0, 0.0);
        for seed in 1..=4 {
            let workload = mixed_of(3000, 45.0, 1.0, seed);
            let spec = shared(world("strategy: slo", 4), 4, shares);
            let result = simulate(&spec, &workload).unwrap();
            let objective = Objective { first_token: 1.0, per_token: 1.0 };
            let found = Summary::new(&result, &workload, &objective).prediction.unwrap();
            error += found.weighted_error / 4.0;
            coverage += found.coverage / 4.0;
        }
        (error, coverage)
    };
    let (alone, together) = (found(false), found(true));
    assert!(alone.0 < 1.0, "{alone:?}");
    assert!(together.0 < alone.0 * 1.2 && together.1 > alone.1 + 0.05, "{alone:?} {together:?}");
}

/// Returns the maximum number of concurrent requests at a backend, and their mean after the first
/// quarter of the run.
fn at_one_time(result: &RunResult, backend: u16) -> (i32, f64) {
    let mut changes: Vec<(u64, i32)> = Vec::new();
    for one in result.requests.iter().filter(|one| one.backend == backend) {
        changes.extend([(one.decided, 1), (one.ended, -1)]);
    }
    changes.sort_unstable();
    let end = changes.last().unwrap().0;
    let start = result.start + (end - result.start) / 4;
    let (mut count, mut most, mut area, mut before) = (0, 0, 0.0, start);
    for (at, change) in changes {
        area += f64::from(count) * at.saturating_sub(before) as f64;
        before = before.max(at);
        count += change;
        most = most.max(count);
    }
    (most, area / (end - start) as f64)
}

#[test]
fn limit_of_a_backend_holds_for_all_balancers_together() {
    let run = |shares: bool| {
        let mut spec = shared(world("strategy: smart", 2), 2, shares);
        for backend in &mut spec.config.backends {
            backend.max_in_flight = Some(4);
        }
        let yaml = "queue: { size: 5000, timeout: 1h }\nbackends: [{ url: 'http://10.0.0.1:1' }]\n";
        let other = Config::parse(yaml, "test.yaml", Path::new(""), &Environment::default());
        spec.config.queue = other.unwrap().queue;
        let result = simulate(&spec, &mixed(1000, 40.0, 1.0)).unwrap();
        assert!(result.requests.iter().all(|one| one.status == Status::Done));
        at_one_time(&result, 0)
    };
    let (alone, together) = (run(false), run(true));
    assert!(alone.0 == 8 && alone.1 > 7.0, "each has its own limit: {alone:?}");
    // A balancer without requests takes its share, and the other one gives way as its requests end.
    assert!(together.0 < 8 && (3.8..4.1).contains(&together.1), "{together:?}");
}
