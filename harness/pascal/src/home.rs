//! Measures how long the driver waits for copies from video memory to host memory: from the
//! doorbell to the semaphore release.

use std::time::Instant;

use crate::witness::Event;

/// A channel's copies from video memory to host memory since its last semaphore release.
#[derive(Default)]
pub struct Home {
    rung: Option<Instant>,
    /// When the doorbell of the first copy was rung.
    first: Option<Instant>,
    copies: u64,
    len: u64,
}

impl Home {
    /// Records a doorbell.
    pub fn ring(&mut self) {
        self.rung = Some(Instant::now());
    }

    /// Records a copy.
    pub fn copied(&mut self, len: u64) {
        self.first = self.first.or(self.rung);
        self.copies += 1;
        self.len += len;
    }

    /// Drops these copies: the engine was slow on purpose.
    pub fn forget(&mut self) {
        self.first = None;
        (self.copies, self.len) = (0, 0);
    }

    /// Records a semaphore release. Returns an event if there were copies before it.
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
