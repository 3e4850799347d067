//! Metrics of groups: backends that stand for every address of a name.

use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{from_size, number, to_sample};

const GROUP: &[&str] = &["group"];

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_group_backends",
        GROUP,
        |_, scrape| {
            let groups = scrape.fleet.groups.iter();
            groups.map(|one| number(&[&one.name], from_size(one.addresses.len()))).collect()
        },
        "backends that a name with `resolve: each` or `srv` stands for now",
    ),
    gauge(
        "penstock_group_unused_addresses",
        GROUP,
        |_, scrape| {
            let groups = scrape.fleet.groups.iter();
            groups.map(|one| number(&[&one.name], from_size(one.unused))).collect()
        },
        "addresses of the name that are not used, because there are more than `discovery.max_addresses`",
    ),
    counter(
        "penstock_group_lookups_total",
        &["group", "result"],
        |_, scrape| {
            let groups = scrape.fleet.groups.iter();
            let samples = groups.flat_map(|one| {
                let (found, failed) = one.lookups.counts();
                [("found", found), ("failed", failed)]
                    .map(|(result, count)| number(&[&one.name, result], to_sample(count)))
            });
            samples.collect()
        },
        "lookups of the name; `result` is found, or failed (the addresses before it stay in use)",
    ),
];
