//! Networks in text form, for example `tree:4x4`.

use super::{FabricModel, FabricModelError, MAX_HOSTS, MAX_RANKS, Ranks, Wires};
use cool_machine::Duration;
use core::fmt;
use core::str::FromStr;

/// Maximum number of links between switches.
const MAX_SWITCH_LINKS: u64 = 1 << 22;

impl fmt::Display for FabricModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for FabricModel {
    type Err = FabricModelError;

    /// Returns the network with the links of the emulated testbed, all at 20 Mbit/s.
    fn from_str(text: &str) -> Result<FabricModel, FabricModelError> {
        let wrong = || FabricModelError::Text(text.to_owned());
        let large = || FabricModelError::Size(text.to_owned());
        let number = |word: &str| match word.parse::<u64>() {
            Ok(0) | Err(_) => Err(wrong()),
            Ok(number) => Ok(number),
        };
        let (kind, words) = text.split_once(':').ok_or_else(wrong)?;
        let words: Vec<&str> = words.split('x').collect();
        let first: Vec<u64> = words[0].split('+').map(number).collect::<Result<_, _>>()?;
        let rest: Vec<u64> = words[1..].iter().map(|word| number(word)).collect::<Result<_, _>>()?;
        let even = |racks: u64, hosts: u64| {
            let fits = racks.checked_mul(hosts).is_some_and(|all| all <= MAX_HOSTS);
            if fits { Ok(vec![hosts; racks as usize]) } else { Err(large()) }
        };
        let (wires, racks, ranks) = match (kind, first.as_slice(), rest.as_slice()) {
            ("tree", [racks], [hosts]) => (Wires::Tree, even(*racks, *hosts)?, 1),
            ("tree", [racks], [hosts, ranks]) => (Wires::Tree, even(*racks, *hosts)?, *ranks),
            ("tree", racks @ [_, _, ..], []) => (Wires::Tree, racks.to_vec(), 1),
            ("tree", racks @ [_, _, ..], [ranks]) => (Wires::Tree, racks.to_vec(), *ranks),
            ("leafspine", [racks], [spines, hosts, ranks @ ..]) if ranks.len() < 2 => {
                if racks.checked_mul(*spines).is_none_or(|links| links > MAX_SWITCH_LINKS) {
                    return Err(large());
                }
                let wires = Wires::LeafSpine { spines: *spines as usize };
                (wires, even(*racks, *hosts)?, ranks.first().copied().unwrap_or(1))
            }
            ("fattree", [ports], ranks) if ports.is_multiple_of(2) && ranks.len() < 2 => {
                let half = ports / 2;
                let racks = ports.checked_mul(half).ok_or_else(large)?;
                let wires = Wires::FatTree { half: half as usize };
                (wires, even(racks, half)?, ranks.first().copied().unwrap_or(1))
            }
            _ => return Err(wrong()),
        };
        let hosts = racks.iter().try_fold(0u64, |sum, rack| sum.checked_add(*rack)).unwrap_or(u64::MAX);
        if hosts > MAX_HOSTS || hosts.checked_mul(ranks).is_none_or(|all| all > MAX_RANKS) {
            return Err(large());
        }
        let mut starts = vec![0];
        starts.extend(racks.iter().scan(0, |at, rack| {
            *at += *rack as usize;
            Some(*at)
        }));
        Ok(FabricModel {
            wires,
            name: text.to_owned(),
            starts,
            ranks: Ranks::All(ranks as usize),
            host: 2_500_000,
            uplink: 2_500_000,
            delay: Duration::from_micros(50),
            uplink_delay: Duration::from_micros(50),
            burst: 16_000,
            spent: 0,
        })
    }
}
