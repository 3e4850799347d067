//! Order, fairness and turns of a queue.

mod any_order;

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::fleet::BackendId;
use crate::tests::CountedWakes;

const RULES: QueueRules = QueueRules { size: 100, newest_first: false };

fn at(ms: u64) -> Timestamp {
    Timestamp(ms * 1000)
}

fn backends(ids: &[u16]) -> BackendSet {
    let mut set = BackendSet::default();
    ids.iter().for_each(|id| set.insert(BackendId(*id)));
    set
}

/// A turn that found no room on these backends.
fn room(ids: &[u16]) -> PassedTurn {
    PassedTurn { backends: backends(ids), is_held_back: false }
}

fn newcomer(owner: u64) -> Newcomer {
    let backends = backends(&[1]);
    Newcomer { backends, priority: 0, owner, weight: 1, due: None, until: at(10_000) }
}

/// Passes every turn on until no request has it.
fn settle(queue: &mut ModelQueue, now: Timestamp) {
    while let Some(id) = holder(queue) {
        queue.pass(id, room(&[1]), now);
    }
}

fn holder(queue: &mut ModelQueue) -> Option<EntryId> {
    queue.turn()
}

fn prompt(tokens: u32) -> Cost {
    Cost { prompt: tokens, output: 0 }
}

/// Signals a free permit and serves the request with the turn; returns its id.
fn serve(queue: &mut ModelQueue, tokens: u32, now: Timestamp) -> Option<EntryId> {
    queue.signal(now);
    let id = holder(queue)?;
    queue.serve(id, prompt(tokens), now);
    settle(queue, now);
    Some(id)
}

fn joined(queue: &mut ModelQueue, one: Newcomer, now: Timestamp) -> EntryId {
    let id = queue.join(&one, RULES, now).unwrap().id;
    settle(queue, now);
    id
}

#[test]
fn important_ones_come_first_then_earlier_deadlines_then_arrival() {
    let mut queue = ModelQueue::default();
    let now = at(0);
    let plain = joined(&mut queue, newcomer(1), now);
    let later = joined(&mut queue, newcomer(1), now);
    let batch = joined(&mut queue, Newcomer { priority: -1, ..newcomer(1) }, now);
    let due = |ms| Newcomer { due: Some(at(ms)), ..newcomer(1) };
    let second = joined(&mut queue, due(900), now);
    let first = joined(&mut queue, due(500), now);
    let important = joined(&mut queue, Newcomer { priority: 5, ..newcomer(1) }, now);
    let order: Vec<_> = std::iter::from_fn(|| serve(&mut queue, 1, now)).collect();
    assert_eq!(order, [important, first, second, plain, later, batch]);
    assert!(queue.is_empty());
}

#[test]
fn missed_objective_does_not_make_others_late() {
    let mut queue = ModelQueue::default();
    let missed = joined(&mut queue, Newcomer { due: Some(at(100)), ..newcomer(1) }, at(0));
    let other = joined(&mut queue, Newcomer { due: Some(at(700)), ..newcomer(1) }, at(0));
    assert_eq!(serve(&mut queue, 1, at(200)), Some(other));
    assert_eq!(serve(&mut queue, 1, at(200)), Some(missed));
}

