//! Reads an engine's metrics page: adds up the samples of its families, over all ranks and engines
//! on the page.

use penstock_api::{Engine, MAX_NAME, is_unprintable};
use penstock_core::fleet::{Adapters, EngineDetails};
use serde_json::Value;

use super::prometheus_text::{LabelValue, Labels, ScrapedSample, Wanted};
use crate::discovery::engines::{Fact, Family, families};

/// Labels of which only the series with 0 or no value counts, because the others copy or split it:
/// the ranks of one engine, and SGLang's priorities.
const COPIES: [&str; 2] = ["pp_rank", "priority"];
/// The same per engine of SGLang's data-parallel attention: only its first rank counts.
const TENSOR_RANK: &str = "tp_rank";
const DATA_RANK: &str = "dp_rank";
/// The largest number of engines on a page whose first ranks are distinguished.
const MAX_DATA_RANKS: usize = 64;

/// The largest number of running, and of waiting, adapters of one engine: vLLM holds a few dozen.
const MAX_ADAPTERS: usize = 256;

/// The facts on a page; `None` for those not reported.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EnginePage {
    /// The engine, by the names of its metrics.
    pub engine: Option<Engine>,
    pub waiting: Option<f32>,
    pub running: Option<f32>,
    /// The share of the KV cache in use.
    pub kv_utilization: Option<f32>,
    /// Facts that change rarely.
    pub details: EngineDetails,
    /// Tokens found in the prefix cache, and tokens looked up.
    pub prefix_cache: Option<(u64, u64)>,
    /// Work done since the engine started.
    pub work: Option<f64>,
}

/// Reads metrics pages of any engine.
#[derive(Debug)]
pub struct PageReader {
    wanted: Wanted,
    /// The families, in the order of `wanted`.
    families: Box<[(Option<Engine>, Family)]>,
}

impl Default for PageReader {
    fn default() -> Self {
        let families: Box<[_]> = families().collect();
        Self { wanted: Wanted::new(families.iter().map(|(_, family)| family.name)), families }
    }
}

impl PageReader {
    /// Reads a page in Prometheus' text format; `None` if it has nothing about an engine's load.
    /// Allocates only for the names of LoRA adapters.
    pub fn read(&self, page: &[u8]) -> Option<EnginePage> {
        let mut firsts = FirstRanks::default();
        let mut tallies = self.read_series(page, &mut firsts);
        // The first rank is known only at the end of the page.
        if firsts.were_others {
            tallies = self.read_series(page, &mut firsts);
        }
        tallies.into_page()
    }

    fn read_series<'a>(&'a self, page: &'a [u8], firsts: &mut FirstRanks) -> Tallies<'a> {
        let mut tallies = Tallies::default();
        for sample in self.wanted.samples(page) {
            if let Some((engine, family)) = self.families.get(sample.family)
                && !is_copy(sample.labels)
                && firsts.is_first(sample.labels)
            {
                tallies.take(family.fact, sample);
                tallies.engine = engine.or(tallies.engine);
            }
        }
        tallies
    }
}

/// The first tensor rank of each data rank, as far as the page was read. Without data ranks it is
/// 0.
struct FirstRanks {
    known: [u32; MAX_DATA_RANKS],
    /// True if a series of another rank was taken before the first one came.
    were_others: bool,
}

impl Default for FirstRanks {
    fn default() -> Self {
        Self { known: [u32::MAX; MAX_DATA_RANKS], were_others: false }
    }
}

impl FirstRanks {
    fn is_first(&mut self, labels: Labels<'_>) -> bool {
        let tensor = labels.get(TENSOR_RANK).and_then(LabelValue::to_number::<u32>);
        let Some(rank) = tensor else { return true };
        let engine = labels.get(DATA_RANK).and_then(LabelValue::to_number::<usize>);
        let Some(first) = engine.and_then(|engine| self.known.get_mut(engine)) else {
            return rank == 0;
        };
        if rank < *first {
            self.were_others |= *first != u32::MAX;
            *first = rank;
        }
        rank == *first
    }
}

/// Reads llama.cpp's `/slots`, for servers without `--metrics`. The queue is known, and empty, only
/// while a slot is free.
pub fn read_slots(page: &[u8]) -> Option<EnginePage> {
    let slots: Value = serde_json::from_slice(page).ok()?;
    let slots = slots.as_array()?;
    let busy = slots.iter().map(|slot| slot.get("is_processing").and_then(Value::as_bool));
    let busy: Vec<bool> = busy.collect::<Option<_>>()?;
    let running = u16::try_from(busy.iter().filter(|busy| **busy).count()).ok()?;
    Some(EnginePage {
        engine: Some(Engine::LlamaCpp),
        waiting: busy.contains(&false).then_some(0.0),
        running: Some(running.into()),
        ..EnginePage::default()
    })
}

/// Returns the number of tokens that llama.cpp's slots hold in total, from its `/props`.
pub fn read_props(page: &[u8]) -> Option<u64> {
    let props: Value = serde_json::from_slice(page).ok()?;
    let slots = props.get("total_slots")?.as_u64()?;
    let context = props.pointer("/default_generation_settings/n_ctx")?.as_u64()?;
    slots.checked_mul(context).filter(|tokens| *tokens > 0)
}

fn is_copy(labels: Labels<'_>) -> bool {
    let mut labels = labels.iter();
    labels.any(|(name, value)| {
        COPIES.iter().any(|rank| rank.as_bytes() == name) && !value.is("0") && !value.is("")
    })
}

/// The samples of one fact: all series of the first of its names that is on the page.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    rank: usize,
    count: u32,
    sum: f64,
    most: f64,
}

