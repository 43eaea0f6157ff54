//! Enumerations with named values: a list of all values, printing, and parsing with one error
//! type.

/// No value of the enumeration has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} {name:?}; there are: {}", known.join(", "))]
pub struct UnknownName {
    /// The enumeration, for example "operation".
    pub kind: &'static str,
    /// The name that was to be parsed.
    pub name: String,
    /// The valid names.
    pub known: &'static [&'static str],
}

/// Implements `ALL`, `NAMES`, `name`, `Display` and `FromStr` for a plain enumeration, in the order
/// given.
macro_rules! named {
    ($type:ident, $kind:literal, [$($value:ident => $name:literal),* $(,)?]) => {
        impl $type {
            /// All values. The constants of the C interface are positions in this list, so values
            /// must only be appended.
            pub const ALL: [$type; [$($name),*].len()] = [$($type::$value),*];

            /// The names of all values, in the order of `ALL`.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Returns the name, from which the value can be parsed.
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