#[test]
fn keys_take_turns_by_weighted_tokens() {
    let mut queue = ModelQueue::default();
    // One key sends 20 times as many requests as the others; one weighs twice as much.
    let mut owners = BTreeMap::new();
    let send = |queue: &mut ModelQueue, owners: &mut BTreeMap<EntryId, u64>, owner, count| {
        for _ in 0..count {
            let weight = if owner == 3 { 2 } else { 1 };
            let one = Newcomer { weight, ..newcomer(owner) };
            owners.insert(
                queue.join(&one, QueueRules { size: 10_000, ..RULES }, at(0)).unwrap().id,
                owner,
            );
        }
    };
    send(&mut queue, &mut owners, 1, 2000);
    for owner in [2, 3, 4] {
        send(&mut queue, &mut owners, owner, 100);
    }
    let mut served: BTreeMap<u64, u64> = BTreeMap::new();
    // The requests of owner 4 cost a quarter.
    for _ in 0..200 {
        let id = holder(&mut queue).unwrap();
        let owner = owners[&id];
        let tokens = if owner == 4 { 250 } else { 1000 };
        queue.serve(id, prompt(tokens), at(1));
        *served.entry(owner).or_default() += u64::from(tokens);
    }
    let shares =
        [1, 2, 3, 4].map(|owner| served[&owner] as f64 / if owner == 3 { 2.0 } else { 1.0 });
    let (sum, squares) =
        (shares.iter().sum::<f64>(), shares.iter().map(|one| one * one).sum::<f64>());
    let jain = sum * sum / (4.0 * squares);
    assert!(jain > 0.99, "{served:?} {jain}");
}

#[test]
fn pause_of_a_key_is_not_saved_up() {
    let mut queue = ModelQueue::default();
    for _ in 0..50 {
        joined(&mut queue, newcomer(1), at(0));
    }
    for _ in 0..40 {
        serve(&mut queue, 1000, at(0));
    }
    let late: Vec<_> = (0..5).map(|_| joined(&mut queue, newcomer(2), at(0))).collect();
    let next: Vec<_> = (0..6).filter_map(|_| serve(&mut queue, 1000, at(0))).collect();
    let of_late = next.iter().filter(|id| late.contains(id)).count();
    assert_eq!(of_late, 3, "in turns, not all before");
}

#[test]
fn owners_pay_for_the_output_that_came() {
    // Two owners take turns. Their requests are expected to cost the same; those of the first use
    // ten times the tokens.
    let mut queue = ModelQueue::default();
    let expected = Cost { prompt: 100, output: 50 };
    let mut owners = BTreeMap::new();
    for owner in [1, 2] {
        for _ in 0..200 {
            let id = queue.join(&newcomer(owner), QueueRules { size: 400, ..RULES }, at(0));
            owners.insert(id.unwrap().id, owner);
        }
    }
    let mut served = [0_u32; 2];
    for _ in 0..110 {
        let id = holder(&mut queue).unwrap();
        let charge = queue.serve(id, expected, at(0)).unwrap();
        let (place, output) = if owners[&id] == 1 { (0, 500) } else { (1, 50) };
        queue.settle(&charge, Cost { output, ..charge.cost });
        served[place] += 1;
    }
    // 1,100 and 200 tokens each.
    assert!((4..7).contains(&(served[1] / served[0])), "{served:?}");
    let id = holder(&mut queue).unwrap();
    let charge = queue.serve(id, expected, at(0)).unwrap();
    let (before, owner) = (holder(&mut queue).unwrap(), owners[&id]);
    queue.settle(&charge, Cost::default());
    queue.pass(before, room(&[1]), at(0));
    queue.signal(at(0));
    let next = owners[&holder(&mut queue).unwrap()];
    assert_eq!(next, owner, "a refused one costs nothing, so that its owner has the turn again");
}

#[test]
fn remembered_owners_are_bounded_for_all_priorities_together() {
    let mut queue = ModelQueue::default();
    for owner in 0..20_000_u64 {
        let priority = i32::try_from(owner % 201).unwrap() - 100;
        joined(&mut queue, Newcomer { priority, ..newcomer(owner) }, at(0));
        assert!(serve(&mut queue, 1000, at(0)).is_some());
    }
    assert!(queue.idle_owners() <= 4096, "{}", queue.idle_owners());
}

