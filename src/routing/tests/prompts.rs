//! Prompts cut into blocks, with a memory of what came before: it never changes what comes out.

use proptest::prelude::*;

use crate::api::Operation;
use crate::prefix::prompt_chain;
use crate::prefix::{Chain, HashCache, SECRET};
use crate::scan::{ScanOptions, scan};
use crate::scoring::PrefixParams;

/// What raw text is made of here: plain, in several scripts, and escaped in every way.
const TEXTS: [&str; 10] =
    ["a", "some words ", r"\n", r"\u00e9", "é", r"\ud83d\ude00", r#"\""#, r"\\", r"\/", r"\u0041"];

/// What a slot takes.
const SLOT: usize = 384;

fn cache(slots: usize) -> HashCache {
    HashCache::new(slots * SLOT, std::array::from_fn(|place| 1 + (place as u64) * 0x1234_5679))
        .unwrap()
}

fn body(messages: &[String]) -> String {
    let messages: Vec<String> = messages
        .iter()
        .map(|content| format!(r#"{{"role":"user","content":"{content}"}}"#))
        .collect();
    format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","))
}

fn cut_as(
    operation: Operation,
    body: &str,
    of: (&str, PrefixParams),
    cache: Option<&HashCache>,
) -> Chain {
    let request = scan(operation, None, body.as_bytes(), ScanOptions::default()).unwrap();
    let mut chain = Chain::default();
    prompt_chain(&request, body.as_bytes(), of, (&mut chain, cache));
    chain
}

fn cut(body: &str, terms: PrefixParams, cache: Option<&HashCache>) -> Chain {
    cut_as(Operation::Chat, body, ("m", terms), cache)
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
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn what_is_remembered_comes_to_the_same(
        conversation in prop::collection::vec(message(), 1..5),
        max_blocks in 1_u32..200,
        slots in prop::sample::select(vec![1_usize, 7, 1000]),
    ) {
        // One cache for prompts cut in every way, of two models: they must not be taken for each other.
        let cache = cache(slots);
        let ways = [1, 14, 16, 33, 64, 256].into_iter().flat_map(|block_tokens| {
            [max_blocks, u32::MAX].map(|max_blocks| PrefixParams { block_tokens, max_blocks, ..PrefixParams::default() })
        });
        for turn in 0..3 * conversation.len() {
            let body = body(&conversation[..=turn % conversation.len()]);
            for terms in ways.clone() {
                for model in ["m", "n"] {
                    let plain = cut_as(Operation::Chat, &body, (model, terms), None);
                    let again = cut_as(Operation::Chat, &body, (model, terms), Some(&cache));
                    prop_assert_eq!(&again, &plain);
                }
                let few = cut(&body, terms, None);
                let all = cut(&body, PrefixParams { max_blocks: u32::MAX, ..terms }, None);
                let most = all.hashes().len().min(terms.max_blocks as usize);
                prop_assert_eq!(few.hashes(), &all.hashes()[..most]);
            }
        }
    }
}

#[test]
fn what_comes_again_is_remembered_and_what_comes_once_is_not() {
    let cache = cache(2000);
    let terms = PrefixParams::default();
    let history = vec![long("a system prompt "), long(r"a question\n")];
    let mut counted = (0, 0);
    let mut asked = |messages: &[String]| {
        let body = body(messages);
        assert_eq!(cut(&body, terms, Some(&cache)), cut(&body, terms, None));
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
    assert_eq!(asked(&longer), (misses, 2), "what was added is new");
    let (hits, misses) = asked(&longer);
    assert!(hits >= 16 && misses > 8, "and kept when it comes again: {hits}, {misses}");
    assert_eq!(asked(&longer).1, 0);
    assert_eq!(asked(&[long("something else ")]), (0, 1));
    assert_eq!(asked(&[history[1].clone(), history[0].clone()]), (0, 1), "in another order");
    let short: Vec<String> = (0..40).map(|turn| format!("turn {turn} ").repeat(100)).collect();
    for _ in 0..3 {
        assert_eq!(asked(&short), (0, 0), "short messages are hashed sooner than looked up");
    }
}

#[test]
fn a_piece_that_had_to_give_way_costs_no_other() {
    let body = body(&[(0..4000).map(|number| format!("{number} words, ")).collect()]);
    let terms = PrefixParams::default();
    // Few slots: some of its pieces fall into the same one, other ones in each cache.
    let (mut hits, mut misses) = (0, 0);
    for slots in 200..230 {
        let cache = cache(slots);
        for _ in 0..4 {
            assert_eq!(cut(&body, terms, Some(&cache)), cut(&body, terms, None));
        }
        let before = cache.counts();
        cut(&body, terms, Some(&cache));
        hits += cache.counts().0 - before.0;
        misses += cache.counts().1 - before.1;
    }
    assert!(misses > 0 && hits > 8 * misses, "{hits} of {}", hits + misses);
}

#[test]
fn a_walk_that_ends_early_ends_alike_in_every_layout() {
    let text = long("of all that there is to say, ");
    let part = format!(r#"{{"type":"text","text":"{text}"}}"#);
    let messages = format!(
        r#"[{{"role":"user","content":[{part},{part}]}},{{"content":"{text}","role":"user","name":"n"}}]"#
    );
    let tool = format!(r#"{{"type":"function","function":{{"name":"f","description":"{text}"}}}}"#);
    let bodies = [
        (Operation::Chat, format!(r#"{{"model":"m","messages":{messages}}}"#)),
        (Operation::Chat, format!(r#"{{"model":"m","messages":{messages},"tools":[{tool}]}}"#)),
        (
            Operation::Messages,
            format!(r#"{{"model":"m","max_tokens":1,"system":[{part}],"messages":{messages}}}"#),
        ),
        (
            Operation::Responses,
            format!(r#"{{"model":"m","instructions":"{text}","input":{messages}}}"#),
        ),
        (Operation::Responses, format!(r#"{{"model":"m","input":"{text}"}}"#)),
        (Operation::Completions, format!(r#"{{"model":"m","prompt":["{text}",[1,2],"{text}"]}}"#)),
        (Operation::Completions, format!(r#"{{"model":"m","prompt":"{text}"}}"#)),
    ];
    let cache = cache(1000);
    let all = PrefixParams { max_blocks: u32::MAX, ..PrefixParams::default() };
    for (operation, body) in &bodies {
        let whole = cut_as(*operation, body, ("m", all), None);
        assert!(whole.hashes().len() > 300, "{}", whole.hashes().len());
        for max_blocks in [1, 2, 31, 32, 100, 312, 313, 314, 320, 650, 5000] {
            let terms = PrefixParams { max_blocks, ..all };
            let expected = &whole.hashes()[..whole.hashes().len().min(max_blocks as usize)];
            for known in [None, Some(&cache), Some(&cache), Some(&cache)] {
                let chain = cut_as(*operation, body, ("m", terms), known);
                assert_eq!(chain.hashes(), expected, "{operation:?}, {max_blocks} blocks");
            }
        }
    }
    assert!(cache.counts().0 > 100);
}

#[test]
fn there_is_no_cache_without_room_for_anything() {
    let of = |bytes| HashCache::new(bytes, [1; SECRET]);
    assert!(of(0).is_none() && of(SLOT - 1).is_none());
    assert_eq!(of(1000).unwrap().size(), 2 * SLOT);
    assert!(of(1000).unwrap().is_of_size(800) && !of(1000).unwrap().is_of_size(3 * SLOT));
    assert!(!format!("{:?}", of(1000)).contains("secret"));
}

#[test]
fn another_secret_knows_nothing() {
    // Whoever knows how bytes are hashed, but not the secret, cannot make a prompt that is taken for
    // somebody else's: nothing that is kept can be foretold.
    let terms = PrefixParams::default();
    let body = body(&[long("some words ")]);
    let places = |secret: [u64; SECRET]| {
        let cache = HashCache::new(3 * SLOT, secret).unwrap();
        for _ in 0..2 {
            cut(&body, terms, Some(&cache));
        }
        cut(&body, terms, Some(&cache));
        cache.counts()
    };
    let seen: std::collections::BTreeSet<_> =
        (0..40).map(|number| places([number; SECRET])).collect();
    assert!(seen.len() > 1, "where pieces lie is a matter of the secret: {seen:?}");
}

#[test]
fn threads_that_share_a_slot_read_no_half_of_it() {
    // One piece each, and one slot for all of them.
    let bodies: Vec<String> =
        (0..3).map(|number| body(&[format!("{number} words ").repeat(350)])).collect();
    let terms = PrefixParams::default();
    let plain: Vec<Chain> = bodies.iter().map(|body| cut(body, terms, None)).collect();
    let cache = cache(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for turn in 0..3000 {
                    // Each a few times in a row, so that it is kept.
                    let one = turn / 8 % bodies.len();
                    assert_eq!(cut(&bodies[one], terms, Some(&cache)), plain[one]);
                }
            });
        }
    });
    let (hits, misses) = cache.counts();
    assert!(hits > 1000 && misses > 100, "{hits} and {misses}");
}
