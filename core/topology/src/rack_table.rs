//! The racks of nodes as an operator lists them in a file: lines of a rack and patterns of node
//! names, or Slurm's topology.conf.
//!
//! Patterns are compared with names and never expanded, so a short line with a long range costs
//! nothing.

use cool_types::{NODE_NAME_RULE, check_node_name};

/// The racks of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RackTable {
    racks: Vec<(String, Vec<NamePattern>)>,
}

/// An error in a table of racks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct RackTableError {
    /// Number of the line, from 1.
    pub line: usize,
    /// The problem with its remedy.
    pub problem: String,
}

impl RackTable {
    /// Parses the text of a file. Each line is `RACK PATTERN...`. If the first one contains an
    /// equals sign, the text is a topology.conf: each switch with nodes is a rack, and other
    /// switches do not matter. Text after `#` is a comment.
    ///
    /// # Errors
    /// Returns an error with the line if a line is invalid.
    pub fn parse(text: &str) -> Result<RackTable, RackTableError> {
        let lines = joined_lines(text);
        let is_slurm = lines.first().is_some_and(|(_, line)| line.contains('='));
        let parse = if is_slurm { slurm_line } else { plain_line };
        let mut racks = Vec::new();
        for (line, content) in lines {
            let rack = parse(&content).map_err(|problem| RackTableError { line, problem })?;
            racks.extend(rack);
        }
        Ok(RackTable { racks })
    }

    /// Returns the rack of a node: that of the first line with a pattern that matches its name or
    /// its name up to the first dot, because tables often contain short names.
    pub fn rack(&self, node: &str) -> Option<&str> {
        let short = node.split('.').next().unwrap_or(node);
        let matches = |pattern: &NamePattern| pattern.matches(node) || pattern.matches(short);
        let (rack, _) = self.racks.iter().find(|(_, patterns)| patterns.iter().any(matches))?;
        Some(rack)
    }
}

/// Returns the lines with their numbers, without comments and empty lines. A line that ends with a
/// backslash continues on the next.
fn joined_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        let content = line.strip_suffix('\\').unwrap_or(line);
        match lines.last_mut() {
            Some((_, before)) if continues => *before = format!("{before}{content}"),
            _ => lines.push((number, content.to_owned())),
        }
        continues = line.ends_with('\\');
    }
    lines.retain(|(_, line)| !line.trim().is_empty());
    lines
}

/// Parses `RACK PATTERN...`. Patterns may also be separated by commas.
fn plain_line(line: &str) -> Result<Option<(String, Vec<NamePattern>)>, String> {
    let mut words = line.split_whitespace();
    let rack = rack_name(words.next().unwrap_or_default())?;
    let patterns: Vec<NamePattern> =
        words.map(patterns).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    if patterns.is_empty() {
        return Err(format!("rack {rack} has no nodes; write RACK PATTERN..., for example west node[01-16]"));
    }
    Ok(Some((rack, patterns)))
}

/// Parses `SwitchName=RACK Nodes=PATTERN,...`. Returns `None` for a switch without nodes. Blocks of
/// Slurm's topology/block are racks, too.
fn slurm_line(line: &str) -> Result<Option<(String, Vec<NamePattern>)>, String> {
    let (mut rack, mut nodes) = (None, None);
    for word in line.split_whitespace() {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} is not KEY=VALUE, as in a topology.conf"))?;
        match key.to_ascii_lowercase().as_str() {
            "switchname" | "blockname" => rack = Some(value),
            "nodes" => nodes = Some(value),
            "switches" | "linkspeed" | "blocksizes" => {}
            _ => return Err(format!("{key:?} is no key of a topology.conf; remove it")),
        }
    }
    match (rack, nodes) {
        (Some(rack), Some(nodes)) => Ok(Some((rack_name(rack)?, patterns(nodes)?))),
        (None, Some(_)) => Err("the line has nodes but no switch; add SwitchName=NAME".to_owned()),
        (_, None) => Ok(None),
    }
}

