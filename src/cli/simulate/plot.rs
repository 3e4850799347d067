//! `--plot FILE.svg`: percentiles over the load, and requests at each backend over time.

use std::fmt::Write;
use std::path::Path;

use penstock_sim::world::RunResult;

use super::error::SimulateError;
use super::setup::SimulationPlan;
use super::short;
use super::table::seconds;

/// The loads to run, in relation to the capacity of the first configuration.
const LOADS: [f64; 8] = [0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1];
/// The number of columns of the timeline.
const COLUMNS: usize = 240;
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 70.0;
const COLORS: [&str; 8] =
    ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7ea4", "#57606a"];

/// Runs the loads and writes the picture.
pub(super) fn write(path: &Path, plan: &SimulationPlan) -> Result<(), SimulateError> {
    let curves = curves(plan)?;
    let mut svg = String::new();
    let first = plan.variants.first().ok_or(SimulateError::NoVariant)?;
    let (run, _) = plan.setting.run(first, 0)?;
    let height = 2.0 * HEIGHT + 150.0;
    _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        WIDTH + LEFT + 40.0
    );
    draw_curves(&mut svg, &curves);
    draw_timeline(&mut svg, &run, HEIGHT + 90.0);
    svg.push_str("</svg>\n");
    std::fs::write(path, svg)
        .map_err(|source| SimulateError::Unwritable { path: path.to_owned(), source })
}

/// A percentile of one configuration at each load.
struct Curve {
    name: String,
    is_dashed: bool,
    color: &'static str,
    points: Vec<(f64, f64)>,
}

fn curves(plan: &SimulationPlan) -> Result<Vec<Curve>, SimulateError> {
    let capacity = plan.known_capacity("--plot")?;
    let mut curves = Vec::new();
    for (variant, color) in plan.variants.iter().zip(COLORS.iter().cycle()) {
        let (mut middle, mut high) = (Vec::new(), Vec::new());
        for load in LOADS {
            let mut setting = plan.setting.clone();
            let speed = load * capacity.rate / plan.rate.max(f64::MIN_POSITIVE);
            // Eight runs per configuration: the shape of a curve needs no second seed.
            setting.workloads.truncate(1);
            setting.workloads =
                setting.workloads.into_iter().map(|one| one.at_speed(speed)).collect();
            let summary = setting.run(variant, 0)?.1;
            middle.push((load, summary.first_token.p50));
            high.push((load, summary.first_token.p99));
        }
        let curve = |points, percentile: &str, is_dashed| Curve {
            name: format!("{} {percentile}", short(&variant.name)),
            is_dashed,
            color,
            points,
        };
        curves.push(curve(middle, "p50", true));
        curves.push(curve(high, "p99", false));
    }
    Ok(curves)
}

/// Escapes text for the picture.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn draw_curves(svg: &mut String, curves: &[Curve]) {
    let values = curves.iter().flat_map(|curve| &curve.points).map(|(_, value)| value.max(1e-4));
    let (low, high) =
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let (low, high) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let x = |load: f64| LEFT + (load - 0.25) / 0.9 * WIDTH;
    // Logarithmic: beyond capacity the times are a thousand times as long.
    let y = |value: f64| 40.0 + HEIGHT * (1.0 - (value.max(1e-4).log10() - low) / (high - low));
    _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">Time to the first token over the load (rate / capacity)</text>"
    );
    let mut decade = low;
    while decade <= high {
        let value = 10_f64.powf(decade);
        _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#d0d7de\"/><text x=\"{:.0}\" \
             y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT + WIDTH,
            LEFT - 6.0,
            y(value) + 4.0,
            seconds(value),
            y = y(value)
        );
        decade += 1.0;
    }
    for load in LOADS {
        _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{load}</text>",
            x(load),
            HEIGHT + 58.0
        );
    }
    for (index, curve) in curves.iter().enumerate() {
        let points: Vec<String> = curve
            .points
            .iter()
            .map(|(load, value)| format!("{:.1},{:.1}", x(*load), y(*value)))
            .collect();
        let dashes = if curve.is_dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dashes}/><text x=\"{:.0}\" \
             y=\"{:.0}\" fill=\"{}\">{}</text>",
            points.join(" "),
            curve.color,
            LEFT + 12.0,
            56.0 + 16.0 * index as f64,
            curve.color,
            escaped(&curve.name)
        );
    }
}

/// Requests at each backend over time, one band per backend.
fn draw_timeline(svg: &mut String, run: &RunResult, top: f64) {
    let last = run.requests.iter().map(|request| request.ended).max().unwrap_or(run.start);
    let span = last.saturating_sub(run.start).max(1) as f64;
    let mut bands = vec![[0_i64; COLUMNS]; run.backends.len()];
    for request in run.requests.iter().filter(|request| request.attempts > 0) {
        let column = |at: u64| {
            let share = at.saturating_sub(run.start) as f64 / span;
            penstock_sim::workload::rounded_index(share * (COLUMNS as f64 - 1.0))
        };
        let Some(band) = bands.get_mut(usize::from(request.backend)) else { continue };
        let inside = column(request.arrived)..=column(request.ended);
        band.iter_mut()
            .enumerate()
            .filter(|(index, _)| inside.contains(index))
            .for_each(|(_, count)| *count += 1);
    }
    let most = bands.iter().flatten().copied().max().unwrap_or(1).max(1);
    let height = HEIGHT / bands.len().max(1) as f64;
    _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{top:.0}\" font-size=\"14\">Requests at each backend over {} (at most {most})</text>",
        seconds(span * 1e-6)
    );
    for (index, (band, backend)) in bands.iter().zip(&run.backends).enumerate() {
        let base = top + 14.0 + height * (index as f64 + 1.0);
        let mut points = format!("{LEFT:.1},{base:.1}");
        for (column, count) in band.iter().enumerate() {
            let x = LEFT + WIDTH * column as f64 / COLUMNS as f64;
            let y = base - (height - 3.0) * *count as f64 / most as f64;
            _ = write!(points, " {x:.1},{y:.1}");
        }
        _ = writeln!(
            svg,
            "<polygon points=\"{points} {:.1},{base:.1}\" fill=\"{}\" fill-opacity=\"0.75\"/><text x=\"{:.0}\" \
             y=\"{base:.1}\" text-anchor=\"end\">{}</text>",
            LEFT + WIDTH,
            COLORS.get(index % COLORS.len()).unwrap_or(&"#1f6feb"),
            LEFT - 6.0,
            escaped(&backend.name)
        );
    }
}
