//! Memory that QEMU has not shared as a file: registers, and BARs without memory behind
//! them, such as the BARs of a model in another process. The device asks QEMU to access it,
//! with DMA_READ and DMA_WRITE of vfio-user.
//!
//! While QEMU answers, it holds a lock that it also holds while a guest's access to this
//! device waits. So no thread may wait for an answer with the device locked. Instead, the
//! packet stops, the device is unlocked, and the packet begins again once the answer is
//! there. Until then [`crate::server`] defers the guest's register writes, so no command
//! and no doorbell comes between the translation of an address and its use.

use endpoint::proxy::{Access, Answer, Question};

use crate::memory::{Refused, Target};

/// Questions and answers of one packet.
#[derive(Default)]
pub struct Bus {
    /// Whether to ask QEMU. If not, memory that QEMU has not shared does not exist.
    pub is_on: bool,
    /// The queue pair of the packet.
    qpn: u32,
    question: Option<Question>,
    answers: Vec<(Question, Answer)>,
    /// How many of the answers the packet has used since it began.
    used: usize,
}

impl Bus {
    /// Whether a packet waits for an answer.
    pub fn is_asking(&self) -> bool {
        self.question.is_some()
    }

    /// Begins a packet of this queue pair.
    pub fn begin(&mut self, qpn: u32) {
        self.qpn = qpn;
        self.used = 0;
    }

    /// The question to ask QEMU.
    pub fn question(&self) -> Option<&Question> {
        self.question.as_ref()
    }

    /// Stores the answer. Returns the queue pair that continues.
    pub fn answer(&mut self, answer: Answer) -> Option<u32> {
        let question = self.question.take()?;
        self.answers.push((question, answer));
        Some(self.qpn)
    }

    /// Ends the packet and drops its answers.
    pub fn forget(&mut self) {
        self.question = None;
        self.answers.clear();
        self.used = 0;
    }

    fn look_up(&mut self, question: Question) -> Result<&[u8], Refused> {
        let address = question.address;
        let mut rest = self.answers.iter().skip(self.used);
        let Some(at) = rest.position(|(asked, _)| is_repeated(asked, &question)) else {
            self.question = Some(question);
            return Err(Refused::Unmapped(address));
        };
        self.used += at + 1;
        match &self.answers[self.used - 1].1 {
            Ok(data) => Ok(data),
            Err(error) => Err(Refused::Host(format!(
                "QEMU reaches nothing at {address:#x}: error {error}"
            ))),
        }
    }

    /// Reads for the packet, or stops the packet.
    pub fn read(&mut self, address: u64, data: &mut [u8]) -> Result<Target, Refused> {
        let access = Access::Read(data.len());
        let seen = self.look_up(Question { address, access })?;
        if seen.len() != data.len() {
            return Err(Refused::Host(format!("QEMU read {} bytes", seen.len())));
        }
        data.copy_from_slice(seen);
        Ok(Target::Bus)
    }

    /// Writes for the packet, or stops the packet.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<Target, Refused> {
        let access = Access::Write(data.to_vec());
        self.look_up(Question { address, access })?;
        Ok(Target::Bus)
    }
}

/// Whether a packet that has begun again repeats a question. The bytes to write do not count: the
/// guest may have changed them meanwhile, and QEMU has written what it was asked to.
fn is_repeated(asked: &Question, question: &Question) -> bool {
    asked.address == question.address
        && match (&asked.access, &question.access) {
            (Access::Read(asked), Access::Read(len)) => asked == len,
            (Access::Write(asked), Access::Write(data)) => asked.len() == data.len(),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_stops_until_it_is_answered() {
        let mut bus = Bus::default();
        bus.begin(7);
        let mut data = [0; 2];
        assert_eq!(bus.read(0x1000, &mut data), Err(Refused::Unmapped(0x1000)));
        assert_eq!(bus.question().unwrap().access, Access::Read(2));
        assert_eq!(bus.answer(Ok(vec![1, 2])), Some(7));
        assert!(!bus.is_asking());
        assert_eq!(bus.read(0x1000, &mut data), Ok(Target::Bus));
        assert_eq!(data, [1, 2]);
        // Another address or length makes another question.
        assert!(bus.read(0x1000, &mut [0; 3]).is_err() && bus.is_asking());
        assert_eq!(bus.answer(Err(14)), Some(7));
        assert!(bus.read(0x1000, &mut [0; 3]).is_err() && !bus.is_asking());
        assert!(bus.write(0x1000, &[1]).is_err());
        assert_eq!(bus.answer(Ok(Vec::new())), Some(7));
        assert_eq!(bus.write(0x1000, &[1]), Ok(Target::Bus));
        bus.forget();
        assert!(bus.write(0x1000, &[1]).is_err() && bus.is_asking());
    }

    /// A list may name the same memory twice.
    #[test]
    fn two_writes_to_the_same_address_are_asked_for_both() {
        let mut bus = Bus::default();
        for data in [1, 2] {
            bus.begin(7);
            for earlier in 1..data {
                assert_eq!(bus.write(0x1000, &[earlier]), Ok(Target::Bus));
            }
            assert!(bus.write(0x1000, &[data]).is_err() && bus.is_asking());
            let asked = Access::Write(vec![data]);
            assert_eq!(bus.question().unwrap().access, asked);
            assert_eq!(bus.answer(Ok(Vec::new())), Some(7));
        }
    }

    #[test]
    fn a_short_answer_is_refused() {
        let mut bus = Bus::default();
        bus.begin(7);
        let mut data = [0; 4];
        assert!(bus.read(0, &mut data).is_err());
        assert_eq!(bus.answer(Ok(vec![1])), Some(7));
        assert!(matches!(bus.read(0, &mut data), Err(Refused::Host(_))));
    }
}