impl Tally {
    fn add(&mut self, rank: usize, value: f64) {
        if !value.is_finite() || (self.count > 0 && rank > self.rank) {
            return;
        }
        if self.count == 0 || rank < self.rank {
            *self = Self { rank, count: 0, sum: 0.0, most: value };
        }
        self.count += 1;
        self.sum += value;
        self.most = self.most.max(value);
    }

    fn sum(self) -> Option<f64> {
        (self.count > 0).then_some(self.sum)
    }

    fn mean(self) -> Option<f64> {
        Some(self.sum()? / f64::from(self.count))
    }

    fn most(self) -> Option<f64> {
        (self.count > 0).then_some(self.most)
    }
}

#[derive(Debug, Default)]
struct Tallies<'a> {
    engine: Option<Engine>,
    waiting: Tally,
    running: Tally,
    kv_utilization: Tally,
    block_size: Tally,
    blocks: Tally,
    started_at: Tally,
    hits: Tally,
    queries: Tally,
    work: Tally,
    prefix_caching: Option<bool>,
    adapters: Option<(f64, Labels<'a>)>,
}

impl<'a> Tallies<'a> {
    fn take(&mut self, fact: Fact, sample: ScrapedSample<'a>) {
        let ScrapedSample { family: rank, labels, value } = sample;
        match fact {
            Fact::Waiting => self.waiting.add(rank, value),
            Fact::Running => self.running.add(rank, value),
            Fact::KvUtilization => self.kv_utilization.add(rank, value),
            Fact::BlockSize => self.block_size.add(rank, value),
            Fact::Blocks => self.blocks.add(rank, value),
            Fact::StartedAt => self.started_at.add(rank, value),
            Fact::PrefixHits => self.hits.add(rank, value),
            Fact::PrefixQueries => self.queries.add(rank, value),
            Fact::Work => self.work.add(rank, value),
            Fact::CacheInfo { size, count, caching } => {
                let number = |name| labels.get(name).and_then(LabelValue::to_number);
                // `Tally::add` ignores NaN: the label is missing, or no number.
                self.block_size.add(rank, number(size).unwrap_or(f64::NAN));
                self.blocks.add(rank, number(count).unwrap_or(f64::NAN));
                self.prefix_caching = match caching.and_then(|name| labels.get(name)) {
                    Some(given) if given.is("False") => Some(false),
                    Some(given) if given.is("True") => Some(true),
                    _ => self.prefix_caching,
                };
            }
            // Its value is the time it was set; a NaN counts as later than nothing.
            Fact::Adapters => {
                if self.adapters.is_none_or(|(newest, _)| value > newest) {
                    self.adapters = Some((value, labels));
                }
            }
            Fact::ByLabel(label, facts) => {
                let given = labels.get(label);
                let known = facts.iter().find(|(text, _)| given.is_some_and(|one| one.is(text)));
                if let Some((_, fact)) = known {
                    self.take(*fact, sample);
                }
            }
        }
    }

    fn into_page(self) -> Option<EnginePage> {
        let load = [self.waiting, self.running, self.kv_utilization];
        load.iter().any(|tally| tally.count > 0).then(|| EnginePage {
            engine: self.engine,
            waiting: self.waiting.sum().map(to_f32),
            running: self.running.sum().map(to_f32),
            // A share: the sum over several engines would be above 1.
            kv_utilization: self.kv_utilization.mean().map(to_f32),
            details: EngineDetails {
                block_size: self.block_size.most().and_then(to_count),
                blocks: self.blocks.sum().and_then(to_count).map(u64::from),
                cache_tokens: None,
                prefix_caching: self.prefix_caching,
                adapters: self.adapters.and_then(|(_, labels)| read_adapters(labels)),
                // The latest start, so that a restart of any process on the page shows.
                started_at: self.started_at.most(),
            },
            prefix_cache: self
                .hits
                .sum()
                .zip(self.queries.sum())
                .map(|(hits, queries)| (to_total(hits), to_total(queries))),
            // Finite samples may have an infinite sum.
            work: self.work.sum().filter(|work| work.is_finite()),
        })
    }
}

fn read_adapters(labels: Labels<'_>) -> Option<Adapters> {
    let mut dropped = 0;
    let running = adapter_names(labels, "running_lora_adapters", &mut dropped)?;
    let waiting = adapter_names(labels, "waiting_lora_adapters", &mut dropped).unwrap_or_default();
    let max = labels.get("max_lora").and_then(LabelValue::to_number).and_then(to_count);
    Some(Adapters { running, waiting, max, dropped })
}

/// Returns the names in a label, each once; counts those that are too long, unprintable or too
/// many.
fn adapter_names(labels: Labels<'_>, label: &str, dropped: &mut u32) -> Option<Vec<Box<str>>> {
    let listed: Vec<u8> = labels.get(label)?.bytes().collect();
    let listed = String::from_utf8(listed).ok()?;
    let mut names: Vec<Box<str>> = Vec::new();
    for name in listed.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let is_usable = name.len() <= MAX_NAME && !name.contains(is_unprintable);
        if !is_usable || names.len() >= MAX_ADAPTERS {
            *dropped = dropped.saturating_add(1);
        } else if !names.iter().any(|known| **known == *name) {
            names.push(name.into());
        }
    }
    Some(names)
}

#[expect(clippy::cast_possible_truncation, reason = "a load needs few digits")]
fn to_f32(value: f64) -> f32 {
    value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}

/// Returns a count of at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
fn to_count(value: f64) -> Option<u32> {
    (1.0..=f64::from(u32::MAX)).contains(&value).then_some(value as u32)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn to_total(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests;
