//! A thread's search for the nearest centroids of its points.

use super::CentroidBound;
use super::moves::{BoundUnit, CentroidMoves, GroupBound, GroupSuspects};
use crate::algorithm::assign::AssignmentStats;
use crate::data::grid::Points;
use cool_distance::{PairDistances, Panels, PointRows, RowSelection};

/// Rows of a table of distances that a thread fills at a time.
const TABLE_ROWS: usize = 32;

/// Data that a thread needs for all its points.
pub(super) struct BoundSearch<'a> {
    pub(super) points: &'a Points,
    pub(super) unit: BoundUnit,
    pub(super) rows: PointRows<'a>,
    pub(super) pairs: PairDistances<'a>,
    pub(super) panels: Panels<'a>,
    pub(super) moves: &'a CentroidMoves,
    /// Whether this iteration's centroids become the next anchor.
    pub(super) anchors: bool,
    pub(super) longest_path: u32,
    /// Cost of a single distance, relative to that of a distance in a block.
    pub(super) single_cost: f64,
}

/// Consecutive points and their bounds.
pub(super) struct PointPiece<'a> {
    pub(super) first: usize,
    pub(super) near: usize,
    pub(super) groups: usize,
    pub(super) labels: &'a mut [u32],
    pub(super) norms: &'a [i64],
    pub(super) bounds: &'a mut [CentroidBound],
    pub(super) rest: &'a mut [GroupBound],
}

impl PointPiece<'_> {
    /// Returns a point's bounds of near centroids, and those of the groups' other centroids.
    fn bounds_mut(&mut self, i: usize) -> (&mut [CentroidBound], &mut [GroupBound]) {
        let rest = &mut self.rest[i * self.groups..(i + 1) * self.groups];
        (&mut self.bounds[i * self.near..(i + 1) * self.near], rest)
    }
}

/// A squared distance, and the label and place of its centroid. Smaller is nearer; of equally near
/// centroids, the first is smaller.
pub(super) type MeasuredDistance = (i64, u32, u32);

/// The state of the search for one point.
struct PointFinding {
    point: u32,
    own: MeasuredDistance,
    best: MeasuredDistance,
    /// Whether bounds of near centroids were updated.
    changed: bool,
    /// A lower bound on the distance from the farthest near centroid, or 0 if no group was
    /// searched.
    farthest: u32,
    /// Measured centroids that are nearer than that, or were the best when they were measured.
    candidates: Vec<MeasuredDistance>,
}

/// Distances that must be measured by blocks.
#[derive(Default)]
struct PendingBlocks {
    /// Points that need all distances.
    points: Vec<u32>,
    /// Groups of which a point needs all distances: the group, and the point's index in `findings`.
    groups: Vec<(u32, u32)>,
    /// The points of `groups`.
    findings: Vec<PointFinding>,
}

/// For each place, the index of the point's bound for that centroid, counted from 1, or 0. All
/// entries must be 0 between points.
struct PlaceMarks(Vec<u32>);

impl PlaceMarks {
    fn set(&mut self, bounds: &[CentroidBound]) {
        (1..).zip(bounds).for_each(|(i, bound)| self.0[bound.place as usize] = i);
    }

    fn clear(&mut self, bounds: &[CentroidBound]) {
        bounds.iter().for_each(|bound| self.0[bound.place as usize] = 0);
    }
}

