//! The oracle and its verdicts on refusals.

use super::*;

fn with_objectives(routing: &str, backends: usize) -> WorldSpec {
    let (ttft_ms, tpot_ms) = (Some(1000.0), Some(60.0));
    let objectives = Objectives { ttft_ms, tpot_ms, ..Objectives::default() };
    WorldSpec { objectives, judges_sheds: true, ..world(routing, backends) }
}

fn oracle(backends: usize) -> WorldSpec {
    WorldSpec {
        oracle: Some(Oracle::Sheddable),
        ..with_objectives("strategy: round_robin", backends)
    }
}

fn good(result: &RunResult, which: impl Fn(usize) -> bool) -> usize {
    let objective = Objective { first_token: 1.0, per_token: 0.06 };
    let all = result.requests.iter().enumerate();
    all.filter(|(index, one)| which(*index) && objective.is_reached(one)).count()
}

/// A workload of two priorities; requests of the lower one may be refused.
fn two_priorities(requests: u32, rate: f64) -> Workload {
    let mut workload = mixed(requests, rate, 1.0);
    for (index, request) in workload.requests.iter_mut().enumerate() {
        request.priority = if index % 3 == 0 { 1 } else { -1 };
    }
    workload
}

/// No request arrives after the last one, so the future computed at its arrival is its result.
#[test]
fn oracle_predicts_the_ttft_without_later_requests() {
    let mut workload = mixed(400, 60.0, 1.0);
    // The last three requests are on their way together, two of them with long prompts to the same
    // engine.
    let at = workload.requests[397].arrives_at;
    for (request, micros) in workload.requests[397..].iter_mut().zip(0..) {
        (request.arrives_at, request.input_tokens) = (at + micros, 6000);
    }
    let spec = with_objectives("strategy: round_robin", 2);
    let last = 399_u32;
    let mut world = World::new(&spec, &workload).unwrap();
    let roots = workload.roots();
    for id in &roots[..399] {
        while world.results[*id as usize].arrived == 0 {
            assert!(world.step(Some((world.arrival_of(*id), *id))));
        }
    }
    let at = world.arrival_of(last);
    while world.queue.next_at().is_some_and(|(next, _)| next < at)
        || world.engines.next_at().is_some_and(|(next, _)| next < at)
    {
        world.step(None);
    }
    world.results[last as usize].arrived = at;
    let foreseen = [0, 1].map(|index| world.look_ahead(index, Some(last), at).unwrap());
    let without = [0, 1].map(|index| world.look_ahead(index, None, at).unwrap().good);
    let there: Vec<u32> = (0..400).filter(|id| world.live[*id as usize].is_some()).collect();
    assert!(there.len() > 20 && world.sent.iter().all(|sent| !sent.is_empty()), "{}", there.len());
    world.results[last as usize].arrived = 0;
    world.arrive(last, at);
    while world.step(None) && world.open > 0 {}
    let result = world.into_result();
    let own = &result.requests[last as usize];
    let index = usize::from(own.backend);
    let Future { first_token, ended, .. } = foreseen[index].own;
    assert_eq!((first_token, ended), (own.first_token, own.ended), "to the microsecond");
    let good_at = |which: usize| {
        good(&result, |id| {
            let backend = usize::from(result.requests[id].backend);
            there.iter().any(|one| *one as usize == id) && backend == which
        })
    };
    let is_good = usize::from(good(&result, |id| id == last as usize) == 1);
    assert_eq!(foreseen[index].good, good_at(index) + is_good);
    assert_eq!(without[1 - index], good_at(1 - index));
}

#[test]
fn oracle_is_the_best_and_its_runs_are_equal() {
    let workload = mixed(900, 56.0, 1.0);
    let spec = oracle(4);
    let result = simulate(&spec, &workload).unwrap();
    assert_eq!(simulate(&spec, &workload).as_ref(), Ok(&result), "and again");
    let best = good(&result, |_| true);
    for routing in ["round_robin", "smart", "slo", "weighted"] {
        let spec = with_objectives(&format!("strategy: {routing}"), 4);
        let other = good(&simulate(&spec, &workload).unwrap(), |_| true);
        assert!(best >= other, "{routing}: {other}, oracle: {best}");
    }
}

#[test]
fn oracle_refuses_only_who_may_be_refused_and_never_wrongly() {
    let workload = two_priorities(800, 100.0);
    let result = simulate(&oracle(4), &workload).unwrap();
    let important = |id: usize| workload.requests[id].priority > 0;
    let shed = |which: &dyn Fn(usize) -> bool| {
        let all = result.requests.iter().enumerate();
        all.filter(|(id, one)| which(*id) && one.status.shed_reason().is_some()).count()
    };
    assert_eq!(shed(&important), 0);
    assert!(shed(&|_| true) > 50, "{}", shed(&|_| true));
    assert!(result.requests.iter().all(|one| one.verdict != RefusalVerdict::Wrong));
    let spec = WorldSpec { oracle: Some(Oracle::All), ..oracle(4) };
    let all = simulate(&spec, &workload).unwrap();
    assert!(good(&all, |_| true) > good(&result, |_| true), "what is late even so is no loss");
}

/// Limits that keep the engines empty refuse requests that could have been served.
#[test]
fn refusals_by_a_limit_that_is_too_low_are_wrong() {
    let workload = two_priorities(500, 40.0);
    let mut spec = with_objectives("strategy: smart", 4);
    spec.config.backends.iter_mut().for_each(|backend| backend.max_in_flight = Some(2));
    let result = simulate(&spec, &workload).unwrap();
    let objective = Objective { first_token: 1.0, per_token: 0.06 };
    let sheds = Summary::new(&result, &workload, &objective).sheds.unwrap();
    assert!(sheds.judged > 200 && sheds.wrong_share() > 0.95, "{sheds:?}");
    spec.judges_sheds = false;
    let unseen = simulate(&spec, &workload).unwrap();
    assert!(unseen.requests.iter().all(|one| one.verdict == RefusalVerdict::None));
}