#[test]
fn newest_come_first_only_while_the_queue_stands() {
    let rules = QueueRules { newest_first: true, ..RULES };
    let mut queue = ModelQueue::default();
    let ids: Vec<_> = (0..4).map(|_| queue.join(&newcomer(1), rules, at(0)).unwrap().id).collect();
    settle(&mut queue, at(0));
    assert_eq!(serve(&mut queue, 1, at(500)), Some(ids[0]));
    assert_eq!(serve(&mut queue, 1, at(1500)), Some(ids[3]));
    let urgent = Newcomer { due: Some(at(3000)), ..newcomer(1) };
    let urgent = queue.join(&urgent, rules, at(1500)).unwrap().id;
    settle(&mut queue, at(1500));
    assert_eq!(serve(&mut queue, 1, at(1600)), Some(urgent), "with an objective: by deadline");
    assert_eq!(serve(&mut queue, 1, at(1600)), Some(ids[2]));
}

#[test]
fn full_queue_keeps_the_important() {
    let mut queue = ModelQueue::default();
    let rules = QueueRules { size: 2, ..RULES };
    let kept = queue.join(&newcomer(1), rules, at(0)).unwrap().id;
    settle(&mut queue, at(0));
    let batch = Newcomer { priority: -5, ..newcomer(2) };
    let displaced = queue.join(&batch, rules, at(0)).unwrap().id;
    settle(&mut queue, at(0));
    assert!(queue.join(&batch, rules, at(0)).is_err(), "not more important");
    let cx = Context::from_waker(Waker::noop());
    assert_eq!(queue.poll(displaced, &cx), Poll::Pending);
    let taken = queue.join(&newcomer(3), rules, at(0)).unwrap().id;
    assert_eq!(queue.poll(displaced, &cx), Poll::Ready(Turn::Displaced));
    assert_eq!(queue.len(), 2);
    queue.leave(displaced, QueueEnd::Displaced, at(0));
    assert!(queue.join(&newcomer(3), rules, at(0)).is_err());
    settle(&mut queue, at(0));
    assert_eq!(
        [serve(&mut queue, 1, at(0)), serve(&mut queue, 1, at(0))],
        [Some(kept), Some(taken)]
    );
    let ended: BTreeMap<_, _> =
        QueueEnd::ALL.map(QueueEnd::name).into_iter().zip(queue.ended()).collect();
    assert_eq!((ended["full"], ended["displaced"], ended["served"]), (2, 1, 2));
}

#[test]
fn request_with_the_turn_keeps_its_place_and_the_next_lowest_leaves() {
    for ids in [&[1][..], &[2]] {
        let mut queue = ModelQueue::default();
        let rules = QueueRules { size: 3, ..RULES };
        let lower = |priority| Newcomer { priority, ..newcomer(1) };
        let lowest = queue.join(&lower(-5), rules, at(0)).unwrap().id;
        assert_eq!(holder(&mut queue), Some(lowest));
        let others = Newcomer { backends: backends(ids), ..lower(-1) };
        let next = queue.join(&others, rules, at(0)).unwrap().id;
        queue.join(&lower(-2), rules, at(0)).unwrap();
        let displaced = |one: Newcomer, queue: &mut ModelQueue| {
            queue.join(&one, rules, at(0)).unwrap().displaced
        };
        assert!(displaced(newcomer(3), &mut queue).is_some_and(|id| id != lowest && id != next));
        assert_eq!(displaced(newcomer(3), &mut queue), Some(next));
        assert!(queue.join(&newcomer(3), rules, at(0)).is_err());
    }
}

#[test]
fn full_queue_has_room_for_owners_with_few_requests() {
    let mut queue = ModelQueue::default();
    let rules = QueueRules { size: 6, ..RULES };
    let mut join = |one: Newcomer| queue.join(&one, rules, at(0)).map(|joined| joined.displaced);
    let mut free = || join(newcomer(1)).is_ok_and(|displaced| displaced.is_none());
    assert_eq!(std::iter::from_fn(|| free().then_some(())).count(), 6);
    assert!(join(newcomer(1)).is_err(), "its own are no reason");
    let mut places = |one: Newcomer| std::iter::from_fn(|| join(one).ok().flatten()).count();
    assert_eq!(places(newcomer(2)), 3, "3 and 3");
    assert_eq!(places(Newcomer { weight: 2, ..newcomer(3) }), 3, "1 and 2 are left of the others");
    assert!(join(Newcomer { priority: -1, ..newcomer(4) }).is_err(), "less important");
}

