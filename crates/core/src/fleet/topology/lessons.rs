//! The capabilities that engines say their models lack, applied to the backends of a model.

use penstock_api::Capabilities;

use crate::fleet::serving::Serving;

/// Takes the capabilities that a model lacks, by the words of the engines, off its backends: they
/// count more than a list of models, or what an operator declares. One that no backend is left to
/// have stays: such requests are refused by their engines, and not all by the one that was tried
/// last.
pub(super) fn apply_lessons(serving: &mut [Serving]) {
    let missing = |row: &Serving| row.model_state.lessons.missing();
    if serving.iter().all(|row| missing(row).is_empty()) {
        return;
    }
    for (capability, _) in Capabilities::NAMED {
        let has = |row: &&mut Serving| {
            row.usable.contains(capability) && !missing(row).contains(capability)
        };
        if !serving.iter_mut().any(|row| has(&row)) {
            continue;
        }
        for row in serving.iter_mut().filter(|row| missing(row).contains(capability)) {
            row.lack(capability);
        }
    }
}
