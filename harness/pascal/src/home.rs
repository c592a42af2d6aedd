//! How long the driver waits for data that comes home: from the doorbell to the semaphore
//! that says so.

use std::time::Instant;

use crate::witness::Event;

/// The copies of a channel from video memory to the host's that no semaphore was released
/// after yet.
#[derive(Default)]
pub struct Home {
    rung: Option<Instant>,
    /// When the doorbell of the first one was rung.
    first: Option<Instant>,
    copies: u64,
    len: u64,
}

impl Home {
    /// The doorbell was rung.
    pub fn ring(&mut self) {
        self.rung = Some(Instant::now());
    }

    /// Data was copied.
    pub fn copied(&mut self, len: u64) {
        self.first = self.first.or(self.rung);
        self.copies += 1;
        self.len += len;
    }

    /// Nothing is to be said of these: the engine was slow because it was told to be.
    pub fn forget(&mut self) {
        self.first = None;
        (self.copies, self.len) = (0, 0);
    }

    /// A semaphore was released; what it says, if there were copies before it.
    pub fn released(&mut self, chid: u32) -> Option<Event<'static>> {
        let event = self.first.map(|first| Event::Home {
            chid,
            copies: self.copies,
            len: self.len,
            took_us: first.elapsed().as_micros(),
        });
        self.forget();
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(home: &mut Home) -> Option<(u64, u64)> {
        match home.released(3)? {
            Event::Home {
                chid: 3,
                copies,
                len,
                took_us,
            } => {
                assert!(took_us >= 1000);
                Some((copies, len))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn copies_count_until_a_semaphore_from_the_first_ones_doorbell_on() {
        let mut home = Home::default();
        home.ring();
        assert_eq!(counts(&mut home), None);
        home.copied(4096);
        std::thread::sleep(std::time::Duration::from_millis(1));
        home.ring();
        home.copied(8192);
        assert_eq!(counts(&mut home), Some((2, 12288)));
        assert_eq!(counts(&mut home), None);
        home.copied(4096);
        home.forget();
        assert_eq!(counts(&mut home), None);
    }
}
