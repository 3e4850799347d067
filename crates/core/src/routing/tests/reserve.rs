//! Room that is reserved for owners below their share.

use penstock_predict::ReportedLimits;
use penstock_scoring::Objectives;

use super::work_limit::{SENT, send, trained};
use super::{Fleet, NOW, TestRequest, backend};
use crate::fleet::{InflightGuard, Owner, PermitRequest};
use crate::routing::RouteError;

const LARGE: Owner = Owner { id: 1, weight: 1 };
const SMALL: Owner = Owner { id: 2, weight: 1 };

fn fleet(queue: &str) -> Fleet {
    let backends = [0, 1].map(|n| backend(&format!("b{n}"), 8000 + n, "max_in_flight: 8"));
    let backends = backends.concat().replace("max_in", "models: [m], max_in");
    Fleet::of(&format!("queue: {{ {queue} }}\nbackends:\n{backends}"))
}

fn ask(owner: Owner, priority: i32) -> TestRequest<'static> {
    let objectives = Objectives { priority, ..Objectives::default() };
    TestRequest { owner, objectives, streaming: true, ..TestRequest::of("m") }
}

/// Decides, and takes the permit of the decision; `None` if no backend has room.
fn take(fleet: &mut Fleet, owner: Owner, priority: i32) -> Option<InflightGuard> {
    let decision = match fleet.route(ask(owner, priority)) {
        Ok(decision) => decision,
        Err(RouteError::Saturated { .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    let topology = fleet.live.topology();
    let row = decision.serving(&topology).unwrap();
    let is_sheddable = priority < 0;
    let wanted =
        PermitRequest { owner: Some(owner), is_sheddable, now: NOW, ..PermitRequest::default() };
    Some(row.try_reserve(&wanted).unwrap())
}

/// Takes permits for an owner until no backend has room.
fn fill(fleet: &mut Fleet, owner: Owner, priority: i32) -> Vec<InflightGuard> {
    std::iter::from_fn(|| take(fleet, owner, priority)).collect()
}

#[test]
fn owner_that_is_alone_has_all_room() {
    let mut fleet = fleet("size: 10");
    let mut held = fill(&mut fleet, LARGE, 0);
    assert_eq!(held.len(), 16);
    held.truncate(12);
    held.extend(fill(&mut fleet, LARGE, 0));
    assert_eq!(held.len(), 16);
}

#[test]
fn one_slot_in_eight_of_each_backend_is_kept_for_owners_below_their_share() {
    let mut fleet = fleet("size: 10");
    let first = take(&mut fleet, SMALL, 0);
    let large = fill(&mut fleet, LARGE, 0);
    assert_eq!(large.len(), 13, "7 on each backend, one of which the other has");
    let small = fill(&mut fleet, SMALL, 0);
    assert_eq!(small.len(), 2, "the room that was kept");
    drop(small);
    assert!(take(&mut fleet, LARGE, 0).is_none());
    assert!(take(&mut fleet, LARGE, -1).is_none());
    let important = take(&mut fleet, LARGE, 1);
    assert!(important.is_some(), "a more important one may take it");
    drop((first, large, important));
    assert_eq!(fill(&mut fleet, LARGE, 0).len(), 14, "the other may come back");
}

#[test]
fn reserve_ignores_sheddable_requests() {
    let mut fleet = fleet("size: 10");
    let _batch = take(&mut fleet, SMALL, -1);
    assert_eq!(fill(&mut fleet, LARGE, 0).len(), 15);
}

#[test]
fn nothing_is_kept_where_none_waits_or_it_is_off() {
    for queue in ["size: 0", "size: 10, reserve: 0"] {
        let mut fleet = fleet(queue);
        let _small = take(&mut fleet, SMALL, 0);
        assert_eq!(fill(&mut fleet, LARGE, 0).len(), 15, "{queue}");
    }
}

#[test]
fn owners_of_equal_shares_fill_all_room() {
    let mut fleet = fleet("size: 10");
    let mut held = Vec::new();
    // No owner stays below its share for long: each fills the reserved room in its turn.
    loop {
        let both = [LARGE, SMALL].map(|owner| take(&mut fleet, owner, 0));
        if both.iter().all(Option::is_none) {
            break;
        }
        held.extend(both.into_iter().flatten());
    }
    assert_eq!(held.len(), 16);
}

/// Returns whether an owner above its share has to wait on an engine without configured limits.
fn waits(fleet: &mut Fleet, owner: Owner) -> bool {
    matches!(fleet.route(ask(owner, 0)), Err(RouteError::Saturated { .. }))
}

/// Takes a permit for an owner on a backend of the first model.
pub(super) fn held(fleet: &Fleet, owner: Owner, row: u32) -> InflightGuard {
    let wanted = PermitRequest { owner: Some(owner), now: NOW, ..PermitRequest::default() };
    fleet.live.topology().models()[0].serving[row as usize].try_reserve(&wanted).unwrap()
}

#[test]
fn learned_slots_and_prefill_work_are_kept_as_well() {
    let mut fleet = trained("queue: { size: 10, max_backlog: 200ms }\nrouting: { predict: true }");
    let _held = [LARGE, LARGE, SMALL].map(|owner| held(&fleet, owner, 0));
    assert!(!waits(&mut fleet, LARGE), "nothing is full");
    let mut streams: Vec<_> = (0..7).map(|_| send(&fleet, SENT, None)).collect();
    streams.iter_mut().for_each(|ticket| ticket.tokens(1, NOW.0 as f64));
    assert!(!waits(&mut fleet, LARGE), "slots are not known");
    let topology = fleet.live.topology();
    let predictor = topology.models()[0].serving[0].model_state.predictor();
    predictor.refresh(ReportedLimits { slots: 8.0, ..ReportedLimits::default() }, NOW.0 as f64);
    assert!(waits(&mut fleet, LARGE) && !waits(&mut fleet, SMALL), "the last slot of 8");
}

#[test]
fn prompt_that_waits_for_too_long_keeps_large_owners_away() {
    let mut fleet = trained("queue: { size: 10, max_backlog: 200ms }\nrouting: { predict: true }");
    let _held = [LARGE, LARGE, SMALL].map(|owner| held(&fleet, owner, 0));
    let mut waiting = send(&fleet, SENT, None);
    assert!(!waits(&mut fleet, LARGE));
    fleet.now = NOW.after(std::time::Duration::from_secs(1));
    assert!(waits(&mut fleet, LARGE) && !waits(&mut fleet, SMALL));
    waiting.tokens(1, fleet.now.0 as f64);
    assert!(!waits(&mut fleet, LARGE), "it has its first token");
}
