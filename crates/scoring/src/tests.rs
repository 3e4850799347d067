use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;
use crate::{
    PICKERS, PRESETS, PrefixParams, Preset, PromptSize, Value, known_reading, parse_scorers,
};

fn specs(text: &str) -> Vec<ScorerSpec> {
    parse_scorers(text).unwrap()
}

fn profile(text: &str) -> Profile {
    Profile::new(&specs(text), Picker::MaxScore).unwrap()
}

/// A backend with `waiting` and `running` requests, and `pending` dispatched since.
fn loaded(name: &str, waiting: f64, running: f64, pending: f64) -> Candidate {
    Candidate {
        waiting: Some(waiting),
        running: Some(running),
        load: Some(waiting + running + pending),
        in_flight: pending,
        ..Candidate::new(name)
    }
}

fn scores_of(text: &str, candidates: &[Candidate]) -> Vec<f64> {
    let mut matrix = ScoreMatrix::default();
    profile(&format!("{text}:1")).score(&RequestFeatures::default(), candidates, &mut matrix);
    matrix.scores(0).to_vec()
}

fn pick(
    profile: &Profile,
    features: &RequestFeatures,
    candidates: &[Candidate],
    seed: u64,
) -> Option<usize> {
    let (mut matrix, mut rng) = (ScoreMatrix::default(), SmallRng::seed_from_u64(seed));
    profile.pick(features, candidates, &mut matrix, &mut rng)
}

#[test]
fn every_formula_gives_its_documented_values() {
    let three =
        [loaded("a", 0.0, 1.0, 0.0), loaded("b", 4.0, 2.0, 5.0), loaded("c", 2.0, 4.0, 0.0)];
    assert_eq!(scores_of("queue-depth", &three), [1.0, 0.0, 0.5]);
    assert_eq!(scores_of("waiting-queue", &three), [1.0, 0.0, 0.5]);
    assert_eq!(scores_of("running-requests", &three), [1.0, 2.0 / 3.0, 0.0]);
    assert_eq!(scores_of("load-balance", &three), [0.5, 1.0 / 12.0, 1.0 / 7.0]);
    assert_eq!(scores_of("active-requests", &three), [1.0, 0.0, 1.0]);
    let same = [loaded("a", 3.0, 0.0, 0.0), loaded("b", 0.0, 3.0, 0.0)];
    assert_eq!(scores_of("queue-depth", &same), [1.0, 1.0], "all equal");
    let kv = |part| Candidate { kv_utilization: Some(part), ..Candidate::new("a") };
    assert_eq!(scores_of("kv-utilization", &[kv(0.25), kv(1.0), kv(3.0)]), [0.75, 0.0, 0.0]);
    let tokens = |tokens_in_flight| Candidate { tokens_in_flight, ..Candidate::new("a") };
    assert_eq!(scores_of("token-load", &[tokens(0.0), tokens(1_048_576.0)]), [1.0, 0.75]);
    let priority = |priority| Candidate { priority, ..Candidate::new("a") };
    assert_eq!(
        scores_of("priority", &[priority(0), priority(25), priority(900)]),
        [1.0, 0.75, 0.0]
    );
    let adapter = |adapter| Candidate { adapter, ..Candidate::new("a") };
    use crate::Adapter::{Absent, Active, FreeSlot, Unknown, Waiting};
    let adapters = [Active, FreeSlot, Waiting, Absent, Unknown].map(adapter);
    assert_eq!(scores_of("lora-affinity", &adapters), [1.0, 0.8, 0.6, 0.0, 0.0]);
    let matched = |matched_blocks, prompt_blocks| Candidate {
        matched_blocks,
        prompt_blocks,
        ..Candidate::new("a")
    };
    let prefixes = [matched(3, 4), matched(0, 4), matched(0, 0), matched(9, 4)];
    assert_eq!(scores_of("prefix-affinity", &prefixes), [0.75, 0.0, 0.0, 1.0]);
}

#[test]
fn unknown_readings_score_zero_and_change_no_other_score() {
    let unknown = Candidate::new("x");
    let known = [loaded("a", 0.0, 1.0, 0.0), loaded("b", 0.0, 3.0, 0.0)];
    let all = [known[0], unknown, known[1]];
    for name in ["queue-depth", "waiting-queue", "running-requests", "load-balance"] {
        let (with, without) = (scores_of(name, &all), scores_of(name, &known));
        assert_eq!([with[0], with[2]], without[..], "{name}");
        assert_eq!(with[1], 0.0, "{name}");
    }
    assert_eq!(scores_of("kv-utilization", &[unknown]), [0.0]);
    assert_eq!(scores_of("queue-depth", &[unknown, unknown]), [0.0, 0.0]);
    assert_eq!(known_reading(f64::NAN), None);
    assert_eq!(known_reading(f64::INFINITY), None);
    assert_eq!(known_reading(-3.0), Some(0.0));
}

