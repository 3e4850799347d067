//! Amounts of money as whole numbers, so that sums are exact.

/// An amount in billionths of the currency of the prices: a token at 0.05 per million is 50.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Money(pub u64);

impl Money {
    pub const ZERO: Self = Self(0);

    /// Returns an amount of the currency, rounded up: many small costs must not be free.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    pub fn of(amount: f64) -> Self {
        Self((amount * 1e9 - 1e-3).ceil().max(0.0) as u64)
    }

    /// Returns the amount in the currency.
    pub fn amount(self) -> f64 {
        self.0 as f64 / 1e9
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference; zero if `other` is more.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}
