//! A rank's environment (docs/architecture.md): where its agent is, and which rank it is.

use crate::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

/// What `cool run` tells a rank.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Environment {
    pub(crate) socket: PathBuf,
    pub(crate) group: u64,
    pub(crate) rank: u32,
    pub(crate) size: usize,
}

impl Environment {
    /// Reads the variables, by `lookup`.
    pub(crate) fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Environment, Error> {
        Ok(Environment {
            socket: lookup("COOL_SOCKET").ok_or(Error::NotLaunched)?.into(),
            group: number("COOL_GROUP", &lookup)?,
            rank: number("COOL_RANK", &lookup)?,
            size: number("COOL_SIZE", &lookup)?,
        })
    }
}

fn number<N: FromStr>(variable: &'static str, lookup: impl Fn(&str) -> Option<OsString>) -> Result<N, Error> {
    let value = lookup(variable);
    let parsed = value.as_ref().and_then(|v| v.to_str()).and_then(|v| v.parse().ok());
    parsed.ok_or_else(|| Error::Environment {
        variable,
        value: value.map_or("not set".into(), |v| v.to_string_lossy().into_owned()),
        expected: "a number".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, String> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        Environment::read(find).map_err(|e| e.to_string())
    }

    const ALL: [(&str, &str); 4] =
        [("COOL_SOCKET", "/run/cool/h1.sock"), ("COOL_GROUP", "9"), ("COOL_RANK", "3"), ("COOL_SIZE", "4")];

    #[test]
    fn a_process_that_is_no_rank_is_told_how_to_start_one() {
        let e = read(&[]).unwrap_err();
        assert!(e.contains("cool run -n N -- PROGRAM") && e.contains("`embedded`"), "{e}");
    }

    #[test]
    fn a_variable_that_is_missing_or_no_number_is_named() {
        assert_eq!(read(&ALL).unwrap().rank, 3);
        assert!(read(&ALL[..2]).unwrap_err().contains("COOL_RANK is not set"));
        let e = read(&[ALL[0], ALL[1], ("COOL_RANK", "-1")]).unwrap_err();
        assert!(e.contains("COOL_RANK is -1, but should be a number"), "{e}");
    }
}
