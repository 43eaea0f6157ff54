//! Macros that declare the standard's types. Numbers and flags have named values, but unknown
//! values are kept and printed too. Structures are read, written and printed by one declaration.

/// Declares a number with named values.
macro_rules! number {
    ($(#[$meta:meta])* pub struct $name:ident($int:ty) as $form:literal {
        $($(#[$value_meta:meta])* $value:ident = $number:literal $text:literal,)*
    }) => {
        $(#[$meta])*
        ///
        /// Every number is allowed. Constants exist for those that the standard names.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $(
                #[doc = concat!("The standard's `", $text, "`.")]
                $(#[$value_meta])*
                pub const $value: Self = Self($number);
            )*

            /// Returns the standard's name of this number, if it has one.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, $form, self.0),
                }
            }
        }

        $crate::macros::newtype!($name($int));
    };
}

/// Declares a set of named bits.
macro_rules! flags {
    ($(#[$meta:meta])* pub struct $name:ident($int:ty) {
        $($flag:ident = $bit:literal $text:literal,)*
    }) => {
        $(#[$meta])*
        ///
        /// All bits are allowed. Constants exist for those that the standard names.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            /// No bit is set.
            pub const NONE: Self = Self(0);
            $(
                #[doc = concat!("The standard's `", $text, "`.")]
                pub const $flag: Self = Self($bit);
            )*

            /// Returns whether all bits of `other` are set.
            #[must_use]
            pub fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut unnamed = self.0;
                let mut separator = "";
                $(
                    if self.contains(Self::$flag) {
                        write!(f, "{separator}{}", $text)?;
                        separator = "|";
                        unnamed &= !$bit;
                    }
                )*
                match (unnamed, separator) {
                    (0, "") => f.write_str("none"),
                    (0, _) => Ok(()),
                    (_, _) => write!(f, "{separator}{unnamed:#x}"),
                }
            }
        }

        $crate::macros::newtype!($name($int));
    };
}

/// Declares the common parts of numbers and sets of bits.
macro_rules! newtype {
    ($name:ident($int:ty)) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }

        impl $crate::codec::WireFormat for $name {
            fn read(r: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::Error> {
                r.get().map(Self)
            }
            fn write(&self, w: &mut $crate::codec::Writer) {
                w.put(&self.0);
            }
            fn display(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{self}")
            }
        }

        #[cfg(test)]
        impl $crate::sample::Sample for $name {
            fn sample(source: &mut $crate::sample::SampleSource<'_>) -> Self {
                Self(source.draw())
            }
        }
    };
}

