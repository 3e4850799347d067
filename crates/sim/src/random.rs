//! Random numbers of the simulator: one stream per purpose and id, each a counter mixed with the
//! stream's key. Draws from one stream never change another, so two configurations meet the same
//! workload (common random numbers). The logarithms come from `libm`, so every machine draws the
//! same numbers.

use penstock_api::mix::{GOLDEN_GAMMA, mix};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The purpose of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The arrival times of requests.
    Arrivals,
    /// The lengths of prompts.
    Inputs,
    /// The lengths of outputs.
    Outputs,
    /// The choice of a prompt's prefix.
    Prefixes,
    /// The turns of sessions, and the pauses between them.
    Sessions,
    /// The random picks of decisions.
    Decisions,
    /// The jitter of health checks.
    Checks,
    /// The jitter of scrapes.
    Scrapes,
    /// The jitter of cooldowns.
    Cooldowns,
    /// The errors of a perturbed model, to test whether advice survives them.
    Perturbations,
    /// The times at which balancers read the models in memory.
    Probes,
}

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct RandomStream {
    key: u64,
    drawn: u64,
}

impl RandomStream {
    /// Creates the stream of a purpose and an id; the same seed gives the same numbers.
    pub fn new(seed: u64, purpose: Purpose, id: u64) -> Self {
        let key = xxh3_64_with_seed(&id.to_le_bytes(), mix(seed ^ GOLDEN_GAMMA) ^ purpose as u64);
        Self { key: mix(key.wrapping_add((purpose as u64) << 32)), drawn: 0 }
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.key.wrapping_add(self.drawn.wrapping_mul(GOLDEN_GAMMA)))
    }

    /// Draws from the uniform distribution over 0..1, excluding 1.
    pub fn uniform(&mut self) -> f64 {
        // A double has 53 bits of precision.
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws from the uniform distribution over `0..count`; returns 0 if `count` is 0.
    pub fn below(&mut self, count: u64) -> u64 {
        let wide = u128::from(self.bits()) * u128::from(count);
        u64::try_from(wide >> u64::BITS).unwrap_or(0)
    }

    /// Draws from the exponential distribution with mean 1.
    pub fn exponential(&mut self) -> f64 {
        // `uniform` may be 0, which has no logarithm, but is always below 1.
        -libm::log(1.0 - self.uniform())
    }

    /// Draws from the normal distribution with mean 0 and deviation 1 (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(2.0 * self.exponential());
        radius * libm::cos(std::f64::consts::TAU * self.uniform())
    }

    /// Draws from the gamma distribution with this shape and mean 1 (Marsaglia and Tsang, 2000).
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            // A shape below 1 is drawn with the next higher shape, times a power of a uniform
            // number.
            let power = libm::pow(1.0 - self.uniform(), 1.0 / shape);
            return self.gamma(shape + 1.0) * (shape + 1.0) / shape * power;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            if v <= 0.0 {
                continue;
            }
            let v = v * v * v;
            if libm::log(1.0 - self.uniform()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v / shape;
            }
        }
    }

    /// Draws from the Weibull distribution with this shape and mean 1.
    pub fn weibull(&mut self, shape: f64) -> f64 {
        libm::pow(self.exponential(), 1.0 / shape) / libm::tgamma(1.0 + 1.0 / shape)
    }
}

/// Returns the shape of a Weibull distribution with this coefficient of variation, by bisection.
pub fn weibull_shape(variation: f64) -> f64 {
    let of = |shape: f64| {
        let first = libm::tgamma(1.0 + 1.0 / shape);
        libm::tgamma(1.0 + 2.0 / shape) / (first * first) - 1.0
    };
    let (mut low, mut high) = (0.05, 50.0);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        // The variation falls as the shape grows.
        if of(middle) > variation * variation { low = middle } else { high = middle }
    }
    low
}

/// A Zipf distribution over ranks: rank `n` (from 0) comes `1/(n+1)^exponent` as often as the
/// first.
#[derive(Debug, Clone)]
pub struct Zipf {
    /// The cumulative weights of the ranks, normalized to 1.
    sums: Vec<f64>,
}

impl Zipf {
    /// Creates a distribution over `ranks` ranks; with an exponent of 0 all are equally likely.
    pub fn new(ranks: u32, exponent: f64) -> Self {
        let mut sum = 0.0;
        let mut sums: Vec<f64> = (1..=ranks.max(1))
            .map(|rank| {
                sum += libm::pow(f64::from(rank), -exponent);
                sum
            })
            .collect();
        sums.iter_mut().for_each(|one| *one /= sum);
        Self { sums }
    }

    pub fn draw(&self, stream: &mut RandomStream) -> u64 {
        let point = stream.uniform();
        self.sums.partition_point(|sum| *sum <= point) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let values: Vec<f64> = (0..200_000).map(|_| draw()).collect();
        let mean = values.iter().sum::<f64>() / 200_000.0;
        let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 200_000.0;
        (mean, square.sqrt() / mean)
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.03, "{found} instead of {expected}");
    }

    #[test]
    fn distributions_have_their_means_and_variations() {
        let mut stream = RandomStream::new(1, Purpose::Arrivals, 0);
        for variation in [0.5, 1.0, 3.0] {
            let (mean, found) = moments(|| stream.gamma(1.0 / (variation * variation)));
            near(mean, 1.0);
            near(found, variation);
            let shape = weibull_shape(variation);
            let (mean, found) = moments(|| stream.weibull(shape));
            near(mean, 1.0);
            near(found, variation);
        }
        let (mean, variation) = moments(|| 5.0 + stream.normal());
        near(mean, 5.0);
        near(variation, 0.2);
    }

    #[test]
    fn streams_do_not_depend_on_each_other() {
        let draw = |seed, purpose, id| RandomStream::new(seed, purpose, id).bits();
        let first = draw(1, Purpose::Arrivals, 0);
        assert_eq!(first, draw(1, Purpose::Arrivals, 0));
        for other in [
            draw(2, Purpose::Arrivals, 0),
            draw(1, Purpose::Inputs, 0),
            draw(1, Purpose::Arrivals, 1),
        ] {
            assert_ne!(first, other);
        }
        // Pinned: every machine draws the same numbers.
        assert_eq!(RandomStream::new(7, Purpose::Sessions, 3).bits(), PINNED);
    }

    const PINNED: u64 = 15_413_204_595_929_767_280;

    #[test]
    fn popularity_falls_with_the_rank() {
        let zipf = Zipf::new(4, 1.0);
        let mut stream = RandomStream::new(1, Purpose::Prefixes, 0);
        let mut counts = [0_u32; 4];
        (0..100_000).for_each(|_| counts[usize::try_from(zipf.draw(&mut stream)).unwrap()] += 1);
        // The expected shares are 1, 1/2, 1/3 and 1/4 over their sum.
        for (count, expected) in counts.iter().zip([0.48, 0.24, 0.16, 0.12]) {
            near(f64::from(*count) / 100_000.0, expected);
        }
    }
}
