//! Any order of events.

use proptest::prelude::{Just, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Join { owner: u64, priority: i32, set: u16, due: Option<u64> },
    Signal,
    Serve(u32),
    Pass(u16, bool),
    Leave(usize),
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    let due = proptest::option::of(0..5000_u64);
    prop_oneof![
        (0..6_u64, -2..3_i32, 0..20_u16, due).prop_map(|(owner, priority, set, due)| Step::Join {
            owner,
            priority,
            set,
            due
        }),
        Just(Step::Signal),
        (0..5000_u32).prop_map(Step::Serve),
        (0..20_u16, any::<bool>()).prop_map(|(set, is_held)| Step::Pass(set, is_held)),
        any::<usize>().prop_map(Step::Leave),
    ]
}

proptest! {
    /// In any order of events nothing is lost, at most one request has the turn, and after a signal
    /// one has it as long as any waits.
    #[test]
    fn nothing_is_lost(steps in proptest::collection::vec(step(), 0..300)) {
        let mut queue = ModelQueue::default();
        let rules = QueueRules { size: 30, newest_first: true };
        let (mut inside, mut time) = (Vec::new(), 0);
        let cx = Context::from_waker(Waker::noop());
        for step in steps {
            time += 37;
            let now = at(time);
            match step {
                Step::Join { owner, priority, set, due } => {
                    let due = due.map(at);
                    let one = Newcomer { backends: backends(&[set]), priority, due, ..newcomer(owner) };
                    if let Ok(joined) = queue.join(&one, rules, now) {
                        inside.push(joined.id);
                        prop_assert!(holder(&mut queue).is_some());
                    }
                }
                Step::Signal => {
                    queue.signal(now);
                    prop_assert_eq!(holder(&mut queue).is_some(), !queue.is_empty());
                }
                Step::Serve(tokens) => if let Some(id) = holder(&mut queue) {
                    queue.serve(id, prompt(tokens), now);
                    inside.retain(|one| *one != id);
                },
                Step::Pass(set, is_held_back) => if let Some(id) = holder(&mut queue) {
                    queue.pass(id, PassedTurn { is_held_back, ..room(&[set]) }, now);
                },
                Step::Leave(which) => if !inside.is_empty() {
                    let id = inside.remove(which % inside.len());
                    queue.leave(id, QueueEnd::ClientLeft, now);
                },
            }
            let displaced: Vec<_> = inside.iter().copied()
                .filter(|id| queue.poll(*id, &cx) == Poll::Ready(Turn::Displaced)).collect();
            for id in displaced {
                queue.leave(id, QueueEnd::Displaced, now);
                inside.retain(|one| *one != id);
            }
            prop_assert_eq!(queue.len(), inside.len());
            let turns = inside.iter().filter(|id| queue.poll(**id, &cx).is_ready()).count();
            prop_assert!(turns <= 1);
        }
        // All remaining requests can be served.
        let left = inside.len();
        let served = (0..left).filter(|_| {
            queue.signal(at(time));
            holder(&mut queue).map(|id| queue.serve(id, prompt(1), at(time))).is_some()
        });
        prop_assert_eq!(served.count(), left);
        prop_assert!(queue.is_empty());
    }
}