fn rack_name(name: &str) -> Result<String, String> {
    match check_node_name(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(_) => Err(format!("{name:?} is not a valid name of a rack: {NODE_NAME_RULE}")),
    }
}

/// Parses patterns that are separated by commas outside brackets.
fn patterns(text: &str) -> Result<Vec<NamePattern>, String> {
    let mut inside = false;
    let parts = text.split(|c| {
        inside = (inside || c == '[') && c != ']';
        c == ',' && !inside
    });
    parts.map(NamePattern::parse).collect()
}

/// A pattern of node names: text, `*` for any text, and lists of numbers such as `[01-16,20]`, as
/// in Slurm's hostlists.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamePattern(Vec<PatternPiece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternPiece {
    Text(String),
    Any,
    Numbers(Vec<HostNumbers>),
}

/// Numbers from `first` to `last`, with leading zeros up to `width` digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostNumbers {
    first: u64,
    last: u64,
    width: usize,
}

impl NamePattern {
    fn parse(text: &str) -> Result<NamePattern, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let (piece, after) = match c {
                '*' => (PatternPiece::Any, &rest[1..]),
                '[' => {
                    let (list, after) = rest[1..].split_once(']').ok_or_else(|| {
                        format!("{text:?} has no closing bracket; write for example node[01-16,20]")
                    })?;
                    let ranges = list.split(',').map(HostNumbers::parse).collect::<Result<_, _>>();
                    (PatternPiece::Numbers(ranges.map_err(|why| format!("{text:?}: {why}"))?), after)
                }
                _ => {
                    let (literal, after) = rest.split_at(rest.find(['*', '[']).unwrap_or(rest.len()));
                    check_node_name(&format!("x{literal}")).map_err(|_| {
                        format!(
                            "{text:?} can match no node, because {NODE_NAME_RULE}; write for example node[01-16,20]"
                        )
                    })?;
                    (PatternPiece::Text(literal.to_owned()), after)
                }
            };
            pieces.push(piece);
            rest = after;
        }
        match pieces.is_empty() {
            true => Err("a name is empty; remove the comma before or after it".to_owned()),
            false => Ok(NamePattern(pieces)),
        }
    }

    fn matches(&self, name: &str) -> bool {
        // The lengths of the parts of the name that the pieces so far can match.
        let mut ends = vec![0];
        for piece in &self.0 {
            let longer = |start: &usize| *start..=name.len();
            ends = match piece {
                PatternPiece::Any => ends.first().into_iter().flat_map(longer).collect(),
                PatternPiece::Text(text) => {
                    let found =
                        ends.iter().filter(|start| name.as_bytes()[**start..].starts_with(text.as_bytes()));
                    found.map(|start| start + text.len()).collect()
                }
                PatternPiece::Numbers(ranges) => {
                    let pairs = ends.iter().flat_map(|start| longer(start).map(move |end| (*start, end)));
                    let found = pairs.filter(|(start, end)| {
                        name.get(*start..*end)
                            .is_some_and(|part| ranges.iter().any(|range| range.contains(part)))
                    });
                    found.map(|(_, end)| end).collect()
                }
            };
            ends.sort_unstable();
            ends.dedup();
        }
        ends.contains(&name.len())
    }
}

