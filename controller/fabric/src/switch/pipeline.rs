//! Translates table and group numbers. All other code of the fabric uses table 0 and the group
//! numbers of [`GROUPS`] and [`FAILOVERS`]; messages are translated to the table and numbers that
//! the operator chose, and back.

use crate::api::Pipeline;
use crate::intent::failover::FAILOVERS;
use crate::intent::tables::GROUPS;
use rs_openflow::{Action, Body, GroupId, Instruction, MultipartReply, MultipartRequest, TableId};

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline { table: 0, first_group: GROUPS.start }
    }
}

impl Pipeline {
    /// Number of group numbers of this controller: for trees and, above them, for fast failover.
    const NUMBERS: u32 = FAILOVERS.end - GROUPS.start;
    /// Highest value of [`first_group`](Pipeline::first_group), because group numbers end at
    /// 0xffff_ff00 (OpenFlow 1.3.5, A.2.4).
    pub const LAST_FIRST_GROUP: u32 = 0xffff_ff00 - Pipeline::NUMBERS + 1;
    /// Last table that can hold flows (OpenFlow 1.3.5, A.2.3).
    pub const LAST_TABLE: u8 = 254;

    /// Translates the numbers of the fabric into those of the switch.
    pub(crate) fn translate(&self, body: &mut Body) {
        match body {
            Body::FlowMod(flow) => {
                flow.table = TableId(self.table);
                self.actions(&mut flow.instructions, Pipeline::group);
            }
            Body::GroupMod(group) => group.group = self.group(group.group),
            Body::PacketOut(packet) => self.groups(&mut packet.actions, Pipeline::group),
            Body::MultipartRequest(request) => {
                if let MultipartRequest::Flow(flows) = &mut request.body {
                    flows.table = TableId(self.table);
                }
            }
            _ => {}
        }
    }

    /// Translates the numbers of the switch into those of the fabric, and removes flows of other
    /// tables.
    pub(crate) fn translate_back(&self, body: &mut Body) {
        let Body::MultipartReply(reply) = body else { return };
        match &mut reply.body {
            MultipartReply::Flow(flows) => {
                flows.retain(|flow| flow.table.0 == self.table);
                for flow in flows {
                    flow.table = TableId(0);
                    self.actions(&mut flow.instructions, Pipeline::group_back);
                }
            }
            MultipartReply::GroupDesc(groups) => {
                groups.iter_mut().for_each(|group| group.group = self.group_back(group.group));
            }
            MultipartReply::TableFeatures(tables) => {
                tables.retain(|table| table.table.0 == self.table);
                tables.iter_mut().for_each(|table| table.table = TableId(0));
            }
            _ => {}
        }
    }

    fn actions(&self, instructions: &mut [Instruction], change: fn(&Pipeline, GroupId) -> GroupId) {
        for instruction in instructions {
            if let Instruction::ApplyActions(actions) = instruction {
                self.groups(actions, change);
            }
        }
    }

    fn groups(&self, actions: &mut [Action], change: fn(&Pipeline, GroupId) -> GroupId) {
        for action in actions {
            if let Action::Group(group) = action {
                *group = change(self, *group);
            }
        }
    }

    // The numbers wrap around, so that a number of another controller is never translated into one
    // of the fabric.

    fn group(&self, ours: GroupId) -> GroupId {
        GroupId(ours.0.wrapping_add(self.first_group.wrapping_sub(GROUPS.start)))
    }

    fn group_back(&self, theirs: GroupId) -> GroupId {
        GroupId(theirs.0.wrapping_sub(self.first_group.wrapping_sub(GROUPS.start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rs_openflow::{FlowMod, FlowStats};

    fn to_group(number: u32) -> Vec<Instruction> {
        vec![Instruction::ApplyActions(vec![Action::Group(GroupId(number))])]
    }

    proptest! {
        #[test]
        fn translation_is_reversible_and_keeps_others_numbers_apart(
            table in 0..=Pipeline::LAST_TABLE,
            first_group in 0..=Pipeline::LAST_FIRST_GROUP,
            number in GROUPS.start..FAILOVERS.end,
            foreign: u32,
        ) {
            let pipeline = Pipeline { table, first_group };
            let flow = FlowMod { instructions: to_group(number), ..FlowMod::default() };
            let mut sent = Body::FlowMod(flow.clone());
            pipeline.translate(&mut sent);
            let Body::FlowMod(sent) = sent else { unreachable!() };
            prop_assert_eq!(sent.table, TableId(table));
            let theirs = first_group + (number - GROUPS.start);
            prop_assert_eq!(&sent.instructions, &to_group(theirs));
            let mut other = FlowStats::from(flow.clone());
            other.table = TableId(table.wrapping_add(1));
            let mut reported = Body::MultipartReply(MultipartReply::Flow(vec![other, sent.into()]).into());
            pipeline.translate_back(&mut reported);
            prop_assert_eq!(reported, Body::MultipartReply(MultipartReply::Flow(vec![flow.into()]).into()));
            let ours = GROUPS.start..FAILOVERS.end;
            let is_ours = foreign >= first_group && foreign - first_group < Pipeline::NUMBERS;
            prop_assert_eq!(ours.contains(&pipeline.group_back(GroupId(foreign)).0), is_ours);
        }
    }
}
