//! Closed sets of names: an enum with the word for each value.

/// Declares an enum whose values have names.
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        $vis:vis enum $name:ident {
            $( $(#[$doc:meta])* $variant:ident = $word:literal, )+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $name { $( $(#[$doc])* $variant, )+ }

        impl $name {
            /// Every value, in the order they are documented.
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Its name.
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
}

/// Declares an enum whose values are written by name. Case is ignored; `-` and `_` are equal.
#[macro_export]
macro_rules! choice {
    (
        $(#[doc = $about:literal])+
        pub enum $name:ident {
            $( $(#[doc = $doc:literal])+ $variant:ident = $word:literal, )+
        }
    ) => {
        $crate::named! {
            $(#[doc = $about])+
            pub enum $name { $( $(#[doc = $doc])+ $variant = $word, )+ }
        }

        impl $name {
            /// The value called `name`; case does not count, `-` and `_` are alike.
            pub fn from_name(name: &str) -> Option<Self> {
                let name = $crate::choice::normalize(name.trim());
                Self::ALL.into_iter().find(|one| one.name() == name)
            }

            /// Every name, in the same order.
            pub fn names() -> impl Iterator<Item = &'static str> {
                Self::ALL.iter().map(|one| one.name())
            }
        }
    };
}

/// A name normalized for comparison: lower case, `_` for `-`.
pub fn normalize(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}
