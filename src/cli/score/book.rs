//! State shared by all lines: the prompts that each backend received.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_api::Operation;
use penstock_core::prefix::{Chain, MemoryBudget, prompt_chain};
use penstock_scan::{RequestProfile, ScanError, ScanOptions, scan};
use penstock_scoring::{Candidate, Objectives, PrefixParams, RequestFeatures, ScorerSpec};

use super::line::{RequestLine, ScoreLine};
use super::placed::Placed;
use super::result::LineResult;

/// The memory budget of the process's prefix index.
const INDEX_BYTES: usize = 1 << 30;

/// The prompts that each backend received, by model and block size.
#[derive(Debug)]
pub(super) struct Book {
    placed: BTreeMap<(String, u32), Placed>,
    budget: Arc<MemoryBudget>,
    /// The number of requests placed so far.
    turn: u64,
    /// The scorers of lines that name none.
    usual: Option<Vec<ScorerSpec>>,
}

impl Book {
    /// Creates an empty book; `usual` are the scorers of lines that name none.
    pub(super) fn new(usual: Option<Vec<ScorerSpec>>) -> Self {
        let budget = MemoryBudget::new(INDEX_BYTES);
        Self { placed: BTreeMap::new(), budget, turn: 0, usual }
    }
}

/// A request, scanned and cut into blocks.
struct ScoredRequest {
    chain: Chain,
    key: (String, u32),
    features: RequestFeatures,
}

impl Book {
    /// Returns the result of a line as JSON; an error object if the line is invalid.
    pub(super) fn score(&mut self, text: &[u8]) -> String {
        let result = ScoreLine::read(text).and_then(|line| self.place(&line));
        result.map_or_else(|message| LineResult::error(&message), |result| result.to_json())
    }

    fn place(&mut self, line: &ScoreLine) -> Result<LineResult, String> {
        let specs = line.specs(self.usual.as_deref())?;
        let profile = line.profile(&specs)?;
        let terms = prefix_params(&specs)?;
        let mut candidates: Vec<Candidate> =
            line.backends.iter().map(super::line::BackendLine::to_candidate).collect();
        // Numbered in the order of their names, so that the order in the line does not break ties.
        let mut names: Vec<&str> = line.backends.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        for (candidate, backend) in candidates.iter_mut().zip(&line.backends) {
            let row = names.binary_search(&backend.name.as_str());
            debug_assert!(row.is_ok(), "every backend is among the names");
            candidate.row = u32::try_from(row.unwrap_or(0)).unwrap_or(u32::MAX);
        }
        let scanned =
            line.request.as_ref().map(|request| scan_request(request, terms)).transpose()?;
        if let Some(request) = &scanned {
            self.find_prefixes(line, request, &mut candidates);
        }
        let features = scanned.as_ref().map_or_else(
            || RequestFeatures { block_tokens: terms.block_tokens, ..RequestFeatures::default() },
            |request| RequestFeatures { turn: self.turn, ..request.features },
        );
        let result = LineResult::new(line, &profile, &features, &candidates);
        if let (Some(request), Some(winner)) = (scanned, result.winner()) {
            self.record(request, winner, terms);
        }
        Ok(result)
    }

    fn find_prefixes(
        &self,
        line: &ScoreLine,
        request: &ScoredRequest,
        candidates: &mut [Candidate],
    ) {
        let names = line.backends.iter().map(|backend| backend.name.as_str());
        let placed = self.placed.get(&request.key);
        let matched = placed.map(|placed| placed.matched(names, request.chain.hashes()));
        for (index, (candidate, backend)) in candidates.iter_mut().zip(&line.backends).enumerate() {
            // What a line says about a cache counts for more than the prompts of earlier lines.
            if !backend.has_prefix() {
                let blocks = matched.as_ref().and_then(|blocks| blocks.get(index));
                candidate.matched_blocks = blocks.copied().unwrap_or(0);
                candidate.prompt_blocks = request.chain.blocks();
            }
        }
    }

    fn record(&mut self, request: ScoredRequest, winner: &str, terms: PrefixParams) {
        // By placed requests alone: a line without a winner leaves the rotation as it is.
        self.turn += 1;
        let placed = self.placed.entry(request.key).or_default();
        placed.record(
            winner,
            request.chain.hashes(),
            terms.capacity_in(terms.block_tokens),
            &self.budget,
        );
    }
}

fn prefix_params(specs: &[ScorerSpec]) -> Result<PrefixParams, String> {
    PrefixParams::of(specs).map_err(|error| error.to_string())
}

fn scan_request(request: &RequestLine, terms: PrefixParams) -> Result<ScoredRequest, String> {
    let path = request.path.split('?').next().unwrap_or(&request.path);
    let operation =
        Operation::from_path(path).ok_or_else(|| format!("request.path: unknown path {path}"))?;
    let body = request.body.as_bytes();
    let profile: RequestProfile = scan(operation, None, body, ScanOptions::default())
        .map_err(|error| format!("request.body: {error}"))?;
    if !profile.names_model() {
        return Err(format!("request.body: {}", ScanError::MissingModel));
    }
    let model = profile.model_name(body).into_owned();
    let mut chain = Chain::default();
    prompt_chain(&profile, body, &model, terms, &mut chain);
    let features = RequestFeatures {
        in_turn: chain.is_empty(),
        turn: 0,
        first_block: chain.first(),
        last_block: chain.last(),
        prompt_blocks: chain.blocks(),
        is_cut: chain.is_cut(),
        block_tokens: terms.block_tokens,
        prompt_tokens: profile.prompt_tokens.0,
        objectives: Objectives::default(),
        session: request.session.as_ref().map(|text| xxhash_rust::xxh3::xxh3_64(text.as_bytes())),
        home: None,
    };
    Ok(ScoredRequest { chain, key: (model, terms.block_tokens), features })
}
