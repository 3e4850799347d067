//! The load of the runs in words.

use std::fmt::Write;

use penstock_sim::summary::Stationarity;

use super::setup::{PlannedLoad, SimulationPlan};
use super::{Arm, short};

impl PlannedLoad {
    /// Formats the load with its error.
    pub(super) fn shown(self) -> String {
        format!("{:.2} ± {:.2}", self.share, self.error)
    }
}

/// Returns the number of runs of an arm that show this load.
fn runs_with(arm: &Arm<'_>, load: Stationarity) -> usize {
    arm.summaries.iter().filter(|one| one.load == load).count()
}

/// Returns the first line of a run beyond the capacity of the fleet, where latencies reflect the
/// length of the run and little else.
pub(super) fn overload(plan: &SimulationPlan, arms: &[Arm<'_>]) -> String {
    // A single run of several may be chance.
    let grew =
        arms.iter().filter(|arm| runs_with(arm, Stationarity::Saturated) * 2 > arm.summaries.len());
    // In a closed loop there is a request for each response.
    let grew = grew.filter(|_| !plan.is_closed_loop());
    let grew: Vec<String> = grew.map(|arm| short(&arm.variant.name)).collect();
    // Within the error, a note below the table says that the load is about 1.
    let load = plan.load().filter(|load| load.share > 1.0 + load.error);
    if load.is_none() && grew.is_empty() {
        return String::new();
    }
    let mut text = "overload  ".to_owned();
    if let (Some(load), Some(capacity)) = (load, plan.capacity) {
        _ = write!(text, "load {}: the fleet keeps up with {:.2}/s", load.shown(), capacity.rate);
    }
    if !grew.is_empty() {
        let before = if load.is_some() { "; " } else { "" };
        _ = write!(text, "{before}the queue grew to the end: {}", grew.join(", "));
    }
    text.push('\n');
    text
}

/// Returns the notes below the table.
pub(super) fn warnings(plan: &SimulationPlan, arms: &[Arm<'_>]) -> String {
    let mut text = String::new();
    // The load is 1 within the error of the model.
    let is_near_one = plan.load().is_some_and(|load| (load.share - 1.0).abs() <= load.error);
    for arm in arms {
        let (saturated, unknown) =
            (runs_with(arm, Stationarity::Saturated), runs_with(arm, Stationarity::Unknown));
        let runs = arm.summaries.len();
        let name = &arm.variant.name;
        if saturated > 0 && !plan.is_closed_loop() {
            _ = write!(
                text,
                "\n{name}: the queue grew to the end in {saturated} of {runs} runs; its latencies depend on how long they were\n"
            );
        } else if is_near_one {
            _ = write!(
                text,
                "\n{name}: the load is 1 within the error of the model: cannot tell whether the fleet keeps up\n"
            );
        } else if plan.has_rate() && unknown * 2 > runs {
            _ = write!(
                text,
                "\n{name}: {unknown} of {runs} runs are too short to tell whether the queue grows\n"
            );
        }
        let left: usize = arm.summaries.iter().map(|one| one.left).sum();
        if left > 0 {
            _ = write!(
                text,
                "\n{name}: {left} requests ended because their clients left: latencies are those of the others\n"
            );
        }
    }
    if plan.has_rate() && plan.capacity.is_none() {
        text.push_str(
            "\nThe workload is too short to show the capacity of the fleet, and so the load\n",
        );
    }
    text
}
