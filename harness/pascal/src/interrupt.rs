//! PMC: the pending interrupts of each unit, and when the device sends an MSI
//! (`nvkm/subdev/mc/gp100.c`, `nvkm/subdev/pci/gp100.c`).

/// The bit of the host engine in `NV_PMC_INTR`.
pub const FIFO: u32 = 1 << 8;

/// State of the interrupt controller.
#[derive(Default)]
pub struct Pmc {
    /// Pending interrupts in the first of two registers. The second one is always zero.
    pub pending: u32,
    allowed: u32,
    /// The device has sent an MSI, and the driver has not rearmed it yet.
    is_sent: bool,
}

impl Pmc {
    /// Unmasks these interrupts.
    pub fn allow(&mut self, bits: u32) {
        self.allowed |= bits;
    }

    /// Masks these interrupts.
    pub fn block(&mut self, bits: u32) {
        self.allowed &= !bits;
    }

    /// The unmasked interrupts.
    pub fn allowed(&self) -> u32 {
        self.allowed
    }

    /// Rearms the MSI.
    pub fn rearm(&mut self) {
        self.is_sent = false;
    }

    /// Whether an MSI is due now. If so, it counts as sent.
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
