//! A schedule as a time-space diagram: a line for each rank, grouped by rack; time runs from left to right, in
//! steps; a message is an arrow, a multicast a fan.

use crate::error::Error;
use cool_collective::{Layout, Message, Rank};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Arrows of a picture at most.
const MOST_ARROWS: usize = 20_000;

/// Height of a rank's line, and the gap between racks.
const LINE: f64 = 22.0;
const GAP: f64 = 14.0;
/// Width of a step, and what is left of the first.
const STEP: f64 = 130.0;
const LEFT: f64 = 96.0;
const TOP: f64 = 64.0;

/// Colours of messages within a rack, across racks, and by multicast.
const WITHIN: &str = "#2f6f9f";
const ACROSS: &str = "#c2410c";
const MULTICAST: &str = "#15803d";

/// The picture as SVG text.
pub(super) fn draw(title: &str, layout: &Layout, messages: &[Message]) -> Result<String, Error> {
    let arrows = messages.iter().map(|message| message.to.len()).sum();
    if arrows > MOST_ARROWS {
        return Err(Error::Crowded { arrows, most: MOST_ARROWS });
    }
    let rows = rows(layout);
    let steps = messages.iter().map(|message| message.step).max().unwrap_or(0);
    let bottom = rows.values().fold(TOP, |bottom: f64, y| bottom.max(*y)) + LINE;
    // The title needs its room, too.
    let width = (LEFT + STEP * steps as f64 + 24.0).max(24.0 + 7.2 * title.len() as f64).max(420.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"20\" font-size=\"13\" font-weight=\"bold\">{}</text>\n",
        bottom + 16.0,
        escaped(title),
    );
    legend(&mut svg);
    markers(&mut svg);
    frame(&mut svg, layout, &rows, steps, bottom);
    // Messages of one rank in one step leave and arrive one after the other.
    let mut leaving: BTreeMap<(Rank, usize), usize> = BTreeMap::new();
    let mut arriving: BTreeMap<(Rank, usize), usize> = BTreeMap::new();
    let away =
        |message: &&Message| message.to.iter().any(|to| layout.node_of(*to) != layout.node_of(message.from));
    for message in messages.iter().filter(away) {
        *leaving.entry((message.from, message.step)).or_default() += 1;
        for to in &message.to {
            *arriving.entry((*to, message.step)).or_default() += 1;
        }
    }
    let (mut left, mut come) = (BTreeMap::new(), BTreeMap::new());
    for message in messages.iter().filter(away) {
        let at = LEFT + STEP * (message.step - 1) as f64;
        let start = at + STEP * (0.06 + 0.34 * share(&leaving, &mut left, (message.from, message.step)));
        for to in &message.to {
            let end = at + STEP * (0.60 + 0.34 * share(&arriving, &mut come, (*to, message.step)));
            let (colour, marker) = match () {
                () if message.multicast => (MULTICAST, "m"),
                () if layout.rack_of(*to) != layout.rack_of(message.from) => (ACROSS, "a"),
                () => (WITHIN, "w"),
            };
            arrow(&mut svg, (start, rows[&message.from]), (end, rows[to]), colour, marker, message.bytes);
        }
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// How far within its step the next of a rank's messages is, from 0 to 1.
fn share(
    all: &BTreeMap<(Rank, usize), usize>,
    seen: &mut BTreeMap<(Rank, usize), usize>,
    key: (Rank, usize),
) -> f64 {
    let seen = seen.entry(key).or_insert(0);
    let part = *seen as f64 / all.get(&key).copied().unwrap_or(1).max(1) as f64;
    *seen += 1;
    part
}

/// The height of each rank's line.
fn rows(layout: &Layout) -> BTreeMap<Rank, f64> {
    let mut rows = BTreeMap::new();
    let mut y = TOP + LINE;
    for rack in 0..layout.racks() {
        for node in layout.nodes_of_rack(rack) {
            for rank in layout.ranks_of_node(node) {
                rows.insert(*rank, y);
                y += LINE;
            }
        }
        y += GAP;
    }
    rows
}

fn legend(svg: &mut String) {
    for (i, (colour, text)) in
        [(WITHIN, "within a rack"), (ACROSS, "across racks"), (MULTICAST, "multicast")].iter().enumerate()
    {
        let x = 12.0 + 130.0 * i as f64;
        add(
            svg,
            format_args!(
                "<line x1=\"{x}\" y1=\"38\" x2=\"{}\" y2=\"38\" stroke=\"{colour}\" stroke-width=\"2\"/>\n<text x=\"{}\" y=\"42\">{text}</text>\n",
                x + 22.0,
                x + 28.0
            ),
        );
    }
}

fn markers(svg: &mut String) {
    for (id, colour) in [("w", WITHIN), ("a", ACROSS), ("m", MULTICAST)] {
        add(
            svg,
            format_args!(
                "<marker id=\"{id}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"{colour}\"/></marker>\n"
            ),
        );
    }
}

/// Racks, ranks and steps.
fn frame(svg: &mut String, layout: &Layout, rows: &BTreeMap<Rank, f64>, steps: usize, bottom: f64) {
    let right = LEFT + STEP * steps as f64;
    for rack in 0..layout.racks() {
        let nodes = layout.nodes_of_rack(rack);
        let ranks = || nodes.clone().flat_map(|node| layout.ranks_of_node(node));
        let first = ranks().map(|rank| rows[rank]).fold(f64::INFINITY, f64::min);
        let last = ranks().map(|rank| rows[rank]).fold(0.0, f64::max);
        add(
            svg,
            format_args!(
                "<rect x=\"6\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"5\" fill=\"#f1f5f9\"/>\n<text x=\"12\" y=\"{}\" fill=\"#475569\">rack {rack}</text>\n",
                first - LINE / 2.0,
                right,
                last - first + LINE,
                first + 4.0
            ),
        );
        for rank in ranks() {
            let y = rows[rank];
            let bold = if *rank == layout.rack_leader(rack) { " font-weight=\"bold\"" } else { "" };
            add(
                svg,
                format_args!(
                    "<text x=\"{}\" y=\"{}\" text-anchor=\"end\"{bold}>{}</text>\n<line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\" stroke=\"#94a3b8\"/>\n",
                    LEFT - 8.0,
                    y + 4.0,
                    rank.0
                ),
            );
        }
    }
    for step in 0..=steps {
        let x = LEFT + STEP * step as f64;
        add(
            svg,
            format_args!(
                "<line x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"#cbd5e1\" stroke-dasharray=\"3 3\"/>\n"
            ),
        );
        if step < steps {
            add(
                svg,
                format_args!(
                    "<text x=\"{}\" y=\"{TOP}\" text-anchor=\"middle\" fill=\"#475569\">step {}</text>\n",
                    x + STEP / 2.0,
                    step + 1
                ),
            );
        }
    }
}

fn arrow(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str, marker: &str, bytes: u64) {
    add(
        svg,
        format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"1.2\" stroke-opacity=\"0.8\" marker-end=\"url(#{marker})\"><title>{bytes} bytes</title></line>\n",
            from.0, from.1, to.0, to.1
        ),
    );
}

/// Text only grows here; writing to a string does not fail.
fn add(svg: &mut String, part: std::fmt::Arguments<'_>) {
    let _ = svg.write_fmt(part);
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_collective::{Call, Operation, Place, compile, messages};

    #[test]
    fn every_message_is_an_arrow_and_a_multicast_a_fan() {
        let places: Vec<Place> = (0..6).map(|node| Place { rack: node / 3, node }).collect();
        let layout = Layout::new(&places).unwrap();
        for (plan, arrows) in [("multicast", 5), ("cool-p-p", 1 + 2 + 2), ("flat:binomial", 5)] {
            let call = Call::new(Operation::Bcast, Rank(0), 64, 1);
            let schedule = compile(&call, &layout, &plan.parse().unwrap(), |_| true).unwrap();
            let svg = draw("a < b", &layout, &messages(&schedule, &layout).unwrap()).unwrap();
            assert_eq!(svg.matches("marker-end").count(), arrows, "{plan}");
            assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        }
    }
}
