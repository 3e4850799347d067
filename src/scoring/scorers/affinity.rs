//! Scorers that send a request to where something of it is already: its prefix, its adapter, its
//! session.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Scorer, ScorerRow, each};
use crate::scoring::candidate::{Adapter, Ask, Candidate};
use crate::scoring::params::ParamError;
use crate::scoring::prefix_params::PrefixParams;

pub(super) const PREFIX: ScorerRow = ScorerRow {
    name: "prefix-affinity",
    formula: "leading blocks believed cached / full blocks of the prompt; 0 without a full block",
    source: "BLIS, llm-d",
    unknown: "0: nothing is believed cached",
    params: &["block-size", "capacity", "max-blocks"],
    build: |params| {
        // Read here so that they are checked; the index is what they are for.
        PrefixParams::of_params(params)?;
        Ok(Box::new(PrefixAffinity))
    },
};

#[derive(Debug)]
struct PrefixAffinity;

impl Scorer for PrefixAffinity {
    fn score(&self, _ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, |one| Some(one.match_ratio()));
    }

    fn reads_prefixes(&self) -> bool {
        true
    }
}

pub(super) const LORA: ScorerRow = ScorerRow {
    name: "lora-affinity",
    formula: "1 where the adapter is in use, 0.8 with a free slot, 0.6 where requests wait for it, else 0",
    source: "llm-d",
    unknown: "0",
    params: &[],
    build: |_| Ok(Box::new(LoraAffinity)),
};

#[derive(Debug)]
struct LoraAffinity;

impl Scorer for LoraAffinity {
    fn score(&self, _ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        each(candidates, scores, |one| match one.adapter {
            Adapter::Unknown => None,
            Adapter::Active => Some(1.0),
            Adapter::FreeSlot => Some(0.8),
            Adapter::Waiting => Some(0.6),
            Adapter::Absent => Some(0.0),
        });
    }
}

pub(super) const SESSION: ScorerRow = ScorerRow {
    name: "session-affinity",
    formula: "1 for the backend with the highest hash of session and name, else 0",
    source: "llm-d's session affinity, by rendezvous hash (Thaler, Ravishankar 1998) so that no token is handed out",
    unknown: "0 for all where the request names none",
    params: &["header", "cookie"],
    build: |params| {
        let header = params.token("header", "the name of a header, as in x-session-id")?;
        let cookie = params.token("cookie", "the name of a cookie")?;
        if header.and(cookie).is_some() {
            let expected = "left out where 'header' says where a session is named";
            return Err(ParamError::Bad { name: "cookie", expected });
        }
        Ok(Box::new(SessionAffinity))
    },
};

#[derive(Debug)]
struct SessionAffinity;

impl Scorer for SessionAffinity {
    fn score(&self, ask: &Ask, candidates: &[Candidate], scores: &mut [f64]) {
        let Some(session) = ask.session else { return scores.fill(f64::NAN) };
        let rank = |one: &Candidate| xxh3_64_with_seed(&one.key.to_le_bytes(), session);
        let home = candidates.iter().map(rank).max();
        each(candidates, scores, |one| Some(f64::from(u8::from(Some(rank(one)) == home))));
    }
}
