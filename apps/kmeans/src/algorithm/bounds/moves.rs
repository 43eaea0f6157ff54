//! How far centroids moved since their distances were measured, and the groups that they form.

use crate::algorithm::assign::{self, NO_LABEL};
use crate::data::grid::{Centroids, Metric, Points, Precision};
use cool_distance::SimdLevel;
use cool_map::threads;
use std::cmp::Reverse;
use std::ops::Range;

/// Lloyd's iterations that find the groups.
const GROUPING_ITERATIONS: usize = 3;

/// Number of centroids per unit of work of a thread.
const PIECE: usize = 256;

/// Maximum length of a path, in units. A longer path is restarted at a new anchor, so that no bound
/// overflows: distances are below 2^30 units.
const PATH_UNITS_MAX: u32 = 1 << 30;

/// The unit of bounds.
#[derive(Clone, Copy)]
pub(super) struct BoundUnit(pub(super) Precision);

impl BoundUnit {
    /// Converts a squared distance to squared units, rounded down.
    fn in_units(self, squared: i64) -> u64 {
        match self.0 {
            Precision::Byte | Precision::Wide => squared.unsigned_abs() << 12,
            Precision::Fine => squared.unsigned_abs() >> 2,
        }
    }

    /// Returns the square root of a squared distance in units, rounded down.
    pub(super) fn floor_root(self, squared: i64) -> u32 {
        let squared = self.in_units(squared);
        // This root is off by at most one, which the next line corrects. It takes much less time
        // than an integer square root.
        let root = (squared as f64).sqrt() as u64;
        (root - u64::from(root * root > squared) + u64::from((root + 1) * (root + 1) <= squared)) as u32
    }

    /// Returns an upper bound on the square root, which exceeds it by at most 1.
    pub(super) fn root_above(self, squared: i64) -> u32 {
        if squared == 0 { 0 } else { self.floor_root(squared) + 1 }
    }

    /// Returns whether the square root, rounded down, is less than a bound.
    pub(super) fn is_below(self, squared: i64, bound: u32) -> bool {
        self.in_units(squared) < u64::from(bound).pow(2)
    }
}

/// Groups of nearby centroids. Bounds refer to a centroid by its place in an order in which each
/// group is contiguous.
pub(super) struct CentroidGroups {
    /// Label of the centroid at each place.
    pub(super) labels: Vec<u32>,
    /// Place of the centroid of each label.
    pub(super) places: Vec<u32>,
    /// Group of each place.
    pub(super) group_of: Vec<u32>,
    /// Place at which each group starts, and the end of the last group.
    starts: Vec<usize>,
}

impl CentroidGroups {
    /// Forms at most `count` groups by a small clustering of the centroids.
    fn new(centroids: &Centroids, count: usize, level: SimdLevel, threads: usize) -> Self {
        let (k, fraction) = (centroids.len(), centroids.precision.fraction());
        let values = centroids.values.iter().map(|value| value >> fraction).collect();
        let points = Points::new(centroids.precision, centroids.dims, values);
        let mut middles = Centroids { values: Vec::new(), ..*centroids };
        (0..count).for_each(|g| middles.values.extend(points.centroid_at(g * k / count)));
        let mut group_of = vec![NO_LABEL; k];
        for _ in 0..GROUPING_ITERATIONS {
            assign::assign(&points, &middles, &mut group_of, level, threads);
            for (g, row) in assign::sum(&points, &group_of, count, threads).iter() {
                let (sums, weight) = row.split_at(points.dims);
                let mean = middles.mean(g, Metric::Euclidean, sums, weight[0]);
                middles.put(g, &mean);
            }
        }
        Self::from_groups(&group_of, count)
    }

