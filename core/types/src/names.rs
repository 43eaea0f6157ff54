//! Enumerations whose values have names: a list of all, printing, and parsing with one error.

/// There is nothing of that kind and name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} {name:?}; there are: {}", known.join(", "))]
pub struct UnknownName {
    /// What was looked for, as "operation".
    pub kind: &'static str,
    /// By what name.
    pub name: String,
    /// The names that there are.
    pub known: &'static [&'static str],
}

/// Gives a plain enumeration `ALL`, `NAMES`, `name`, `Display`, and `FromStr`. The order is that of `ALL`.
macro_rules! named {
    ($type:ident, $kind:literal, [$($value:ident => $name:literal),* $(,)?]) => {
        impl $type {
            /// All of them; C's constants are the places in this list.
            pub const ALL: [$type; [$($name),*].len()] = [$($type::$value),*];

            /// The names of all of them.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Its name, from which it parses.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$value => $name,)*
                }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }

        impl core::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(name: &str) -> Result<$type, $crate::UnknownName> {
                let named = $type::ALL.into_iter().find(|value| value.name() == name);
                named.ok_or_else(|| $crate::UnknownName { kind: $kind, name: name.to_owned(), known: $type::NAMES })
            }
        }
    };
}

pub(crate) use named;
