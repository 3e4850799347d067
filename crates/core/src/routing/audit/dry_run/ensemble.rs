//! The plan of an ensemble before it runs: its calls, their backends, and their cost. Unknown
//! lengths of responses are assumed from above.

use penstock_api::units::TokenCount;
use penstock_api::{ErrorCode, Operation};
use penstock_scan::{RequestProfile, TEXT_PER_TOKEN};
use penstock_scoring::Objectives;

use super::report::{CallCost, EnsembleReport, PlannedCall};
use super::{DryRun, DryRunError};
use crate::fleet::BackendSet;
use crate::routing::{
    EnsembleCall, EnsemblePlan, EnsembleStage, ModelAsked, NoRecord, RandomSource, RouteError,
    RouteInput, RoutingDecision, Scratch, SplitPoint,
};

/// The assumed tokens of a response without `max_tokens` and without earlier responses.
const ASSUMED_OUTPUT: u32 = 512;

/// The results of the calls so far that later calls depend on.
#[derive(Debug, Default)]
struct EnsembleProgress {
    /// The backends that already have a call of this stage.
    used: BackendSet,
    /// The output of each draft.
    drafts: Vec<u32>,
    /// The output of drafts and critiques together.
    output: u32,
    sum: CallCost,
}

impl DryRun<'_> {
    /// Returns the calls of an ensemble in order, with their sum, for the request of `client`. The
    /// final call has no backend yet.
    ///
    /// # Errors
    /// An error for requests that cannot be ensembles.
    pub(super) fn ensemble(
        &self,
        plan: &EnsemblePlan,
        client: &RouteInput<'_>,
        random: &mut impl RandomSource,
    ) -> Result<EnsembleReport, DryRunError> {
        if !is_conversation(client.request.operation) {
            let message = "An ensemble takes conversations and prompts";
            return Err(DryRunError::new(ErrorCode::InvalidRequest, message));
        }
        let mut progress = EnsembleProgress::default();
        let mut calls = Vec::new();
        for call in EnsemblePlan::calls() {
            // The calls of a stage run together, those of the stage before have ended.
            if call.number == 1 {
                progress.used = BackendSet::default();
            }
            calls.push(self.call(plan, call, client, &mut progress, random));
        }
        Ok(EnsembleReport { model: plan.model.clone(), calls, cost: progress.sum })
    }

    fn call(
        &self,
        plan: &EnsemblePlan,
        call: EnsembleCall,
        client: &RouteInput<'_>,
        progress: &mut EnsembleProgress,
        random: &mut impl RandomSource,
    ) -> PlannedCall {
        let model = plan.member(call);
        let profile = client.request;
        let input_tokens = self.input_tokens(call, profile, progress);
        let own = self.profile_of(call, profile, input_tokens);
        // Only a draft has the client's prompt unchanged.
        let prompt = client.prompt.filter(|_| call.stage == EnsembleStage::Draft);
        // The decision about the final call is the request's, and is shown beside the plan.
        let is_final = call.stage == EnsembleStage::Final;
        let (_, under_policies) = self.router.fall_back(client, model);
        let input = RouteInput {
            request: &own,
            model,
            prompt,
            tokens: self.router.tokens_to_fit(&own),
            session: None,
            split: SplitPoint::default(),
            objectives: Objectives::default(),
            ..under_policies
        };
        let decided = (!is_final).then(|| self.decide(&input, &progress.used, random));
        let target = self.router.names.resolve(model, self.topology, SplitPoint::default());
        let (serving, id) = match &decided {
            Some(Ok(decision)) => (decision.serving(self.topology), Some(decision.model)),
            Some(Err(_)) | None => (None, self.topology.model_id(target)),
        };
        let known = id.and_then(|id| self.topology.model(id));
        let rows = known.map_or(&[][..], |known| &known.serving);
        let rows = serving.into_iter().chain(rows);
        let learned = rows.filter_map(|row| row.latency.length()).next();
        let output = own.max_tokens.or(learned).map_or(ASSUMED_OUTPUT, |tokens| tokens.0);
        let mut planned = PlannedCall {
            call: call.to_string(),
            model: model.to_owned(),
            backend: serving.map(|serving| serving.state.name.to_string()),
            cost: CallCost {
                input_tokens: input_tokens.into(),
                output_tokens: output.into(),
                price: None,
            },
            error: decided.and_then(Result::err).map(|error| error.to_string()),
        };
        // A call that cannot be made costs nothing and has no text for later calls.
        if planned.error.is_some() {
            return planned;
        }
        if let Some(serving) = serving {
            progress.used.insert(serving.id);
        }
        let settings = self.config.models.get(known.map_or(target, |known| &*known.name));
        let price = settings.and_then(|model| model.price.as_ref());
        planned.cost.price = price.map(|price| price.cost(input_tokens.into(), output.into()));
        progress.sum.add(planned.cost);
        if call.stage == EnsembleStage::Draft {
            progress.drafts.push(output);
        }
        progress.output = progress.output.saturating_add(output);
        planned
    }

    /// Returns the prompt tokens of a call. The query is at most as long as the client's prompt.
    fn input_tokens(
        &self,
        call: EnsembleCall,
        profile: &RequestProfile,
        progress: &EnsembleProgress,
    ) -> u32 {
        let ensembles = &self.config.ensembles;
        let client = profile.prompt_tokens.0;
        let (prompt, texts) = match call.stage {
            EnsembleStage::Draft => return client,
            EnsembleStage::Critique => {
                let draft = progress.drafts.get(usize::from(call.number).saturating_sub(1));
                (&ensembles.critique_prompt, draft.copied().unwrap_or_default())
            }
            EnsembleStage::Final => (&ensembles.final_prompt, progress.output),
        };
        let prompt = u64::try_from(prompt.length()).unwrap_or(u64::MAX) / TEXT_PER_TOKEN;
        let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
        client.saturating_add(texts).saturating_add(prompt)
    }

    fn profile_of(
        &self,
        call: EnsembleCall,
        profile: &RequestProfile,
        input: u32,
    ) -> RequestProfile {
        let prompt_tokens = TokenCount(input);
        match call.stage {
            EnsembleStage::Draft => RequestProfile { streaming: false, ..*profile },
            EnsembleStage::Critique => RequestProfile {
                estimated_tokens: prompt_tokens,
                prompt_tokens,
                max_tokens: Some(TokenCount(self.config.ensembles.critique_tokens)),
                ..RequestProfile::opaque(Operation::Chat, profile.arrived_at)
            },
            EnsembleStage::Final => {
                RequestProfile { estimated_tokens: prompt_tokens, prompt_tokens, ..*profile }
            }
        }
    }

    fn decide(
        &self,
        input: &RouteInput<'_>,
        used: &BackendSet,
        random: &mut impl RandomSource,
    ) -> Result<RoutingDecision, RouteError> {
        let Self { router, topology, .. } = *self;
        let none = BackendSet::default();
        let mut scratch = Scratch::default();
        let mut route = |tried: &BackendSet| {
            let input = RouteInput { tried, ..*input };
            router.route(&input, random, &mut scratch, &mut NoRecord)
        };
        let member = ModelAsked { name: input.model, fleet: topology, split: input.split };
        if EnsemblePlan::has_other_backend(&router.names, &member, used)
            && let Ok(decision) = route(used)
        {
            return Ok(decision);
        }
        // A stage may have more calls than the model has backends.
        route(&none)
    }
}

fn is_conversation(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Chat
            | Operation::Messages
            | Operation::Responses
            | Operation::OllamaChat
            | Operation::OllamaGenerate
    )
}

impl CallCost {
    fn add(&mut self, call: Self) {
        self.input_tokens += call.input_tokens;
        self.output_tokens += call.output_tokens;
        if let Some(price) = call.price {
            *self.price.get_or_insert_default() += price;
        }
    }
}