    /// Orders the labels by their groups.
    fn from_groups(groups: &[u32], count: usize) -> Self {
        let mut labels: Vec<u32> = (0..groups.len() as u32).collect();
        labels.sort_by_key(|label| groups[*label as usize]);
        let mut places = vec![0; labels.len()];
        (0u32..).zip(&labels).for_each(|(place, label)| places[*label as usize] = place);
        let group_of: Vec<u32> = labels.iter().map(|label| groups[*label as usize]).collect();
        let starts = (0..=count as u32).map(|g| group_of.partition_point(|group| *group < g)).collect();
        Self { labels, places, group_of, starts }
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the places of a group.
    pub(super) fn run(&self, group: usize) -> Range<usize> {
        self.starts[group]..self.starts[group + 1]
    }
}

/// How far the centroids moved, by place.
pub(super) struct CentroidMoves {
    pub(super) groups: CentroidGroups,
    pub(super) now: Centroids,
    anchor: Centroids,
    /// Movements in the last iteration.
    step: Displacements,
    /// Movements from the anchor to the present positions, in a straight line.
    from_anchor: Displacements,
    /// Length of each centroid's path since the last anchor.
    path: Vec<u32>,
    iterations: u32,
}

/// How far centroids moved. Within each group, `order` lists the places by descending distance.
struct Displacements {
    lengths: Vec<u32>,
    order: Vec<u32>,
    /// Longest movement in each group.
    longest: Vec<u32>,
}

/// Result of comparing a group's bound with a limit: the centroids that may be nearer than the
/// limit, and a bound for the others. The centroids may include near ones of the point, which have
/// bounds of their own; the caller must skip them.
pub(super) struct GroupSuspects<'a> {
    /// Places of the centroids that may be nearer than the limit.
    pub(super) suspects: &'a [u32],
    /// A lower bound on the distances from all others.
    pub(super) beyond: u32,
}

/// Lower bounds on the distances between a point and the centroids of a group that are not near.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupBound {
    /// Relative to the positions in the previous iteration.
    pub(super) since_step: u32,
    /// Relative to the positions at the anchor.
    pub(super) since_anchor: u32,
}

impl Displacements {
    fn none(groups: &CentroidGroups) -> Self {
        let k = groups.labels.len();
        Self { lengths: vec![0; k], order: (0..k as u32).collect(), longest: vec![0; groups.len()] }
    }

    fn set(&mut self, lengths: Vec<u32>, groups: &CentroidGroups) {
        self.lengths = lengths;
        for (group, longest) in self.longest.iter_mut().enumerate() {
            let order = &mut self.order[groups.run(group)];
            order.sort_unstable_by_key(|&j| Reverse(self.lengths[j as usize]));
            *longest = order.first().map_or(0, |&j| self.lengths[j as usize]);
        }
    }

    /// Returns which centroids of a run of places may be nearer than `limit` if all distances were
    /// at least `lower` before the movements.
    fn suspects(&self, run: Range<usize>, lower: u32, limit: u32) -> GroupSuspects<'_> {
        let lower = |&j: &u32| lower.saturating_sub(self.lengths[j as usize]);
        let order = &self.order[run];
        let (suspects, others) = order.split_at(order.partition_point(|j| lower(j) <= limit));
        GroupSuspects { suspects, beyond: others.first().map_or(u32::MAX, lower) }
    }
}

impl CentroidMoves {
    /// Starts with centroids in at most `groups` groups.
    pub(super) fn new(centroids: &Centroids, groups: usize, level: SimdLevel, threads: usize) -> Self {
        let k = centroids.len();
        let groups = CentroidGroups::new(centroids, groups.clamp(1, k), level, threads);
        let now = in_place_order(centroids, &groups);
        let [step, from_anchor] = [(); 2].map(|()| Displacements::none(&groups));
        Self { groups, anchor: now.clone(), now, step, from_anchor, path: vec![0; k], iterations: 0 }
    }

    /// Records the present positions of the centroids, and how far they moved.
    pub(super) fn advance(&mut self, centroids: &Centroids, threads: usize) {
        let (unit, now) = (BoundUnit(centroids.precision), in_place_order(centroids, &self.groups));
        let pieces = now.len().div_ceil(PIECE);
        let piece = |i: usize| i * PIECE..((i + 1) * PIECE).min(now.len());
        let moved = |from: &Centroids, j: usize| unit.root_above(squared(from, &now, j));
        let both = threads::map(threads, pieces, |i| -> Vec<(u32, u32)> {
            piece(i).map(|j| (moved(&self.now, j), moved(&self.anchor, j))).collect()
        });
        let (step, from_anchor) = both.into_iter().flatten().unzip();
        self.step.set(step, &self.groups);
        self.from_anchor.set(from_anchor, &self.groups);
        self.path.iter_mut().zip(&self.step.lengths).for_each(|(path, step)| *path += step);
        self.now = now;
        self.iterations += 1;
    }

    /// Returns whether this iteration's centroids become the next anchor: after 1, 2, 4, ...
    /// iterations, because centroids move less and less, and when a path is too long.
    pub(super) fn anchors_anew(&self) -> bool {
        self.iterations.is_power_of_two() || self.longest_path() > PATH_UNITS_MAX
    }

    /// Makes the present positions the anchor, and restarts all paths.
    pub(super) fn anchor_here(&mut self) {
        self.anchor = self.now.clone();
        self.path.fill(0);
    }

