//! Draws a schedule as a time-space diagram: a line for each rank, grouped by rack, and simulated
//! time from left to right. A message is an arrow from its first byte to its last; a multicast is a
//! fan of arrows.

use crate::error::Error;
use crate::units;
use cool_collective::{Layout, Rank};
use cool_sim::schedule::MessageTiming;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Maximum number of arrows in a picture.
const ARROWS_MAX: usize = 20_000;

/// Height of a rank's line.
const LINE_HEIGHT: f64 = 24.0;
/// Height of the gap between racks.
const RACK_GAP: f64 = 16.0;
/// Position of the start of time, width of the time axis, and position of the first rack.
const LEFT: f64 = 108.0;
const WIDTH: f64 = 860.0;
const TOP: f64 = 78.0;
/// Approximate number of parts of the axis.
const TICKS: f64 = 8.0;

/// Styles of messages: name, color and width.
const NODE: ArrowStyle = ArrowStyle { id: "n", text: "within a node", color: "#94a3b8", width: 1.0 };
const RACK: ArrowStyle = ArrowStyle { id: "w", text: "within a rack", color: "#2563eb", width: 1.3 };
const ACROSS: ArrowStyle = ArrowStyle { id: "a", text: "across racks", color: "#ea580c", width: 1.5 };
const MULTICAST: ArrowStyle = ArrowStyle { id: "m", text: "multicast", color: "#16a34a", width: 1.3 };

#[derive(Clone, Copy)]
struct ArrowStyle {
    id: &'static str,
    text: &'static str,
    color: &'static str,
    width: f64,
}

/// Returns the diagram as SVG. The time axis ends at `end`, in seconds.
pub(super) fn draw(
    title: &str,
    layout: &Layout,
    messages: &[MessageTiming],
    end: f64,
) -> Result<String, Error> {
    if messages.len() > ARROWS_MAX {
        return Err(Error::Crowded { arrows: messages.len(), most: ARROWS_MAX });
    }
    let rows = rows(layout);
    let bottom = rows.values().fold(TOP, |bottom: f64, y| bottom.max(*y)) + LINE_HEIGHT / 2.0;
    // The picture is wide enough for the title.
    let width = (LEFT + WIDTH + 28.0).max(32.0 + 9.5 * title.len() as f64);
    let height = bottom + 44.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#334155\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"17\" font-weight=\"bold\" fill=\"#0f172a\">{}</text>\n",
        escaped(title),
    );
    let styles: Vec<ArrowStyle> = messages.iter().map(|message| style(layout, message)).collect();
    legend(&mut svg, &styles);
    racks(&mut svg, layout, &rows);
    axis(&mut svg, end, bottom);
    // Longest first, so that short arrows are drawn on top.
    let mut arrows: Vec<(&MessageTiming, ArrowStyle)> = messages.iter().zip(styles).collect();
    arrows.sort_by_key(|(message, _)| std::cmp::Reverse(message.arrived - message.begun));
    let opacity = (60.0 / (messages.len() as f64).sqrt()).clamp(0.25, 0.85);
    add(&mut svg, format_args!("<g stroke-opacity=\"{opacity:.2}\" fill-opacity=\"{opacity:.2}\">\n"));
    for (message, style) in arrows {
        arrow(&mut svg, message, style, &rows, end);
    }
    svg.push_str("</g>\n</svg>\n");
    Ok(svg)
}

fn style(layout: &Layout, message: &MessageTiming) -> ArrowStyle {
    let (from, to) = (message.from, message.to);
    match () {
        () if message.multicast => MULTICAST,
        () if layout.node_of(from) == layout.node_of(to) => NODE,
        () if layout.rack_of(from) == layout.rack_of(to) => RACK,
        () => ACROSS,
    }
}

/// Returns the vertical position of each rank's line.
fn rows(layout: &Layout) -> BTreeMap<Rank, f64> {
    let mut rows = BTreeMap::new();
    let mut y = TOP + LINE_HEIGHT / 2.0;
    for rack in 0..layout.racks() {
        for node in layout.nodes_of_rack(rack) {
            for rank in layout.ranks_of_node(node) {
                rows.insert(*rank, y);
                y += LINE_HEIGHT;
            }
        }
        y += RACK_GAP;
    }
    rows
}

/// Adds the legend of the styles that occur, and the heads of their arrows.
fn legend(svg: &mut String, styles: &[ArrowStyle]) {
    let mut x = 16.0;
    for ArrowStyle { id, text, color, .. } in [NODE, RACK, ACROSS, MULTICAST] {
        if styles.iter().any(|style| style.id == id) {
            add(
                svg,
                format_args!(
                    "<marker id=\"{id}\" viewBox=\"0 0 10 8\" refX=\"9\" refY=\"4\" markerWidth=\"8\" markerHeight=\"6\" \
                     markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 0L10 4L0 8z\" fill=\"{color}\"/></marker>\n\
                     <line x1=\"{x}\" y1=\"48\" x2=\"{}\" y2=\"48\" stroke=\"{color}\" stroke-width=\"2.5\"/>\n\
                     <text x=\"{}\" y=\"52\">{text}</text>\n",
                    x + 24.0,
                    x + 31.0
                ),
            );
            x += 140.0;
        }
    }
}

/// Adds a box for each rack with a line for each rank. The numbers of leaders are bold.
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
                first - LINE_HEIGHT / 2.0,
                right + 4.0,
                last - first + LINE_HEIGHT,
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

/// Adds the time axis, in round steps.
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

fn arrow(svg: &mut String, message: &MessageTiming, style: ArrowStyle, rows: &BTreeMap<Rank, f64>, end: f64) {
    let x = |time: std::time::Duration| LEFT + WIDTH * time.as_secs_f64() / end;
    let MessageTiming { from, to, bytes, begun, arrived, .. } = message;
    add(
        svg,
        format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\" stroke-width=\"{}\" marker-end=\"url(#{})\">\
             <title>{bytes} bytes from {} to {}, {} to {}</title></line>\n",
            x(*begun),
            rows[from],
            x(*arrived),
            rows[to],
            style.color,
            style.width,
            style.id,
            from.0,
            to.0,
            units::seconds(begun.as_secs_f64()),
            units::seconds(arrived.as_secs_f64()),
        ),
    );
}

/// Appends text. Writing to a string does not fail.
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
    use cool_sim::schedule::{AgentCosts, FabricModel, Placement, trace};

    #[test]
    fn every_message_is_an_arrow_and_a_multicast_a_fan() {
        let fabric: FabricModel = "tree:2x3".parse().unwrap();
        let layout = fabric.layout(Placement::Packed).unwrap();
        for (plan, arrows) in [("multicast", 5), ("cool-p-p", 1 + 2 + 2), ("flat:binomial", 5)] {
            let call = Call::new(Operation::Bcast, Rank(0), 64, 1);
            let schedule = compile(&call, &layout, &plan.parse().unwrap(), |_| true).unwrap();
            let (timing, messages) = trace(&schedule, &layout, &fabric, &AgentCosts::default()).unwrap();
            assert!(messages.iter().all(|p| p.begun < p.arrived && p.arrived <= timing.time), "{messages:?}");
            let svg = draw("a < b", &layout, &messages, timing.time.as_secs_f64()).unwrap();
            assert_eq!(svg.matches("marker-end").count(), arrows, "{plan}");
            assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        }
    }
}
