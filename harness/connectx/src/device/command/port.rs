//! Commands of the port and of multicast groups.

use super::{Answer, Status};
use crate::device::{Device, Gid};

/// The port capability that a driver may change: whether there is a communication manager.
const PORT_MAY_CHANGE: u64 = 1 << 16;
/// Limit of queue pairs in a multicast group.
pub(crate) const MAX_MEMBERS: u64 = 8;

impl Device {
    /// The GUID of the port and of the node.
    pub(super) fn guid(&self) -> u64 {
        0x0002_c903_0000_0000 | u64::from(self.options.lid)
    }

    pub(super) fn vport_context(&self, out: &mut [u8]) {
        let l = &self.l.vport_context;
        // Active, link up.
        l.vport_state.set(out, 4);
        l.port_physical_state.set(out, 5);
        l.port_guid.set(out, self.guid());
        l.node_guid.set(out, self.guid());
        l.system_image_guid.set(out, self.guid());
        l.lid.set(out, u64::from(self.options.lid));
        l.sm_lid.set(out, 1);
        l.subnet_timeout.set(out, 18);
        l.cap_mask1.set(out, self.port_capabilities);
        l.cap_mask1_field_select.set(out, PORT_MAY_CHANGE);
    }

    pub(super) fn modify_vport(&mut self, input: &[u8]) -> Answer {
        let l = &self.l.modify_vport;
        let select = l.cap_mask1_field_select.get(input);
        if select & !PORT_MAY_CHANGE != 0 {
            return Err(Status::BadParam);
        }
        let value = l.cap_mask1.get(input) & select;
        self.port_capabilities = self.port_capabilities & !select | value;
        Ok(())
    }

    /// Adds a queue pair to a multicast group. The model sends nothing to groups.
    pub(super) fn join(&mut self, input: &[u8]) -> Answer {
        let (qpn, group) = self.group(input);
        if !self.qps.contains_key(&qpn) {
            return Err(Status::BadResource);
        }
        let members = self.groups.iter().filter(|(_, other)| *other == group);
        if members.count() >= MAX_MEMBERS as usize {
            return Err(Status::NoResources);
        }
        self.groups.insert((qpn, group));
        Ok(())
    }

    pub(super) fn leave(&mut self, input: &[u8]) -> Answer {
        let member = self.group(input);
        let left = self.groups.remove(&member);
        left.then_some(()).ok_or(Status::BadResource)
    }

    fn group(&self, input: &[u8]) -> (u32, Gid) {
        let l = &self.l.mcg;
        let at = l.multicast_gid.byte();
        let mut gid = Gid::default();
        gid.copy_from_slice(&input[at..at + size_of::<Gid>()]);
        (l.qpn.get(input) as u32, gid)
    }
}
