//! A schedule as a time-space diagram: a line for each rank, grouped by rack; time, as simulated, runs from left to
//! right; a message is an arrow from its first byte to its last, a multicast a fan.

use crate::error::Error;
use crate::units;
use cool_collective::{Layout, Rank};
use cool_sim::schedule::Passage;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Arrows of a picture at most.
const MOST_ARROWS: usize = 20_000;

/// Height of a rank's line, and the gap between racks.
const LINE: f64 = 24.0;
const GAP: f64 = 16.0;
/// Where time begins, how wide it is, and where the first rack is.
const LEFT: f64 = 108.0;
const WIDTH: f64 = 860.0;
const TOP: f64 = 78.0;
/// Parts of the axis, about.
const TICKS: f64 = 8.0;

/// How messages look: name, colour, width.
const NODE: Look = Look { id: "n", text: "within a node", colour: "#94a3b8", width: 1.0 };
const RACK: Look = Look { id: "w", text: "within a rack", colour: "#2563eb", width: 1.3 };
const ACROSS: Look = Look { id: "a", text: "across racks", colour: "#ea580c", width: 1.5 };
const MULTICAST: Look = Look { id: "m", text: "multicast", colour: "#16a34a", width: 1.3 };

#[derive(Clone, Copy)]
struct Look {
    id: &'static str,
    text: &'static str,
    colour: &'static str,
    width: f64,
}

/// The picture as SVG text, of what is done by `end` seconds.
pub(super) fn draw(title: &str, layout: &Layout, passages: &[Passage], end: f64) -> Result<String, Error> {
    if passages.len() > MOST_ARROWS {
        return Err(Error::Crowded { arrows: passages.len(), most: MOST_ARROWS });
    }
    let rows = rows(layout);
    let bottom = rows.values().fold(TOP, |bottom: f64, y| bottom.max(*y)) + LINE / 2.0;
    // The title needs its room, too.
    let width = (LEFT + WIDTH + 28.0).max(32.0 + 9.5 * title.len() as f64);
    let height = bottom + 44.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#334155\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"17\" font-weight=\"bold\" fill=\"#0f172a\">{}</text>\n",
        escaped(title),
    );
    let looks: Vec<Look> = passages.iter().map(|passage| look(layout, passage)).collect();
    legend(&mut svg, &looks);
    racks(&mut svg, layout, &rows);
    axis(&mut svg, end, bottom);
    // The longest way first, so that short ones stay in sight.
    let mut arrows: Vec<(&Passage, Look)> = passages.iter().zip(looks).collect();
    arrows.sort_by_key(|(passage, _)| std::cmp::Reverse(passage.arrived - passage.begun));
    let opacity = (60.0 / (passages.len() as f64).sqrt()).clamp(0.25, 0.85);
    add(&mut svg, format_args!("<g stroke-opacity=\"{opacity:.2}\" fill-opacity=\"{opacity:.2}\">\n"));
    for (passage, look) in arrows {
        arrow(&mut svg, passage, look, &rows, end);
    }
    svg.push_str("</g>\n</svg>\n");
    Ok(svg)
}

fn look(layout: &Layout, passage: &Passage) -> Look {
    let (from, to) = (passage.from, passage.to);
    match () {
        () if passage.multicast => MULTICAST,
        () if layout.node_of(from) == layout.node_of(to) => NODE,
        () if layout.rack_of(from) == layout.rack_of(to) => RACK,
        () => ACROSS,
    }
}