#[test]
fn prefill_is_weighed_against_load() {
    let features =
        RequestFeatures { block_tokens: 16, prompt_tokens: 1600, ..RequestFeatures::default() };
    let busy = Candidate { matched_blocks: 90, prompt_blocks: 100, ..loaded("a", 0.0, 20.0, 0.0) };
    let idle = Candidate { prompt_blocks: 100, ..loaded("b", 0.0, 0.0, 0.0) };
    let choose =
        |busy: Candidate| pick(&profile("new-prefill-batch:1"), &features, &[busy, idle], 0);
    assert_eq!(choose(busy), Some(1), "160 x 21 is more than 1600 x 1");
    let calmer = Candidate { load: Some(4.0), ..busy };
    assert_eq!(choose(calmer), Some(0), "160 x 5 is less");
    let cost = |tokens_in_flight: f64| {
        let busy = Candidate { tokens_in_flight, ..busy };
        pick(&profile("prefill-cost:1"), &features, &[busy, idle], 0)
    };
    assert_eq!((cost(1000.0), cost(2000.0)), (Some(0), Some(1)));
    let unknown = RequestFeatures { prompt_tokens: 0, ..features };
    assert_eq!((unknown.new_tokens(&busy), unknown.new_tokens(&idle)), (160.0, 1600.0));
}

#[test]
fn blocks_have_the_tokens_of_their_share_of_the_prompt() {
    let size = |tokens| PromptSize { tokens, blocks: 100, block_tokens: 16, is_cut: false };
    // Prose: a token has about four bytes, and the end of the prompt is no block.
    for tokens in [1600, 1601, 1616] {
        assert_eq!([0, 50, 100].map(|blocks| size(tokens).tokens_in(blocks)), [0, 800, 1600]);
    }
    // Data has two tokens for four bytes, and some scripts have one for seven.
    assert_eq!([50, 100].map(|blocks| size(3232).tokens_in(blocks)), [1600, 3200]);
    assert_eq!([50, 100].map(|blocks| size(900).tokens_in(blocks)), [450, 900]);
    // Nothing is known of the rest of a prompt that was cut.
    assert_eq!(PromptSize { is_cut: true, ..size(50_000) }.tokens_in(100), 1600);
    assert_eq!(PromptSize { blocks: 0, ..size(9) }.tokens_in(0), 0);
    // A capture may claim anything.
    let most = PromptSize { blocks: u32::MAX, block_tokens: u32::MAX, ..size(u32::MAX) };
    assert!(most.tokens_in(u32::MAX) > 0);
}

#[test]
fn a_session_stays_where_it_is_and_sessions_spread() {
    let profile = profile("session-affinity:5,load-balance:1");
    let fleet: Vec<Candidate> =
        (0..8).map(|index| loaded(&format!("backend-{index}"), 0.0, 0.0, 0.0)).collect();
    let home = |session| {
        let features = RequestFeatures { session: Some(session), ..RequestFeatures::default() };
        pick(&profile, &features, &fleet, session).unwrap()
    };
    let mut homes = [0; 8];
    for session in 0..800 {
        assert_eq!(home(session), home(session));
        homes[home(session)] += 1;
    }
    assert!(homes.iter().all(|count| (60..=140).contains(count)), "{homes:?}");
    let smaller = &fleet[..7];
    for session in (0..800).filter(|session| home(*session) != 7) {
        let features = RequestFeatures { session: Some(session), ..RequestFeatures::default() };
        let moved = pick(&profile, &features, smaller, 0).unwrap();
        assert_eq!(moved, home(session), "only sessions of a backend that leaves move");
    }
}

#[test]
fn presets_do_what_they_are_named_after() {
    let features = RequestFeatures {
        first_block: 5,
        block_tokens: 16,
        prompt_tokens: 1600,
        ..RequestFeatures::default()
    };
    let with = |name: &str, load, matched_blocks| Candidate {
        matched_blocks,
        prompt_blocks: 100,
        kv_utilization: Some(0.5),
        ..loaded(name, 0.0, load, 0.0)
    };
    let choose = |preset: &str, fleet: &[Candidate]| {
        let profile = Profile::new(&Preset::find(preset).unwrap().specs(), Picker::MaxScore);
        pick(&profile.unwrap(), &features, fleet, 0).unwrap()
    };
    let fleet = [with("a", 10.0, 80), with("b", 0.0, 0), with("c", 40.0, 90)];
    assert_eq!(choose("least_loaded", &fleet), 1);
    assert_eq!(choose("prefix-affinity", &fleet), 2);
    assert_eq!(choose("always-busiest", &fleet), 2);
    assert_eq!(choose("sglang", &fleet), 1, "40 and 0 is uneven: the shortest queue");
    let even = [with("a", 10.0, 80), with("b", 9.0, 0), with("c", 11.0, 90)];
    assert_eq!(choose("sglang", &even), 2, "the best match");
    let cold = [with("a", 10.0, 50), with("b", 9.0, 0), with("c", 11.0, 20)];
    assert_eq!(choose("sglang", &cold), 1, "no match above one half");
    assert_eq!(choose("LLM_D", &fleet), choose("llm-d", &fleet));
    for preset in PRESETS {
        choose(preset.name, &fleet);
    }
}