impl HostNumbers {
    fn parse(text: &str) -> Result<HostNumbers, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |digits: &str| {
            let number = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
            number.ok_or_else(|| format!("{text:?} is neither a number nor a range such as 01-16"))
        };
        let range = HostNumbers { first: number(first)?, last: number(last)?, width: first.len() };
        match range.first <= range.last {
            true => Ok(range),
            false => Err(format!("the range {text} is empty; write the smaller number first")),
        }
    }

    fn contains(&self, digits: &str) -> bool {
        let is_padded = digits.len() == self.width || digits.len() > self.width && !digits.starts_with('0');
        is_padded
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && digits.parse().is_ok_and(|number: u64| (self.first..=self.last).contains(&number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn problem(text: &str) -> String {
        RackTable::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_node_is_in_the_rack_of_the_first_line_that_matches() {
        let table = RackTable::parse(
            "# racks of room 1\nwest node[01-16,20] gpu1\n\neast node[17-19],gpu[2-3],login*.east  # and more\nrest *\n",
        );
        let table = table.unwrap();
        for (node, rack) in [
            ("node01", "west"),
            ("node16", "west"),
            ("node20.example.org", "west"),
            ("gpu1", "west"),
            ("node19", "east"),
            ("gpu3", "east"),
            ("login-a.east", "east"),
            ("node21", "rest"),
            ("node1", "rest"),
            ("node001", "rest"),
        ] {
            assert_eq!(table.rack(node), Some(rack), "{node}");
        }
        assert_eq!(RackTable::default().rack("node01"), None);
        assert_eq!(RackTable::parse("").unwrap(), RackTable::default());
    }

    #[test]
    fn switches_with_nodes_in_a_topology_conf_are_racks() {
        let table = RackTable::parse(
            "# topology.conf\nSwitchName=s0 Nodes=node[0-3]\nswitchname=s1 \\\n  NODES=node[4-7],big[08-11]x[1-2] LinkSpeed=900\n\
             SwitchName=core Switches=s[0-1]\n",
        );
        let table = table.unwrap();
        let racks = ["node0", "node7", "big09x2", "big9x2", "node8"].map(|node| table.rack(node));
        assert_eq!(racks, [Some("s0"), Some("s1"), Some("s1"), None, None]);
        let blocks = RackTable::parse("BlockName=b1 Nodes=n[1-2]\nBlockSizes=2\n").unwrap();
        assert_eq!((blocks.rack("n2"), blocks.rack("n3")), (Some("b1"), None));
    }

    #[test]
    fn errors_name_line_and_remedy() {
        for (text, expected) in [
            ("west node1\n\neast", "line 3: rack east has no nodes; write RACK PATTERN"),
            ("# none\nw/1 node1", "line 2: \"w/1\" is not a valid name of a rack"),
            ("west node[1-3", "line 1: \"node[1-3\" has no closing bracket"),
            (
                "west node[3-1]",
                "line 1: \"node[3-1]\": the range 3-1 is empty; write the smaller number first",
            ),
            ("west node[a-c]", "\"a-c\" is neither a number nor a range such as 01-16"),
            ("west node[+1]", "\"+1\" is neither a number"),
            ("west node1,,node2", "line 1: a name is empty; remove the comma"),
            ("west nöde", "can match no node"),
            ("SwitchName=s0 Nodes=n1\nNodes=n2", "line 2: the line has nodes but no switch"),
            ("SwitchName=s0 Nodes=n1\neast n2", "line 2: \"east\" is not KEY=VALUE"),
            ("SwitchName=s0 Node=n1", "\"Node\" is no key of a topology.conf"),
        ] {
            assert!(problem(text).contains(expected), "{}", problem(text));
        }
    }

    #[test]
    fn a_long_range_and_many_stars_cost_nothing() {
        let stars = format!("west node[1-18446744073709551615] {}b", "*a".repeat(30));
        let table = RackTable::parse(&stars).unwrap();
        assert_eq!(table.rack("node18446744073709551615"), Some("west"));
        assert_eq!(table.rack(&"a".repeat(63)), None);
    }

    proptest! {
        #[test]
        fn a_list_contains_the_numbers_that_it_names(
            first in 0u64..200, length in 0u64..50, width in 1usize..5, number in 0u64..300, shown in 1usize..5,
        ) {
            let last = first + length;
            let table = RackTable::parse(&format!("r n[{first:0width$}-{last:0width$}]x")).unwrap();
            let name = format!("n{number:0shown$}x");
            let listed = (first..=last).any(|listed| name == format!("n{listed:0width$}x"));
            prop_assert_eq!(table.rack(&name).is_some(), listed);
        }
    }
}