/// Declares a structure of the standard: its fields in the order of the wire, each with its
/// padding.
///
/// `sized(n)` must mark a structure that begins with its own length and `n` bytes of padding.
macro_rules! layout {
    ($(#[$meta:meta])* pub struct $name:ident = $what:literal { $($fields:tt)* }) => {
        $crate::macros::layout!(@declare [$(#[$meta])*] $name { $($fields)* });

        impl $crate::codec::WireFormat for $name {
            fn read(r: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::Error> {
                r.named($what, Self::read_fields)
            }
            fn write(&self, w: &mut $crate::codec::Writer) {
                self.write_fields(w);
            }
            fn display(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{{{self}}}")
            }
        }
    };
    ($(#[$meta:meta])* pub struct $name:ident = $what:literal sized($lead:literal) { $($fields:tt)* }) => {
        $crate::macros::layout!(@declare [$(#[$meta])*] $name { $($fields)* });

        impl $crate::codec::WireFormat for $name {
            fn read(r: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::Error> {
                let start = r.offset();
                r.measured($what, start, |r| {
                    r.pad($lead)?;
                    Self::read_fields(r)
                })
            }
            fn write(&self, w: &mut $crate::codec::Writer) {
                let start = w.position();
                w.measured($what, start, |w| {
                    w.pad($lead);
                    self.write_fields(w);
                });
            }
            fn display(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{{{self}}}")
            }
        }
    };
    (@declare [$($meta:tt)*] $name:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty $(=> pad $pad:literal)?,)*
    }) => {
        $($meta)*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $name {
            fn read_fields(r: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::Error> {
                $(
                    let $field = r.get()?;
                    $(r.pad($pad)?;)?
                )*
                Ok(Self { $($field,)* })
            }

            fn write_fields(&self, w: &mut $crate::codec::Writer) {
                $(
                    w.put(&self.$field);
                    $(w.pad($pad);)?
                )*
            }
        }

        impl $crate::codec::ListItem for $name {}

        #[cfg(test)]
        impl $crate::sample::Sample for $name {
            fn sample(source: &mut $crate::sample::SampleSource<'_>) -> Self {
                Self { $($field: source.draw(),)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut separator = "";
                $(
                    write!(f, "{separator}{}=", stringify!($field))?;
                    $crate::codec::WireFormat::display(&self.$field, f)?;
                    separator = " ";
                )*
                // The last separator is not used, because no field follows it.
                let _ = separator;
                Ok(())
            }
        }
    };
}

/// Declares an enumeration of contents that a type number selects, one variant per number. Contents
/// with unknown numbers are kept as bytes.
macro_rules! choice {
    ($(#[$meta:meta])* pub enum $name:ident of $kind:ident {
        $($(#[$variant_meta:meta])* $number:ident => $variant:ident $(($type:ty))?,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_meta])* $variant $(($type))?,)*
            /// Content that OpenFlow 1.3 does not define.
            Unknown {
                /// Type number of the content.
                kind: $kind,
                /// Bytes of the content.
                data: Vec<u8>,
            },
        }

        impl $name {
            /// Returns the type number of the content.
            #[must_use]
            pub fn kind(&self) -> $kind {
                $crate::codec::TaggedUnion::kind(self)
            }
        }

        impl $crate::codec::TaggedUnion for $name {
            type Kind = $kind;

            fn kind(&self) -> $kind {
                match self {
                    $(Self::$variant { .. } => $kind::$number,)*
                    Self::Unknown { kind, .. } => *kind,
                }
            }

            fn read_as(kind: $kind, r: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::Error> {
                match kind {
                    $($kind::$number => Ok(Self::$variant $((r.get::<$type>()?))?),)*
                    _ => Ok(Self::Unknown { kind, data: r.get()? }),
                }
            }

            fn write_content(&self, w: &mut $crate::codec::Writer) {
                match self {
                    $(Self::$variant $(($crate::macros::choice!(@second $type, content)))? => {
                        $($crate::macros::choice!(@second $type, w.put(content));)?
                    })*
                    Self::Unknown { data, .. } => w.put(data),
                }
            }

            fn display_content(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant $(($crate::macros::choice!(@second $type, content)))? => {
                        $(
                            f.write_str(" ")?;
                            $crate::macros::choice!(@second $type, $crate::codec::WireFormat::display(content, f)?);
                        )?
                        Ok(())
                    })*
                    Self::Unknown { data, .. } => {
                        f.write_str(" ")?;
                        $crate::codec::WireFormat::display(data, f)
                    }
                }
            }
        }

        #[cfg(test)]
        impl $crate::sample::Sample for $name {
            fn sample(source: &mut $crate::sample::SampleSource<'_>) -> Self {
                let mut kinds = vec![$($kind::$number),*];
                kinds.push(source.draw_until(|kind: &$kind| kind.name().is_none()));
                match kinds[source.below(kinds.len())] {
                    $($kind::$number => {
                        Self::$variant $(($crate::macros::choice!(@second $type, source.draw())))?
                    })*
                    kind => Self::Unknown { kind, data: source.draw() },
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}", self.kind())?;
                $crate::codec::TaggedUnion::display_content(self, f)
            }
        }
    };
    // Expands to the tokens after the type. The type itself is not used: it only makes the tokens
    // repeat once for each type.
    (@second $type:ty, $($second:tt)*) => { $($second)* };
}

pub(crate) use {choice, flags, layout, newtype, number};