#[test]
fn bounded_hash_keeps_a_prefix_together_until_its_backend_is_full() {
    let profile = profile("bounded-hash:1");
    let features = |first_block| RequestFeatures { first_block, ..RequestFeatures::default() };
    let idle: Vec<Candidate> =
        (0..4).map(|index| loaded(&format!("b{index}"), 0.0, 10.0, 0.0)).collect();
    let mut spread = [0; 4];
    for block in 0..400 {
        let home = pick(&profile, &features(block), &idle, 0).unwrap();
        spread[home] += 1;
        let mut full = idle.clone();
        full[home].load = Some(100.0);
        assert_ne!(pick(&profile, &features(block), &full, 0), Some(home));
        full[home].load = Some(12.0);
        assert_eq!(
            pick(&profile, &features(block), &full, 0),
            Some(home),
            "1.25 x the mean is room"
        );
    }
    assert!(spread.iter().all(|count| (60..=140).contains(count)), "{spread:?}");
    let place = |row: u32| Candidate { row, ..idle[row as usize] };
    let turn = |turn| RequestFeatures { in_turn: true, turn, ..RequestFeatures::default() };
    let fleet = [place(0), place(1), place(2), place(3)];
    let turns = (0..4).map(|number| pick(&profile, &turn(number), &fleet, 0));
    assert!(turns.eq((0..4).map(Some)), "without a prompt each has its turn");
}

