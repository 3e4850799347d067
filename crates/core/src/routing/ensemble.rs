//! The plan of an ensemble: the model of each call. The proxy makes the calls, `explain` shows
//! them.

use std::fmt;

use penstock_config::Config;

use super::policies::ModelAsked;
use super::resolve::Names;
use super::split::SplitPoint;
use crate::fleet::{BackendSet, Health, Serving, Topology};

/// The number of drafts of an ensemble, and the most critiques: one per draft.
pub const DRAFTS: usize = 3;

penstock_api::named! {
    /// The stage of an ensemble that a call belongs to.
    pub enum EnsembleStage {
        /// A response to the client's request that the client does not get.
        Draft = "draft",
        /// The strengths and weaknesses of a draft.
        Critique = "critique",
        /// The response that the client gets.
        Final = "final",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnsembleCall {
    pub stage: EnsembleStage,
    /// 1 for the first of its stage.
    pub number: u8,
}

impl EnsembleCall {
    /// The call whose response the client gets.
    pub const FINAL: Self = Self { stage: EnsembleStage::Final, number: 1 };
}

impl fmt::Display for EnsembleCall {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stage {
            EnsembleStage::Final => out.write_str(self.stage.name()),
            EnsembleStage::Draft | EnsembleStage::Critique => {
                write!(out, "{} {}", self.stage.name(), self.number)
            }
        }
    }
}

/// The models of an ensemble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnsemblePlan {
    /// The model that makes the final call.
    pub model: String,
    /// The models of drafts and critiques, in turn; never empty.
    members: Vec<String>,
}

impl EnsemblePlan {
    /// Returns the plan of a request for `name`; `None` if `name` is not an ensemble. A model or an
    /// alias with the whole name comes first.
    pub fn of(config: &Config, names: &Names, fleet: &Topology, name: &str) -> Option<Self> {
        if !config.ensembles.enabled {
            return None;
        }
        // Checked, because the length of the prefix may fall inside a letter of the name.
        let (prefix, model) = name.split_at_checked(config.ensembles.prefix.len())?;
        let is_ensemble =
            prefix.eq_ignore_ascii_case(&config.ensembles.prefix) && !model.is_empty();
        if !is_ensemble || names.has(name) || fleet.model_id(name).is_some() {
            return None;
        }
        let resolved = names.resolve(model, fleet, SplitPoint::default());
        let known = fleet.model_named(resolved);
        let keys = [Some(model), Some(resolved), known.map(|known| &*known.name)];
        let settings = keys.into_iter().flatten().find_map(|key| config.models.get(key));
        let members = settings.map(|settings| settings.ensemble.clone()).unwrap_or_default();
        let members = if members.is_empty() { vec![model.to_owned()] } else { members };
        Some(Self { model: model.to_owned(), members })
    }

    /// Returns the model of a call. A member criticizes its own draft only if it is the only
    /// member.
    pub fn member(&self, call: EnsembleCall) -> &str {
        let turn = match call.stage {
            EnsembleStage::Draft => usize::from(call.number).saturating_sub(1),
            EnsembleStage::Critique => usize::from(call.number),
            EnsembleStage::Final => return &self.model,
        };
        let position = turn.checked_rem(self.members.len()).unwrap_or_default();
        self.members.get(position).unwrap_or(&self.model)
    }

    /// Returns whether a backend of the model outside of `used` seems able to take a call. If none
    /// is, a fallback of the model would count as another backend.
    pub fn has_other_backend(names: &Names, model: &ModelAsked<'_>, used: &BackendSet) -> bool {
        let ModelAsked { name, fleet, split } = *model;
        let model = fleet.model_named(names.resolve(name, fleet, split));
        let is_usable = |row: &Serving| {
            !used.contains(row.id)
                && matches!(row.state.status(), Health::Healthy | Health::Unknown)
                && row.state.breaker.is_closed()
        };
        !used.is_empty() && model.is_some_and(|model| model.serving.iter().any(is_usable))
    }

    /// Returns all calls, in order.
    pub fn calls() -> impl Iterator<Item = EnsembleCall> {
        let of = |stage| (1_u8..).take(DRAFTS).map(move |number| EnsembleCall { stage, number });
        of(EnsembleStage::Draft)
            .chain(of(EnsembleStage::Critique))
            .chain(std::iter::once(EnsembleCall::FINAL))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use penstock_config::Environment;

    fn plan(yaml: &str, name: &str) -> Option<EnsemblePlan> {
        let yaml = format!("{yaml}\nbackends: [{{ url: http://a:1, models: [m, moe-real, n] }}]");
        let none = Environment::default();
        let config = Config::parse(&yaml, "test.yaml", Path::new(""), &none).unwrap();
        let generation = crate::routing::Generation::new(config);
        let fleet = generation.fleet.topology();
        EnsemblePlan::of(&generation.config, &generation.router.names, &fleet, name)
    }

    #[test]
    fn a_prefix_makes_an_ensemble_where_that_is_enabled() {
        const ON: &str = "ensembles: { enabled: true }";
        assert_eq!(plan("", "moe-m"), None);
        assert_eq!(plan(ON, "moe-m").unwrap().model, "m");
        assert_eq!(plan(ON, "MOE-m").unwrap().model, "m");
        assert_eq!(plan(ON, "moe-x-moe-y").unwrap().model, "x-moe-y", "only the first one");
        for name in ["m", "moe-", "mo", "", "moe-real", "é-m-m"] {
            assert_eq!(plan(ON, name), None, "{name}");
        }
        let other = "ensembles: { enabled: true, prefix: all/ }";
        assert_eq!(plan(other, "all/m").unwrap().model, "m");
        assert_eq!(plan(other, "moe-m"), None);
        let aliases = format!("{ON}\nrouting: {{ aliases: {{ moe-m: n, 'x*': n }} }}");
        assert_eq!(plan(&aliases, "moe-m"), None, "an alias with that name");
        assert!(plan(&format!("{ON}\nrouting: {{ aliases: {{ '*': n }} }}"), "moe-m").is_some());
    }

    #[test]
    fn members_are_those_of_the_model_in_any_spelling() {
        for written in ["m", "M", "m:latest"] {
            let models = format!("models: {{ \"{written}\": {{ ensemble: [n] }} }}");
            let yaml = format!("ensembles: {{ enabled: true }}\n{models}");
            for asked in ["moe-m", "moe-M:latest"] {
                assert_eq!(plan(&yaml, asked).unwrap().members, ["n"], "{written} for {asked}");
            }
        }
    }

    #[test]
    fn members_take_turns_and_criticize_each_other() {
        let yaml = "ensembles: { enabled: true }\n\
                    models: { m: { ensemble: [m, n] } }";
        let plan = plan(yaml, "moe-m").unwrap();
        let calls: Vec<String> =
            EnsemblePlan::calls().map(|call| format!("{call}: {}", plan.member(call))).collect();
        assert_eq!(
            calls,
            [
                "draft 1: m",
                "draft 2: n",
                "draft 3: m",
                "critique 1: n",
                "critique 2: m",
                "critique 3: n",
                "final: m"
            ]
        );
    }
}
