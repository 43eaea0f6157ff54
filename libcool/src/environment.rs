//! A rank's environment (docs/architecture.md): where its agent is, which rank it is, and which plans the user
//! forces.

use crate::error::Error;
use crate::operation::Operation;
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

/// The plans that `COOL_PLAN` forces: `OPERATION=PLAN`, with commas between. Whether a plan fits is the agent's
/// to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plans {
    text: String,
    plans: Vec<(Operation, String)>,
}

impl Plans {
    /// Those of this process.
    pub(crate) fn from_environment() -> Result<Plans, Error> {
        let text = std::env::var_os("COOL_PLAN").unwrap_or_default();
        Plans::parse(&text.to_string_lossy())
    }

    fn parse(text: &str) -> Result<Plans, Error> {
        let mut plans = Plans { text: text.to_owned(), plans: Vec::new() };
        // A plan may have commas itself: what has no = belongs to the plan before.
        for part in text.split(',').filter(|_| !text.is_empty()) {
            match (part.split_once('='), plans.plans.last_mut()) {
                (Some((operation, plan)), _) if !plan.is_empty() => {
                    let operation: Operation =
                        operation.trim().parse().map_err(|e| plans.wrong(format!("{e}")))?;
                    if plans.plans.iter().any(|(known, _)| *known == operation) {
                        return Err(plans.wrong(format!("{operation} is there twice")));
                    }
                    plans.plans.push((operation, plan.to_owned()));
                }
                (None, Some((_, plan))) => {
                    plan.push(',');
                    plan.push_str(part);
                }
                _ => return Err(plans.wrong(format!("{part:?} is not an operation, = and a plan"))),
            }
        }
        Ok(plans)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Operation, String)> {
        self.plans.iter()
    }

    /// The error that the variable is wrong.
    pub(crate) fn wrong(&self, reason: String) -> Error {
        Error::Plan { value: self.text.clone(), reason }
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

    #[test]
    fn plans_are_given_by_operation_and_may_have_commas() {
        let plans = Plans::parse("allreduce=rack:binomial,center:ring,bcast=flat:binomial/4096").unwrap();
        let all = [
            (Operation::Allreduce, "rack:binomial,center:ring".to_owned()),
            (Operation::Bcast, "flat:binomial/4096".to_owned()),
        ];
        assert!(plans.iter().eq(&all), "{plans:?}");
        assert_eq!(Plans::parse("").unwrap(), Plans::default());
    }

    #[test]
    fn plans_that_make_no_sense_are_quoted() {
        for (text, reason) in [
            ("cool-p-p", "\"cool-p-p\" is not an operation, = and a plan"),
            ("bcast=", "\"bcast=\" is not"),
            ("bcast=multicast,bcast=cool-p-p", "bcast is there twice"),
            ("gatherv=cool-p-p", "no operation \"gatherv\""),
        ] {
            let e = Plans::parse(text).unwrap_err().to_string();
            assert!(e.contains(&format!("COOL_PLAN is {text:?}")) && e.contains(reason), "{e}");
        }
    }
}
