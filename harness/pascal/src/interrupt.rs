//! PMC: which parts want an interrupt, and when a message goes out
//! (`nvkm/subdev/mc/gp100.c`, `nvkm/subdev/pci/gp100.c`).

/// The parts with an interrupt, by their bit in `NV_PMC_INTR`.
pub const FIFO: u32 = 1 << 8;

/// Interrupts on their way to the host.
#[derive(Default)]
pub struct Pmc {
    /// What is pending. There are two registers; nothing is in the second one.
    pub pending: u32,
    allowed: u32,
    /// A message was sent, and the driver has not asked for the next one yet.
    is_sent: bool,
}

impl Pmc {
    /// The driver lets these bits through, too.
    pub fn allow(&mut self, bits: u32) {
        self.allowed |= bits;
    }

    /// And no longer.
    pub fn block(&mut self, bits: u32) {
        self.allowed &= !bits;
    }

    /// What it lets through.
    pub fn allowed(&self) -> u32 {
        self.allowed
    }

    /// The driver wants a message again.
    pub fn rearm(&mut self) {
        self.is_sent = false;
    }

    /// Whether a message is to be sent now; it counts as sent.
    pub fn take(&mut self) -> bool {
        let is_due = self.pending & self.allowed != 0 && !self.is_sent;
        self.is_sent |= is_due;
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_out_once_until_the_next_is_asked_for() {
        let mut pmc = Pmc {
            pending: FIFO,
            ..Pmc::default()
        };
        assert!(!pmc.take());
        pmc.allow(!0);
        assert!(pmc.take());
        assert!(!pmc.take());
        pmc.block(!0);
        pmc.rearm();
        assert!(!pmc.take());
        pmc.allow(FIFO);
        assert!(pmc.take());
        pmc.pending = 0;
        pmc.rearm();
        assert!(!pmc.take());
    }
}
