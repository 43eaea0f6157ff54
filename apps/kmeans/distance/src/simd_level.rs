//! The vector instructions to use: the best that the CPU supports, or those that the user requests.

use std::fmt;
use std::str::FromStr;

/// A set of vector instructions, from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdLevel {
    /// One product at a time: the definition of all other levels.
    Scalar,
    /// `pmaddwd` on 128 bits: every 64-bit x86.
    Sse2,
    /// `vpmaddwd` on 256 bits.
    Avx2,
    /// `vpmaddwd` on 512 bits (AVX-512BW).
    Avx512,
    /// `vpdpbusd` on 512 bits (AVX-512 VNNI).
    Vnni,
    /// `tdpbusd` on tiles of 16 x 64 bytes (AMX).
    Amx,
}

/// The error for a name that is not the name of a level that this CPU supports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given}: not a SIMD level that this CPU supports; use one of {}", names(&SimdLevel::available()))]
pub struct UnknownSimdLevel {
    given: String,
}

impl SimdLevel {
    /// All levels.
    pub const ALL: [Self; 6] = [Self::Scalar, Self::Sse2, Self::Avx2, Self::Avx512, Self::Vnni, Self::Amx];

    /// Returns the levels that this CPU and its operating system support.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|level| level.is_available()).collect()
    }

    /// Returns the fastest level that this CPU supports.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// Returns whether this CPU and its operating system support the level.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar | Self::Sse2 => true,
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Avx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
            Self::Vnni => Self::Avx512.is_available() && is_x86_feature_detected!("avx512vnni"),
            Self::Amx => Self::Vnni.is_available() && crate::amx_permission::is_permitted(),
        }
    }

    /// Returns whether this CPU supports the level.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Self::Scalar
    }

    fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Sse2 => "sse2",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Vnni => "vnni",
            Self::Amx => "amx",
        }
    }
}

fn names(levels: &[SimdLevel]) -> String {
    levels.iter().map(|level| level.name()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SimdLevel {
    type Err = UnknownSimdLevel;

    fn from_str(given: &str) -> Result<Self, UnknownSimdLevel> {
        let found = Self::available().into_iter().find(|level| level.name() == given);
        found.ok_or_else(|| UnknownSimdLevel { given: given.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_levels_are_refused_with_the_available_names() {
        for level in SimdLevel::available() {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        let error = "mmx".parse::<SimdLevel>().expect_err("refused").to_string();
        assert!(error.starts_with("mmx: ") && error.contains("scalar"), "{error}");
    }

    #[test]
    fn the_best_level_is_available() {
        assert!(SimdLevel::best().is_available());
    }
}