impl BoundSearch<'_> {
    /// Assigns the points of a piece by their bounds.
    pub(super) fn assign_by_bounds(&self, piece: &mut PointPiece<'_>) -> AssignmentStats {
        let (mut found, mut requested) = (AssignmentStats::default(), PendingBlocks::default());
        let mut marks = PlaceMarks(vec![0; self.panels.len()]);
        for i in 0..piece.labels.len() {
            self.examine(piece, i, &mut marks, &mut found, &mut requested);
        }
        self.measure_groups(piece, &mut found, &mut requested);
        for finding in requested.findings {
            self.assign_point(piece, finding, &mut marks, &mut found);
        }
        AssignmentStats::total([found, self.measure_all(piece, &requested.points)])
    }

    /// Assigns the points of a piece by all distances, and starts their bounds.
    pub(super) fn begin(&self, piece: &mut PointPiece<'_>) -> AssignmentStats {
        let all: Vec<u32> = (0..piece.labels.len() as u32).collect();
        self.measure_all(piece, &all)
    }

    fn measured(&self, squared: i64, place: u32) -> MeasuredDistance {
        (squared, self.moves.groups.labels[place as usize], place)
    }

    /// Measures a single distance.
    fn measure(
        &self,
        piece: &PointPiece<'_>,
        i: usize,
        place: u32,
        found: &mut AssignmentStats,
    ) -> MeasuredDistance {
        found.measured += 1;
        let squared = self.pairs.squared(self.rows, piece.first + i, piece.norms[i], place as usize);
        self.measured(squared, place)
    }

    /// Returns the bound that follows from a distance just measured.
    fn bound(&self, (squared, _, place): MeasuredDistance) -> CentroidBound {
        let distance = self.unit.floor_root(squared);
        let since_anchor = distance.saturating_sub(self.moves.displacement_from_anchor(place));
        CentroidBound { place, plus_path: distance + self.moves.path(place), since_anchor }
    }

    /// Returns a lower bound on the present distance from the centroid of a bound.
    fn lower(&self, bound: &CentroidBound) -> u32 {
        let since_step = bound.plus_path.saturating_sub(self.moves.path(bound.place));
        since_step.max(bound.since_anchor.saturating_sub(self.moves.displacement_from_anchor(bound.place)))
    }

    /// Assigns a point by its bounds. If it needs too many distances to measure them one by one,
    /// adds it to `requested` instead.
    fn examine(
        &self,
        piece: &mut PointPiece<'_>,
        i: usize,
        marks: &mut PlaceMarks,
        found: &mut AssignmentStats,
        requested: &mut PendingBlocks,
    ) {
        let mut finding = self.search_near(piece, i, found);
        let (before, mut many, mut is_marked) = (requested.groups.len(), 0, false);
        for group in 0..piece.groups {
            let limit = self.unit.root_above(finding.best.0);
            let rest = &mut piece.bounds_mut(i).1[group];
            let known = *rest;
            let GroupSuspects { suspects, beyond } = self.moves.suspects(group, known, limit);
            rest.since_step = beyond;
            if suspects.is_empty() {
                continue;
            }
            if !is_marked {
                let bounds = piece.bounds_mut(i).0;
                marks.set(bounds);
                finding.farthest = bounds.iter().map(|bound| self.lower(bound)).max().unwrap_or(0);
                is_marked = true;
            }
            let size = self.moves.groups.run(group).len();
            if suspects.len() as f64 * self.single_cost <= size as f64 {
                self.search_suspects(piece, known, suspects, &mut finding, marks, found);
            } else {
                requested.groups.push((group as u32, requested.findings.len() as u32));
                many += size;
            }
        }
        if is_marked {
            marks.clear(piece.bounds_mut(i).0);
        }
        if 2 * many > self.panels.len() {
            requested.groups.truncate(before);
            requested.points.push(i as u32);
        } else if requested.groups.len() > before {
            requested.findings.push(finding);
        } else {
            self.assign_point(piece, finding, marks, found);
        }
    }

    /// Measures the distance from the point's own centroid, and searches the near ones for a nearer
    /// one.
    fn search_near(&self, piece: &mut PointPiece<'_>, i: usize, found: &mut AssignmentStats) -> PointFinding {
        let own = self.moves.groups.places[piece.labels[i] as usize];
        let own = self.measure(piece, i, own, found);
        let (mut best, mut changed) = (own, false);
        for at in i * piece.near..(i + 1) * piece.near {
            let (bound, limit) = (piece.bounds[at], self.unit.root_above(best.0));
            // Bounds ascend, so all following centroids are too far as well.
            if bound.plus_path.saturating_sub(self.longest_path) > limit {
                break;
            }
            if bound.place == own.2 || self.lower(&bound) > limit {
                continue;
            }
            let measured = self.measure(piece, i, bound.place, found);
            piece.bounds[at] = self.bound(measured);
            best = best.min(measured);
            changed = true;
        }
        PointFinding { point: i as u32, own, best, changed, farthest: 0, candidates: Vec::new() }
    }

    /// Searches the suspects of a group for a nearer centroid. `known` must contain the bounds of
    /// the group before this iteration.
    fn search_suspects(
        &self,
        piece: &mut PointPiece<'_>,
        known: GroupBound,
        suspects: &[u32],
        finding: &mut PointFinding,
        marks: &PlaceMarks,
        found: &mut AssignmentStats,
    ) {
        let i = finding.point as usize;
        for &place in suspects.iter().filter(|place| marks.0[**place as usize] == 0) {
            let lower = self.moves.lower(known, place);
            let beyond = if lower > self.unit.root_above(finding.best.0) {
                Some(lower)
            } else {
                let measured = self.measure(piece, i, place, found);
                (!self.add_candidate(finding, measured)).then(|| self.unit.floor_root(measured.0))
            };
            if let Some(beyond) = beyond {
                let rest = &mut piece.bounds_mut(i).1[self.moves.groups.group_of[place as usize] as usize];
                rest.since_step = rest.since_step.min(beyond);
            }
        }
    }

    /// Records a distance from a centroid that is not near, or has an old bound. Returns whether
    /// the centroid becomes a near one.
    fn add_candidate(&self, finding: &mut PointFinding, measured: MeasuredDistance) -> bool {
        let is_near = measured < finding.best || self.unit.is_below(measured.0, finding.farthest);
        if is_near {
            finding.candidates.push(measured);
            finding.best = finding.best.min(measured);
        }
        is_near
    }

    /// Measures the requested distances between points and all centroids of groups.
    fn measure_groups(
        &self,
        piece: &mut PointPiece<'_>,
        found: &mut AssignmentStats,
        requested: &mut PendingBlocks,
    ) {
        requested.groups.sort_unstable();
        let (mut table, mut rows) = (Vec::new(), Vec::new());
        for of_group in requested.groups.chunk_by(|a, b| a.0 == b.0) {
            let group = of_group[0].0 as usize;
            let run = self.moves.groups.run(group);
            for some in of_group.chunks(TABLE_ROWS) {
                rows.clear();
                let point =
                    |(_, at): &(u32, u32)| requested.findings[*at as usize].point + piece.first as u32;
                rows.extend(some.iter().map(point));
                table.resize(run.len() * some.len(), 0);
                self.panels.all(self.rows, RowSelection::List(&rows), run.clone(), &mut table);
                found.measured += table.len() as u64;
                for ((_, at), distances) in some.iter().zip(table.chunks_exact(run.len())) {
                    self.search_group(piece, group, distances, &mut requested.findings[*at as usize]);
                }
            }
        }
    }

    /// Searches all centroids of a group, given their squared distances, and updates the group's
    /// bounds.
    fn search_group(
        &self,
        piece: &mut PointPiece<'_>,
        group: usize,
        distances: &[i64],
        finding: &mut PointFinding,
    ) {
        let start = self.moves.groups.run(group).start as u32;
        let others = (start..).zip(distances).filter(|(place, squared)| {
            let measured = self.measured(**squared, *place);
            !self.add_candidate(finding, measured)
        });
        let nearest = others.map(|(_, squared)| *squared).min().unwrap_or(i64::MAX);
        piece.bounds_mut(finding.point as usize).1[group] = self.rest(group, nearest);
    }

    /// Returns the bounds of a group's centroids that are not near, given the squared distance of
    /// the nearest of them, or `i64::MAX` if there is none.
    fn rest(&self, group: usize, nearest: i64) -> GroupBound {
        if nearest == i64::MAX {
            return NOTHING;
        }
        let since_step = self.unit.floor_root(nearest);
        let since_anchor = since_step.saturating_sub(self.moves.farthest_from_anchor(group));
        GroupBound { since_step, since_anchor }
    }

    /// Assigns a point to its nearest centroid.
    fn assign_point(
        &self,
        piece: &mut PointPiece<'_>,
        finding: PointFinding,
        marks: &mut PlaceMarks,
        found: &mut AssignmentStats,
    ) {
        let i = finding.point as usize;
        let (bounds, rest) = piece.bounds_mut(i);
        let PointFinding { own, best, mut changed, candidates, .. } = finding;
        if best != own || !candidates.is_empty() {
            self.renew(bounds, rest, best, candidates.into_iter().chain([own]), marks);
            changed = true;
        }
        self.finish_bounds(bounds, rest, changed);
        let weight = self.points.weight(piece.first + i);
        found.record(&mut piece.labels[i], (best.0, best.1), weight);
    }

    /// Updates bounds with measured distances. The nearest of the measured and the near centroids
    /// become the near ones.
    fn renew(
        &self,
        bounds: &mut [CentroidBound],
        rest: &mut [GroupBound],
        best: MeasuredDistance,
        measured: impl Iterator<Item = MeasuredDistance>,
        marks: &mut PlaceMarks,
    ) {
        marks.set(bounds);
        let mut more = Vec::new();
        for measured in measured {
            let bound = self.bound(measured);
            match marks.0[bound.place as usize] {
                0 => more.push(bound),
                at => bounds[at as usize - 1] = bound,
            }
        }
        marks.clear(bounds);
        if more.is_empty() {
            return;
        }
        more.extend_from_slice(bounds);
        // No centroid is nearer than the best. Among those with equal bounds, the best must stay.
        more.select_nth_unstable_by_key(bounds.len(), |bound| (self.lower(bound), bound.place != best.2));
        let (near, removed) = more.split_at(bounds.len());
        bounds.copy_from_slice(near);
        for removed in removed {
            let rest = &mut rest[self.moves.groups.group_of[removed.place as usize] as usize];
            rest.since_step = rest.since_step.min(self.lower(removed));
            rest.since_anchor = rest.since_anchor.min(removed.since_anchor);
        }
    }

    /// Prepares the bounds for the next iteration.
    fn finish_bounds(&self, bounds: &mut [CentroidBound], rest: &mut [GroupBound], changed: bool) {
        if self.anchors {
            for bound in bounds.iter_mut() {
                let lower = self.lower(bound);
                (bound.plus_path, bound.since_anchor) = (lower, lower);
            }
            rest.iter_mut().for_each(|rest| rest.since_anchor = rest.since_step);
        }
        if changed || self.anchors {
            bounds.sort_unstable_by_key(|bound| bound.plus_path);
        }
    }

    /// Measures all distances of the given points of a piece, and restarts their bounds.
    fn measure_all(&self, piece: &mut PointPiece<'_>, points: &[u32]) -> AssignmentStats {
        let k = self.panels.len();
        let mut found = AssignmentStats { measured: (points.len() * k) as u64, ..AssignmentStats::default() };
        let mut table = vec![0; k * TABLE_ROWS.min(points.len())];
        let mut order: Vec<MeasuredDistance> = Vec::with_capacity(k);
        for points in points.chunks(TABLE_ROWS) {
            let rows: Vec<u32> = points.iter().map(|i| piece.first as u32 + i).collect();
            let table = &mut table[..k * points.len()];
            self.panels.all(self.rows, RowSelection::List(&rows), 0..k, table);
            for (&i, distances) in points.iter().zip(table.chunks_exact(k)) {
                let i = i as usize;
                order.clear();
                order.extend((0u32..).zip(distances).map(|(place, squared)| self.measured(*squared, place)));
                let (bounds, rest) = piece.bounds_mut(i);
                self.begin_bounds(&mut order, bounds, rest);
                let weight = self.points.weight(piece.first + i);
                found.record(&mut piece.labels[i], (order[0].0, order[0].1), weight);
            }
        }
        found
    }

    /// Starts bounds from all distances. Moves the smallest distance to the front of `all`.
    fn begin_bounds(
        &self,
        all: &mut [MeasuredDistance],
        bounds: &mut [CentroidBound],
        rest: &mut [GroupBound],
    ) {
        if bounds.len() < all.len() {
            all.select_nth_unstable(bounds.len());
        }
        let (nearest, others) = all.split_at_mut(bounds.len());
        nearest.sort_unstable();
        bounds.iter_mut().zip(nearest).for_each(|(bound, measured)| *bound = self.bound(*measured));
        let mut least = vec![i64::MAX; rest.len()];
        for (squared, _, place) in others {
            let least = &mut least[self.moves.groups.group_of[*place as usize] as usize];
            *least = (*least).min(*squared);
        }
        for (group, (rest, least)) in rest.iter_mut().zip(least).enumerate() {
            *rest = self.rest(group, least);
        }
        self.finish_bounds(bounds, rest, true);
    }
}

/// Bounds of a group in which all centroids are near.
const NOTHING: GroupBound = GroupBound { since_step: u32::MAX, since_anchor: u32::MAX };
