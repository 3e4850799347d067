//! `session-affinity`: sticky sessions by rendezvous hash, without a token or a table.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Needs, Scorer, ScorerRow, each};
use crate::params::ParamError;
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
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
    fn score(&self, features: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        // Unknown for all: other scorers decide, and no backend is preferred.
        let Some(session) = features.session else { return scores.fill(f64::NAN) };
        let home = candidates.iter().map(|one| rank(one, session)).max();
        each(candidates, scores, |one| Some(f64::from(u8::from(Some(rank(one, session)) == home))));
    }

    /// A session has one home here, whichever backend served it last.
    fn needs(&self) -> Needs {
        Needs::HOMES
    }
}

fn rank(candidate: &Candidate, session: u64) -> u64 {
    xxh3_64_with_seed(&candidate.key.to_le_bytes(), session)
}