#[test]
fn lists_that_make_no_sense_are_refused_in_words() {
    let refused = |text: &str| {
        let specs = parse_scorers(text)?;
        match Profile::new(&specs, Picker::MaxScore) {
            Ok(_) => panic!("{text} is taken"),
            Err(error) => Err::<(), _>(error.to_string()),
        }
    };
    for (text, expected) in [
        (
            "prefix-afinity:1",
            "unknown scorer 'prefix-afinity'; there is prefix-affinity, queue-depth",
        ),
        ("queue-depth:1,queue_depth:2", "scorer 'queue-depth' is listed twice"),
        ("queue-depth:0", "must be a finite number above 0, not 0"),
        ("queue-depth:-1", "not -1"),
        ("queue-depth:nan", "not NaN"),
        ("queue-depth:inf", "not inf"),
        ("queue-depth:x", "must be a number, not 'x'"),
        ("queue-depth", "scorer 'queue-depth' has no weight; write queue-depth:1"),
        ("queue-depth:1,load-balance", "scorer 'load-balance' has no weight"),
        ("queue-depth: ", "scorer 'queue-depth' has no weight"),
        ("Queue-Depth:1", "unknown scorer 'Queue-Depth'; there is prefix-affinity"),
        ("queue-depth:", "scorer 'queue-depth' has no weight"),
        ("", "names no scorer"),
        ("queue-depth:1,,", "names no scorer"),
    ] {
        let error = refused(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert_eq!(Profile::new(&[], Picker::MaxScore).unwrap_err(), ProfileError::Empty);
    let mut spec = ScorerSpec::new("queue-depth", 1.0);
    spec.params.set("depth", Value::Number(1.0));
    let error = Profile::new(&[spec], Picker::MaxScore).unwrap_err().to_string();
    assert_eq!(error, "scorer 'queue-depth': it has no parameters, and so no 'depth'");
    let mut spec = ScorerSpec::new("cache-aware", 1.0);
    spec.params.set("ratio", Value::Number(0.5));
    let error = Profile::new(&[spec], Picker::MaxScore).unwrap_err().to_string();
    assert_eq!(error, "scorer 'cache-aware': 'ratio' must be a number above 1");
}

#[test]
fn weights_are_relative() {
    let weights = |text: &str| profile(text).weights().map(|(_, part)| part).collect::<Vec<_>>();
    let parts = weights("queue-depth:3,load-balance:2,priority:2");
    for (part, expected) in parts.iter().zip([3.0 / 7.0, 2.0 / 7.0, 2.0 / 7.0]) {
        assert!((part - expected).abs() < 1e-15);
    }
    let huge = weights("queue-depth:1e308,load-balance:1e308");
    assert_eq!(huge, [0.5, 0.5]);
    let whole: f64 = weights("queue-depth:0.43,load-balance:0.29,priority:0.29").iter().sum();
    assert!((whole - 1.0).abs() < 1e-12);
}

#[test]
fn ties_are_broken_by_prompt_and_name_alone() {
    let profile = profile("prefix-affinity:1,load-balance:1");
    let fleet: Vec<Candidate> =
        (0..4).map(|index| loaded(&format!("b{index}"), 0.0, 0.0, 0.0)).collect();
    let mut turned = fleet.clone();
    turned.reverse();
    let mut spread = [0; 4];
    for first_block in 0..400 {
        let features = RequestFeatures { first_block, last_block: 7, ..RequestFeatures::default() };
        let chosen = pick(&profile, &features, &fleet, first_block).unwrap();
        let other = pick(&profile, &features, &turned, 99);
        assert_eq!(other, Some(3 - chosen), "whatever the order and seed");
        spread[chosen] += 1;
    }
    assert!(spread.iter().all(|count| (60..=140).contains(count)), "{spread:?}");
}

#[test]
fn ties_rotate_without_prefix_scorer() {
    let profile = profile("load-balance:1");
    let place = |row: u32| Candidate { row, ..loaded(&row.to_string(), 0.0, 1.0, 0.0) };
    let fleet = [place(0), place(1), place(2), place(3)];
    let choose = |turn, fleet: &[Candidate]| {
        let features =
            RequestFeatures { turn, first_block: 9 * turn, ..RequestFeatures::default() };
        fleet[pick(&profile, &features, fleet, turn).unwrap()].row
    };
    let turns: Vec<u32> = (0..8).map(|turn| choose(turn, &fleet)).collect();
    assert_eq!(turns, [0, 1, 2, 3, 0, 1, 2, 3]);
    let mut busy = fleet;
    busy[1].load = Some(5.0);
    let turns: Vec<u32> = (0..4).map(|turn| choose(turn, &busy)).collect();
    assert_eq!(turns, [0, 2, 2, 3], "who is busy is passed over");
}

#[test]
fn pickers_draw_as_they_say() {
    let totals = [0.8, 0.4, 0.1, 0.0];
    let rank = |index: usize| index as u64;
    let pickers = [
        Picker::MaxScore,
        Picker::WeightedRandom,
        Picker::PowerOfTwo,
        Picker::Softmax { temperature: 0.5 },
        Picker::Softmax { temperature: 0.0 },
        Picker::Softmax { temperature: f64::from_bits(1) },
    ];
    for picker in pickers {
        let expected = picker.probabilities(&totals, rank);
        assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{picker:?}");
        let mut rng = SmallRng::seed_from_u64(1);
        let mut drawn = [0_u32; 4];
        for _ in 0..20_000 {
            drawn[picker.pick(&totals, rank, &mut rng).unwrap()] += 1;
        }
        for (count, expected) in drawn.iter().zip(&expected) {
            let seen = f64::from(*count) / 20_000.0;
            assert!((seen - expected).abs() < 0.015, "{picker:?}: {drawn:?}, {expected:?}");
        }
        let zero = picker.probabilities(&[0.0, 0.0], rank);
        assert!((zero.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{picker:?}: {zero:?}");
        assert_eq!(picker.pick(&[], rank, &mut rng), None);
        assert_eq!(picker.pick(&[0.3], rank, &mut rng), Some(0));
        assert_eq!(picker.probabilities(&[0.3], rank), [1.0]);
    }
    assert_eq!(Picker::PowerOfTwo.probabilities(&totals, rank), [0.5, 2.0 / 6.0, 1.0 / 6.0, 0.0]);
    for name in PICKERS {
        assert_eq!(Picker::from_name(&name.replace('-', "_"), None).unwrap().name(), name);
    }
    assert!(Picker::from_name("best", None).unwrap_err().to_string().contains("max-score"));
    assert!(Picker::from_name("max-score", Some(1.0)).is_err());
    assert!(Picker::from_name("softmax", Some(-1.0)).is_err());
}

#[test]
fn prefix_defaults_are_those_of_the_contract() {
    let usual = PrefixParams::default();
    assert_eq!((usual.block_tokens, usual.capacity), (16, 31_250));
    assert_eq!(PrefixParams::of(&specs("prefix-affinity:3,queue-depth:2")), Ok(usual));
    let llm_d = Preset::find("llm-d").unwrap().specs();
    assert_eq!(llm_d, specs("prefix-affinity:3,queue-depth:2,kv-utilization:2"));
}

#[path = "tests/properties.rs"]
mod properties;
#[path = "tests/published.rs"]
mod published;
