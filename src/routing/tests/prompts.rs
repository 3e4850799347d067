//! Prompts cut into blocks, with a memory of what came before: it never changes what comes out.

use proptest::prelude::*;

use crate::api::Operation;
use crate::routing::prompt_chain;
use crate::scan::{ScanOptions, scan};
use crate::scoring::PrefixTerms;
use crate::scoring::prefix::{Chain, HashCache};

/// What raw text is made of here: plain, in several scripts, and escaped in every way.
const TEXTS: [&str; 10] =
    ["a", "some words ", r"\n", r"\u00e9", "é", r"\ud83d\ude00", r#"\""#, r"\\", r"\/", r"\u0041"];

fn body(messages: &[String]) -> String {
    let messages: Vec<String> = messages
        .iter()
        .map(|content| format!(r#"{{"role":"user","content":"{content}"}}"#))
        .collect();
    format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","))
}

fn cut(body: &str, terms: PrefixTerms, cache: Option<&HashCache>) -> Chain {
    let request = scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap();
    let mut chain = Chain::default();
    prompt_chain(&request, body.as_bytes(), ("m", terms), (&mut chain, cache));
    chain
}

fn long(words: &str) -> String {
    words.repeat(20_000 / words.len())
}

fn message() -> impl Strategy<Value = String> {
    let part = (prop::sample::select(&TEXTS[..]), 1_usize..400);
    prop::collection::vec(part, 0..6)
        .prop_map(|parts| parts.iter().map(|(text, times)| text.repeat(*times)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_remembered_comes_to_the_same(
        conversation in prop::collection::vec(message(), 1..5),
        block_tokens in prop::sample::select(vec![1_u32, 4, 16, 33, 256]),
        max_blocks in prop::sample::select(vec![1_u32, 7, 40, 1024, 1 << 20]),
        slots in prop::sample::select(vec![1_usize, 3, 1000]),
    ) {
        let cache = HashCache::new(slots * 384);
        let terms = PrefixTerms { block_tokens, max_blocks, ..PrefixTerms::default() };
        let all = PrefixTerms { max_blocks: u32::MAX, ..terms };
        for _ in 0..3 {
            for turns in 1..=conversation.len() {
                let body = body(&conversation[..turns]);
                let plain = cut(&body, terms, None);
                prop_assert_eq!(&cut(&body, terms, cache.as_ref()), &plain);
                let whole = cut(&body, all, None);
                let most = whole.hashes().len().min(max_blocks as usize);
                prop_assert_eq!(plain.hashes(), &whole.hashes()[..most]);
            }
        }
    }
}

#[test]
fn what_comes_again_is_remembered_and_what_comes_once_is_not() {
    let cache = HashCache::new(1 << 20).unwrap();
    let terms = PrefixTerms::default();
    let history = vec![long("a system prompt "), long(r"a question\n")];
    let mut counted = (0, 0);
    let mut asked = |messages: &[String]| {
        cut(&body(messages), terms, Some(&cache));
        let (hits, misses) = cache.counts();
        let more = (hits - counted.0, misses - counted.1);
        counted = (hits, misses);
        more
    };
    assert_eq!(asked(&history), (0, 1), "a prompt that is new is not asked about any further");
    let (hits, misses) = asked(&history);
    assert!(hits == 0 && misses > 15, "all of it is kept now: {misses}");
    assert_eq!(asked(&history), (misses, 0));
    let longer = [history.clone(), vec![long("an answer ")]].concat();
    assert_eq!(asked(&longer), (misses, 1), "what was added is new");
    assert!(asked(&longer).1 > 8 && asked(&longer).1 == 0);
    assert_eq!(asked(&[long("something else ")]), (0, 1));
    assert_eq!(asked(&[history[1].clone(), history[0].clone()]), (0, 1), "in another order");
    let models = |model: &str| {
        let body = body(&history);
        let request = scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap();
        let mut chain = Chain::default();
        prompt_chain(&request, body.as_bytes(), (model, terms), (&mut chain, Some(&cache)));
        chain
    };
    assert_ne!(models("m").first(), models("n").first(), "models share nothing");
}

#[test]
fn there_is_no_cache_without_room_for_anything() {
    assert!(HashCache::new(0).is_none() && HashCache::new(383).is_none());
    assert_eq!(HashCache::new(1000).unwrap().size(), 768);
}

#[test]
fn threads_that_share_a_slot_read_no_half_of_it() {
    let cache = HashCache::new(384).unwrap();
    let terms = PrefixTerms::default();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                let bodies = ["x", "y"].map(|own| body(&[long(&format!("{own}{number} "))]));
                let plain = bodies.each_ref().map(|body| cut(body, terms, None));
                for turn in 0..400 {
                    // Each a few times in a row, so that it is kept.
                    let one = turn / 4 % bodies.len();
                    assert_eq!(cut(&bodies[one], terms, Some(cache)), plain[one]);
                }
            });
        }
    });
    assert!(cache.counts().1 > 0);
}
