//! Drawing of the network as SVG: switches in rows by their distance from the racks, nodes below
//! their switch.
//!
//! Every line has the attribute `data-link` with the name of the link ("s1:2-s3:1", "s3:4-h2"), so
//! that a page can color it by its load.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

/// Width of a node and of a switch, and height of a row.
const NODE: f64 = 46.0;
const SWITCH: f64 = 84.0;
const ROW: f64 = 96.0;
/// Space between racks and at the margins.
const GAP: f64 = 22.0;
/// Maximum number of nodes that are drawn one by one. Further nodes are only counted at their
/// switch.
const MAX_NODES: usize = 400;

const STYLE: &str = "text{font:11px sans-serif;text-anchor:middle;fill:#1b2430}line{stroke:#8d99a8;stroke-width:2}\
    rect{fill:#dce6f2;stroke:#48607a;rx:5}.tor rect{fill:#cfe8d5;stroke:#3f7550}circle{fill:#f6edd2;stroke:#937a2f}";

/// A switch in a drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureSwitch {
    /// Unique name.
    pub name: String,
    /// Number of its rack, if it has nodes.
    pub rack: Option<u32>,
}

/// A network to draw. Links and nodes refer to switches by their index in `switches`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// All switches.
    pub switches: Vec<PictureSwitch>,
    /// Links between switches: two ends, each with a switch and a port.
    pub links: Vec<[(usize, u32); 2]>,
    /// Nodes: name, switch and port.
    pub nodes: Vec<(String, usize, u32)>,
}

/// Positions of everything that is drawn.
struct DrawingPlan {
    switches: Vec<(f64, f64)>,
    nodes: Vec<(f64, f64)>,
    size: (f64, f64),
}

impl Picture {
    /// Returns the drawing as an SVG document. Links and nodes of unknown switches are left out.
    pub fn svg(&self) -> String {
        let plan = self.plan();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&plan, &mut text);
        text
    }

    fn write(&self, plan: &DrawingPlan, text: &mut String) -> std::fmt::Result {
        let (width, height) = plan.size;
        writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\">\
             <style>{STYLE}</style>"
        )?;
        let line = |text: &mut String, link: String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)| {
            let link = escaped(&link);
            writeln!(
                text,
                "<line data-link=\"{link}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\">\
                 <title>{link}</title></line>"
            )
        };
        for [(a, a_port), (b, b_port)] in &self.links {
            if let (Some(from), Some(to)) = (self.switches.get(*a), self.switches.get(*b)) {
                let link = format!("{}:{a_port}-{}:{b_port}", from.name, to.name);
                line(text, link, plan.switches[*a], plan.switches[*b])?;
            }
        }
        for ((name, switch, port), at) in self.drawn().zip(&plan.nodes) {
            let link = format!("{}:{port}-{name}", self.switches[*switch].name);
            line(text, link, plan.switches[*switch], *at)?;
        }
        let counted = self.drawn().next().is_none();
        let mut nodes = vec![0; self.switches.len()];
        for (_, switch, _) in &self.nodes {
            if let Some(count) = nodes.get_mut(*switch) {
                *count += 1;
            }
        }
        for ((switch, (x, y)), nodes) in self.switches.iter().zip(&plan.switches).zip(nodes) {
            let class = if switch.rack.is_some() { " class=\"tor\"" } else { "" };
            let below = match switch.rack {
                Some(rack) if counted && nodes > 0 => format!("rack {rack}: {nodes} nodes"),
                Some(rack) => format!("rack {rack}"),
                None => String::new(),
            };
            writeln!(
                text,
                "<g{class}><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{SWITCH}\" height=\"34\"/><text x=\"{x:.1}\" \
                 y=\"{:.1}\">{}</text><text x=\"{x:.1}\" y=\"{:.1}\">{below}</text></g>",
                x - SWITCH / 2.0,
                y - 17.0,
                y - 2.0,
                escaped(&switch.name),
                y + 12.0
            )?;
        }
        for ((name, ..), (x, y)) in self.drawn().zip(&plan.nodes) {
            writeln!(
                text,
                "<g><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"16\"/><text x=\"{x:.1}\" y=\"{:.1}\">{}</text></g>",
                y + 4.0,
                escaped(name)
            )?;
        }
        text.write_str("</svg>\n")
    }

    /// Returns the nodes that are drawn one by one.
    fn drawn(&self) -> impl Iterator<Item = &(String, usize, u32)> {
        let few = self.nodes.len() <= MAX_NODES;
        self.nodes.iter().filter(move |node| few && node.1 < self.switches.len())
    }

    fn plan(&self) -> DrawingPlan {
        let heights = self.heights();
        let top = heights.iter().copied().max().unwrap_or(0);
        let mut rows: Vec<Vec<usize>> = vec![Vec::new(); top + 1];
        for (switch, height) in heights.iter().enumerate() {
            rows[*height].push(switch);
        }
        let widest = rows.iter().skip(1).map(|row| row.len() as f64 * (SWITCH + GAP)).fold(0.0, f64::max);
        let y = |height: usize| GAP + 17.0 + (top - height) as f64 * ROW;

        // The lowest row: each switch is as wide as its nodes.
        let mut below: BTreeMap<usize, Vec<(u32, usize)>> = BTreeMap::new();
        for (at, (_, switch, port)) in self.drawn().enumerate() {
            below.entry(*switch).or_default().push((*port, at));
        }
        rows[0].sort_by_key(|switch| (self.switches[*switch].rack.unwrap_or(u32::MAX), *switch));
        let width =
            |switch: &usize| below.get(switch).map_or(0.0, |nodes| nodes.len() as f64 * NODE).max(SWITCH);
        let needed = rows[0].iter().map(|switch| width(switch) + GAP).sum::<f64>();
        let mut switches = vec![(0.0, 0.0); self.switches.len()];
        let mut nodes = vec![(0.0, 0.0); self.drawn().count()];
        let mut x = GAP + (widest - needed).max(0.0) / 2.0;
        for switch in &rows[0] {
            switches[*switch] = (x + width(switch) / 2.0, y(0));
            let mut hanging = below.get(switch).cloned().unwrap_or_default();
            hanging.sort_unstable();
            let left = x + (width(switch) - hanging.len() as f64 * NODE) / 2.0;
            for (i, (_, node)) in hanging.into_iter().enumerate() {
                nodes[node] = (left + (i as f64 + 0.5) * NODE, y(0) + ROW * 0.75);
            }
            x += width(switch) + GAP;
        }
        let whole = widest.max(needed);
        for (height, row) in rows.iter().enumerate().skip(1) {
            for (i, switch) in row.iter().enumerate() {
                switches[*switch] = (GAP + whole * (i as f64 + 0.5) / row.len() as f64, y(height));
            }
        }
        DrawingPlan { switches, nodes, size: (whole + 2.0 * GAP, y(0) + ROW * 0.75 + 17.0 + GAP) }
    }

    /// Returns the distance of each switch from the nearest rack. Switches without a path to a rack
    /// are drawn next to the racks.
    fn heights(&self) -> Vec<usize> {
        let racks = || (0..self.switches.len()).filter(|at| self.switches[*at].rack.is_some());
        let mut heights: Vec<Option<usize>> = vec![None; self.switches.len()];
        racks().for_each(|at| heights[at] = Some(0));
        let mut peers: Vec<Vec<usize>> = vec![Vec::new(); self.switches.len()];
        for [(a, _), (b, _)] in self.links.iter().filter(|link| link.iter().all(|end| end.0 < heights.len()))
        {
            peers[*a].push(*b);
            peers[*b].push(*a);
        }
        let mut queue: VecDeque<(usize, usize)> = racks().map(|at| (at, 0)).collect();
        while let Some((at, height)) = queue.pop_front() {
            for peer in &peers[at] {
                if heights[*peer].is_none() {
                    heights[*peer] = Some(height + 1);
                    queue.push_back((*peer, height + 1));
                }
            }
        }
        heights.into_iter().map(|height| height.unwrap_or(0)).collect()
    }
}