/// The height of each rank's line.
fn rows(layout: &Layout) -> BTreeMap<Rank, f64> {
    let mut rows = BTreeMap::new();
    let mut y = TOP + LINE / 2.0;
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

/// What the colours mean, of those that are there; and the heads of arrows.
fn legend(svg: &mut String, looks: &[Look]) {
    let mut x = 16.0;
    for Look { id, text, colour, .. } in [NODE, RACK, ACROSS, MULTICAST] {
        if looks.iter().any(|look| look.id == id) {
            add(
                svg,
                format_args!(
                    "<marker id=\"{id}\" viewBox=\"0 0 10 8\" refX=\"9\" refY=\"4\" markerWidth=\"8\" markerHeight=\"6\" \
                     markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 0L10 4L0 8z\" fill=\"{colour}\"/></marker>\n\
                     <line x1=\"{x}\" y1=\"48\" x2=\"{}\" y2=\"48\" stroke=\"{colour}\" stroke-width=\"2.5\"/>\n\
                     <text x=\"{}\" y=\"52\">{text}</text>\n",
                    x + 24.0,
                    x + 31.0
                ),
            );
            x += 140.0;
        }
    }
}

/// A box for each rack with a line for each rank; leaders' are bold.
fn racks(svg: &mut String, layout: &Layout, rows: &BTreeMap<Rank, f64>) {
    let right = LEFT + WIDTH;
    for rack in 0..layout.racks() {
        let nodes = layout.nodes_of_rack(rack);
        let ranks = || nodes.clone().flat_map(|node| layout.ranks_of_node(node));
        let first = ranks().map(|rank| rows[rank]).fold(f64::INFINITY, f64::min);
        let last = ranks().map(|rank| rows[rank]).fold(0.0, f64::max);
        add(
            svg,
            format_args!(
                "<rect x=\"8\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"#f1f5f9\"/>\n\
                 <text x=\"18\" y=\"{}\" font-weight=\"bold\">rack {rack}</text>\n",
                first - LINE / 2.0,
                right + 4.0,
                last - first + LINE,
                first + 4.0
            ),
        );
        for rank in ranks() {
            let y = rows[rank];
            let leads = *rank == layout.rack_leader(rack);
            add(
                svg,
                format_args!(
                    "<text x=\"{}\" y=\"{}\" text-anchor=\"end\"{}>{}</text>\n\
                     <line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\" stroke=\"#cbd5e1\"/>\n",
                    LEFT - 9.0,
                    y + 4.0,
                    if leads { " font-weight=\"bold\"" } else { "" },
                    rank.0
                ),
            );
        }
    }
}

/// Time, in round steps.
fn axis(svg: &mut String, end: f64, bottom: f64) {
    let rough = end / TICKS;
    let ten = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * ten).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let count = (end / step) as usize;
    let (scale, unit) = match end {
        end if end < 1e-3 => (1e6, "us"),
        end if end < 1.0 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    for i in 0..=count {
        let (time, x) = (step * i as f64, LEFT + WIDTH * step * i as f64 / end);
        let number = (time * scale * 1e6).round() / 1e6;
        add(
            svg,
            format_args!(
                "<line x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{}\" stroke=\"#94a3b8\" stroke-dasharray=\"2 4\"/>\n\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{number} {unit}</text>\n",
                TOP - 4.0,
                bottom + 6.0,
                bottom + 24.0
            ),
        );
    }
}

fn arrow(svg: &mut String, passage: &Passage, look: Look, rows: &BTreeMap<Rank, f64>, end: f64) {
    let x = |time: std::time::Duration| LEFT + WIDTH * time.as_secs_f64() / end;
    let Passage { from, to, bytes, begun, arrived, .. } = passage;
    add(
        svg,
        format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\" stroke-width=\"{}\" marker-end=\"url(#{})\">\
             <title>{bytes} bytes from {} to {}, {} to {}</title></line>\n",
            x(*begun),
            rows[from],
            x(*arrived),
            rows[to],
            look.colour,
            look.width,
            look.id,
            from.0,
            to.0,
            units::seconds(begun.as_secs_f64()),
            units::seconds(arrived.as_secs_f64()),
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
    use cool_collective::{Call, Operation, compile};
    use cool_sim::schedule::{Costs, FabricModel, Placement, trace};

    #[test]
    fn every_message_is_an_arrow_and_a_multicast_a_fan() {
        let fabric: FabricModel = "tree:2x3".parse().unwrap();
        let layout = fabric.layout(Placement::Packed).unwrap();
        for (plan, arrows) in [("multicast", 5), ("cool-p-p", 1 + 2 + 2), ("flat:binomial", 5)] {
            let call = Call::new(Operation::Bcast, Rank(0), 64, 1);
            let schedule = compile(&call, &layout, &plan.parse().unwrap(), |_| true).unwrap();
            let (timing, passages) = trace(&schedule, &layout, &fabric, &Costs::default()).unwrap();
            assert!(passages.iter().all(|p| p.begun < p.arrived && p.arrived <= timing.time), "{passages:?}");
            let svg = draw("a < b", &layout, &passages, timing.time.as_secs_f64()).unwrap();
            assert_eq!(svg.matches("marker-end").count(), arrows, "{plan}");
            assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        }
    }
}