    pub(super) fn longest_path(&self) -> u32 {
        self.path.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn path(&self, place: u32) -> u32 {
        self.path[place as usize]
    }

    pub(super) fn displacement_from_anchor(&self, place: u32) -> u32 {
        self.from_anchor.lengths[place as usize]
    }

    /// Returns the longest distance from the anchor among a group's centroids.
    pub(super) fn farthest_from_anchor(&self, group: usize) -> u32 {
        self.from_anchor.longest[group]
    }

    /// Returns a lower bound on the present distance from a centroid that is not near.
    pub(super) fn lower(&self, rest: GroupBound, place: u32) -> u32 {
        let since_step = rest.since_step.saturating_sub(self.step.lengths[place as usize]);
        since_step.max(rest.since_anchor.saturating_sub(self.displacement_from_anchor(place)))
    }

    /// Returns the centroids of a group that may be nearer than `limit` by the bounds of the group.
    pub(super) fn suspects(&self, group: usize, rest: GroupBound, limit: u32) -> GroupSuspects<'_> {
        let both = [(&self.step, rest.since_step), (&self.from_anchor, rest.since_anchor)];
        let [by_step, by_anchor] =
            both.map(|(displacements, bound)| bound.saturating_sub(displacements.longest[group]));
        let beyond = by_step.max(by_anchor);
        if beyond > limit {
            return GroupSuspects { suspects: &[], beyond };
        }
        let [by_step, by_anchor] =
            both.map(|(displacements, bound)| displacements.suspects(self.groups.run(group), bound, limit));
        let key = |o: &GroupSuspects<'_>| (o.suspects.len(), u32::MAX - o.beyond);
        if key(&by_step) <= key(&by_anchor) { by_step } else { by_anchor }
    }
}

/// Returns the centroids in the order of their places.
fn in_place_order(centroids: &Centroids, groups: &CentroidGroups) -> Centroids {
    let values = groups.labels.iter().flat_map(|label| centroids.row(*label as usize)).copied().collect();
    Centroids { values, ..*centroids }
}

/// Returns the squared distance that a centroid moved.
fn squared(from: &Centroids, to: &Centroids, j: usize) -> i64 {
    match from.precision {
        // The compiler can vectorize differences of single words.
        Precision::Byte | Precision::Wide => {
            let pairs = from.row(j).iter().zip(to.row(j));
            pairs.map(|(a, b)| i64::from(i32::from(*a) - i32::from(*b)).pow(2)).sum()
        }
        Precision::Fine => from.coordinates(j).zip(to.coordinates(j)).map(|(a, b)| (a - b).pow(2)).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_enclose_the_distance() {
        let (short, fine) = ((Precision::Wide, 48, 64.0), (Precision::Fine, 61, 0.5));
        for (precision, bits, units) in [short, fine] {
            let unit = BoundUnit(precision);
            for squared in [0, 1, 2, 3, 4, 1 << 30, (1 << bits) - 1, 1 << bits] {
                let real = (squared as f64).sqrt() * units;
                let (low, high) = (unit.floor_root(squared), unit.root_above(squared));
                assert!(f64::from(low) <= real && real <= f64::from(high) && high - low <= 1, "{squared}");
                assert!(unit.is_below(squared, low + 1) && !unit.is_below(squared, low), "{squared}");
            }
        }
    }

    #[test]
    fn groups_are_runs_of_places_that_hold_each_label_once() {
        let groups = CentroidGroups::from_groups(&[2, 0, 2, 3, 0], 5);
        assert_eq!(groups.labels, [1, 4, 0, 2, 3]);
        assert_eq!((0..5).map(|g| groups.run(g)).collect::<Vec<_>>(), [0..2, 2..2, 2..4, 4..5, 5..5]);
        assert_eq!(
            groups.places.iter().map(|p| groups.group_of[*p as usize]).collect::<Vec<_>>(),
            [2, 0, 2, 3, 0]
        );
    }

    #[test]
    fn centroids_that_lie_together_are_in_one_group() {
        let corner = |j: usize| if j.is_multiple_of(2) { 0 } else { 9000 };
        let values = (0..40).flat_map(|j| [corner(j) + j as i16, corner(j)]).collect();
        let centroids = Centroids { precision: Precision::Wide, dims: 2, values };
        let groups = CentroidGroups::new(&centroids, 2, SimdLevel::best(), 2);
        let group = |label: usize| groups.group_of[groups.places[label] as usize];
        assert!((0..40).all(|label| group(label) == group(label % 2)) && group(0) != group(1));
    }
}
