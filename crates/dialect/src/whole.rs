//! Whole numbers of requests. Programs without integers write `1024.0` or `1e3`, and engines take
//! them.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use super::error::ConvertError;
use super::json::Fields;

/// The largest number that a float has without a gap before it.
const MAX_FLOAT: f64 = 9_007_199_254_740_992.0;

/// A whole number, however it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole<T>(pub(super) T);

impl<'de, T: TryFrom<i128>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeVisitor<T>(PhantomData<T>);

        impl<T: TryFrom<i128>> WholeVisitor<T> {
            fn number<E: Error>(number: i128) -> Result<Whole<T>, E> {
                T::try_from(number).map(Whole).map_err(|_error| E::custom("out of range"))
            }
        }

        impl<T: TryFrom<i128>> Visitor<'_> for WholeVisitor<T> {
            type Value = Whole<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a whole number")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Whole<T>, E> {
                Self::number(number.into())
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Whole<T>, E> {
                Self::number(number.into())
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Whole<T>, E> {
                if number.fract() != 0.0 || number.abs() > MAX_FLOAT {
                    return Err(E::custom("not a whole number"));
                }
                // The text of a float without a fraction is the number.
                format!("{number:.0}").parse().map_err(E::custom).and_then(Self::number)
            }
        }

        deserializer.deserialize_any(WholeVisitor(PhantomData))
    }
}

impl Fields<'_> {
    /// Removes a member and reads its whole number; `expected` describes it for the error.
    pub(super) fn take_whole<T: TryFrom<i128>>(
        &mut self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, ConvertError> {
        let number: Option<Whole<T>> = self.take_as(name, expected)?;
        Ok(number.map(|Whole(number)| number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_several_forms() {
        let read = |text: &str| serde_json::from_str::<Whole<i64>>(text).ok().map(|Whole(n)| n);
        for (text, expected) in [
            ("1024", Some(1024)),
            ("1024.0", Some(1024)),
            ("1e3", Some(1000)),
            ("-1", Some(-1)),
            ("-2.0", Some(-2)),
            ("-0.0", Some(0)),
            ("9007199254740992.0", Some(9_007_199_254_740_992)),
            ("1e300", None),
            ("1.5", None),
            ("18446744073709551615", None),
            ("\"5\"", None),
            ("true", None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        assert_eq!(serde_json::from_str::<Whole<u64>>("-1.0").ok(), None, "out of range");
    }
}
