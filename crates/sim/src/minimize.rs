//! Minimizes a function without derivatives.

/// A vertex of the simplex, and the function's value there.
type Vertex<const N: usize> = ([f64; N], f64);

/// Minimizes a function of `N` non-negative numbers in `rounds` rounds: the simplex method of
/// Nelder and Mead (1965) with its standard coefficients 1, 2, 1/2 and 1/2. Negative coordinates
/// are clamped to 0. No coordinate of `start` may be 0.
pub(super) fn minimize<const N: usize>(
    start: [f64; N],
    rounds: usize,
    mut value: impl FnMut(&[f64; N]) -> f64,
) -> Vertex<N> {
    let mut simplex: Vec<Vertex<N>> = Vec::with_capacity(N + 1);
    simplex.push((start, value(&start)));
    for changed in 0..N {
        let mut point = start;
        for one in point.iter_mut().skip(changed).take(1) {
            // In proportion: coefficients differ by orders of magnitude. No step would leave 0.
            *one *= 1.3;
        }
        simplex.push((point, value(&point)));
    }
    for _ in 0..rounds {
        simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (Some(best), Some(worst)) = (simplex.first().copied(), simplex.pop()) else {
            break;
        };
        let next_worst = simplex.last().map_or(f64::INFINITY, |vertex| vertex.1);
        let center = center_of(&simplex);
        let mut look = |distance: f64| {
            let point = along(&center, &worst.0, distance);
            (point, value(&point))
        };
        let reflected = look(1.0);
        let replaced = match reflected.1 {
            at if at < best.1 => Some(better(look(2.0), reflected)),
            at if at < next_worst => Some(reflected),
            at if at < worst.1 => Some(look(0.5)).filter(|found| found.1 <= at),
            _ => Some(look(-0.5)).filter(|found| found.1 < worst.1),
        };
        if let Some(vertex) = replaced {
            simplex.push(vertex);
            continue;
        }
        simplex.push(worst);
        for vertex in simplex.iter_mut().skip(1) {
            let point = along(&best.0, &vertex.0, -0.5);
            *vertex = (point, value(&point));
        }
    }
    simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
    simplex.first().copied().unwrap_or((start, f64::INFINITY))
}

fn better<const N: usize>(a: Vertex<N>, b: Vertex<N>) -> Vertex<N> {
    if a.1 < b.1 { a } else { b }
}

fn center_of<const N: usize>(simplex: &[Vertex<N>]) -> [f64; N] {
    let mut center = [0.0; N];
    for (point, _) in simplex {
        for (sum, one) in center.iter_mut().zip(point) {
            *sum += one / simplex.len() as f64;
        }
    }
    center
}

/// Returns the point beyond `center`, seen from `from`, at `distance` times the distance between
/// them.
fn along<const N: usize>(center: &[f64; N], from: &[f64; N], distance: f64) -> [f64; N] {
    let mut point = *center;
    for (one, from) in point.iter_mut().zip(from) {
        *one = (*one + distance * (*one - from)).max(0.0);
    }
    point
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_value_of_a_curved_valley_is_found() {
        // Rosenbrock's function: 0 at (1, 1).
        let valley = |[x, y]: &[f64; 2]| 100.0 * (y - x * x).powi(2) + (1.0 - x).powi(2);
        let (point, value) = minimize([3.0, 0.5], 200, valley);
        assert!(value < 1e-6, "{value} at {point:?}");
    }

    #[test]
    fn negative_numbers_are_not_tried() {
        let (point, _) = minimize([1.0, 1.0], 100, |[x, y]| {
            assert!(*x >= 0.0 && *y >= 0.0);
            x + (y - 2.0).abs()
        });
        assert!(point[0] < 1e-6 && (point[1] - 2.0).abs() < 1e-3, "{point:?}");
    }
}
