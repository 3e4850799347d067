//! Explanations show what the decision did: both come from one pass through the same rules.

use std::time::Duration;

use super::{Fleet, NOW, TestRequest, alike, plain_input};
use crate::routing::{Live, RouteInput};

/// The picked backend is not shown as rejected, even if only backends in slow start are left.
#[test]
fn explain_admits_its_pick_when_only_slow_start_is_left() {
    for strategy in ["smart", "round_robin", "priority_only", "random", "deployment", "weighted"] {
        let mut fleet =
            Fleet::of(&format!("routing: {{ strategy: {strategy} }}\n{}", alike(2, "m")));
        for name in ["b0", "b1"] {
            fleet.state(name).begin_slow_start(NOW, Duration::from_secs(600));
        }
        for moment in 0..50 {
            fleet.now = NOW.after(Duration::from_micros(7 * moment));
            let topology = fleet.live.topology();
            let request = TestRequest::of("m").profile();
            let input =
                RouteInput { now: fleet.now, ..plain_input(&request, &topology, &fleet.tried) };
            let mut random = Live { topology: &topology, rng: &mut fleet.rng };
            let explained = fleet.router.explain(&input, &mut random);
            let decision = explained.result.unwrap();
            let picked = &explained.candidates[decision.row as usize];
            assert_eq!(picked.excluded, None, "{strategy} at {moment}: {picked:?}");
            assert_eq!(picked.total.is_some(), strategy == "weighted", "{strategy}");
        }
    }
}