#[test]
fn request_without_backend_does_not_hold_up_those_of_others() {
    let mut queue = ModelQueue::default();
    let first = queue.join(&newcomer(1), RULES, at(0)).unwrap().id;
    let other = Newcomer { backends: backends(&[2]), ..newcomer(1) };
    let second = queue.join(&other, RULES, at(0)).unwrap().id;
    assert_eq!(holder(&mut queue), Some(first));
    queue.pass(first, room(&[1]), at(0));
    assert_eq!(holder(&mut queue), Some(second), "its backends may have room");
    // It joined while the first had the turn: that signal is not lost.
    queue.serve(second, prompt(1), at(0));
    assert_eq!(holder(&mut queue), Some(first));
    queue.pass(first, room(&[1]), at(0));
    assert_eq!(holder(&mut queue), None);
}

#[test]
fn signal_during_a_turn_is_not_lost() {
    let mut queue = ModelQueue::default();
    let id = queue.join(&newcomer(1), RULES, at(0)).unwrap().id;
    queue.signal(at(0));
    queue.pass(id, room(&[1]), at(0));
    assert_eq!(holder(&mut queue), Some(id), "tries for that signal");
    queue.pass(id, room(&[1]), at(0));
    assert_eq!(holder(&mut queue), None);
}

#[test]
fn held_back_owner_passes_its_turn_to_the_next_owner() {
    let mut queue = ModelQueue::default();
    let large = queue.join(&newcomer(1), RULES, at(0)).unwrap().id;
    let again = queue.join(&newcomer(1), RULES, at(0)).unwrap().id;
    let held = PassedTurn { is_held_back: true, ..room(&[1]) };
    queue.pass(large, held, at(0));
    assert_eq!((queue.turn(), queue.held_back()), (Some(large), 1), "for the second one that came");
    queue.pass(large, held, at(0));
    assert_eq!((queue.turn(), queue.held_back()), (None, 1), "one request, counted once");
    let small = queue.join(&newcomer(2), RULES, at(0)).unwrap().id;
    let batch = Newcomer { priority: -1, ..newcomer(3) };
    let batch = queue.join(&batch, RULES, at(0)).unwrap().id;
    queue.pass(large, held, at(0));
    assert_eq!(queue.turn(), Some(small));
    queue.serve(small, prompt(1), at(0));
    assert_eq!(queue.turn(), Some(large), "for the last one that came");
    queue.pass(large, held, at(0));
    assert_eq!(queue.turn(), None, "no lower priority overtakes");
    let order: Vec<_> = std::iter::from_fn(|| serve(&mut queue, 1, at(0))).collect();
    assert_eq!(order, [large, again, batch]);
}

#[test]
fn owners_that_are_held_back_cost_few_decisions() {
    let mut queue = ModelQueue::default();
    for owner in 0..100 {
        joined(&mut queue, newcomer(owner), at(0));
    }
    queue.signal(at(0));
    let mut decisions = 0;
    while let Some(id) = queue.turn() {
        queue.pass(id, PassedTurn { is_held_back: true, ..room(&[1]) }, at(0));
        decisions += 1;
    }
    assert_eq!(decisions, 17);
}

#[test]
fn one_signal_wakes_one_request() {
    let (waker, wakes) = CountedWakes::waker();
    let mut queue = ModelQueue::default();
    let ids: Vec<_> = (0..50).map(|_| joined(&mut queue, newcomer(1), at(0))).collect();
    for id in &ids {
        assert_eq!(queue.poll(*id, &Context::from_waker(&waker)), Poll::Pending);
    }
    queue.signal(at(1));
    assert_eq!(wakes.count(), 1);
    queue.pass(ids[0], room(&[1]), at(1));
    assert_eq!(wakes.count(), 1, "no room: the others are left in peace");
}