/// Escapes text for an SVG document.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Not permitted in XML 1.0.
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two leaves of two nodes below two spines.
    fn leafspine() -> Picture {
        let switch = |name: &str, rack| PictureSwitch { name: name.into(), rack };
        Picture {
            switches: vec![
                switch("s1", None),
                switch("s2", None),
                switch("s3", Some(0)),
                switch("s4", Some(1)),
            ],
            links: vec![[(0, 1), (2, 3)], [(0, 2), (3, 3)], [(1, 1), (2, 4)], [(1, 2), (3, 4)]],
            nodes: vec![("h1".into(), 2, 1), ("h2".into(), 2, 2), ("h3".into(), 3, 1), ("h4".into(), 3, 2)],
        }
    }

    #[test]
    fn every_link_is_a_line_that_names_it() {
        let svg = leafspine().svg();
        for link in ["s1:1-s3:3", "s2:2-s4:4", "s3:1-h1", "s4:2-h4"] {
            assert_eq!(svg.matches(&format!("<line data-link=\"{link}\"")).count(), 1, "{link} in {svg}");
        }
        assert_eq!(svg.matches("<line").count(), 8);
        assert_eq!((svg.matches("<rect").count(), svg.matches("<circle").count()), (4, 4));
    }

    #[test]
    fn spines_are_above_leaves_and_nothing_covers_anything() {
        let picture = leafspine();
        let plan = picture.plan();
        assert!(plan.switches[0].1 < plan.switches[2].1 && plan.switches[2].1 < plan.nodes[0].1);
        assert_eq!(plan.switches[0].1, plan.switches[1].1);
        let apart = |one: (f64, f64), other: (f64, f64)| (one.0 - other.0).abs() >= 40.0;
        assert!(apart(plan.switches[0], plan.switches[1]) && apart(plan.switches[2], plan.switches[3]));
        assert!(plan.nodes.windows(2).all(|pair| apart(pair[0], pair[1])));
        for (x, y) in plan.switches.iter().chain(&plan.nodes) {
            assert!((0.0..plan.size.0).contains(x) && (0.0..plan.size.1).contains(y));
        }
    }

    #[test]
    fn names_cannot_break_the_document() {
        let mut picture = leafspine();
        picture.switches[0].name = "<script>\"&'\u{1}".into();
        let svg = picture.svg();
        assert!(!svg.contains("<script>") && svg.contains("&lt;script&gt;&quot;&amp;&#39;\u{fffd}"), "{svg}");
    }

    #[test]
    fn many_nodes_are_counted_and_unlocated_ones_are_left_out() {
        let mut picture = leafspine();
        picture.nodes.push(("h5".into(), 9, 1));
        picture.links.push([(0, 5), (9, 1)]);
        assert_eq!(picture.svg().matches("<line").count(), 8);
        picture.nodes = (0..1000).map(|i| (format!("h{i}"), 2 + i % 2, i as u32)).collect();
        let svg = picture.svg();
        assert!(svg.contains("rack 0: 500 nodes") && !svg.contains("<circle"), "{svg}");
        assert!(Picture::default().svg().ends_with("</svg>\n"));
    }
}
