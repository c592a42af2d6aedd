//! Errors of the copy engine that the command line requests.

use std::time::Duration;

/// The requested errors. The transfers of all channels count, from one on.
#[derive(Clone, Debug, Default)]
pub struct Inject {
    /// After this many transfers, each transfer ends its channel.
    pub fails_after: Option<u64>,
    /// After this many transfers, the engine hangs until the driver resets it.
    pub hangs_after: Option<u64>,
    /// The board reports that it has no copy engine.
    pub has_no_copy_engine: bool,
    /// The transfer with this number takes this long.
    pub slow: Option<(u64, Duration)>,
    transfers: u64,
    is_hung: bool,
}

/// The outcome of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The transfer happens at once.
    Works,
    /// The transfer fails.
    Fails,
    /// The engine hangs.
    Hangs,
    /// The transfer happens after this time.
    Takes(Duration),
}

impl Inject {
    /// The outcome of the next transfer.
    pub fn fate(&mut self) -> Fate {
        if self.is_hung {
            return Fate::Hangs;
        }
        self.transfers += 1;
        let is_after = |count: Option<u64>| count.is_some_and(|count| self.transfers > count);
        if is_after(self.fails_after) {
            return Fate::Fails;
        }
        if is_after(self.hangs_after) {
            // The engine hangs only once: a reset repairs it.
            self.hangs_after = None;
            self.is_hung = true;
            return Fate::Hangs;
        }
        match self.slow {
            Some((number, time)) if number == self.transfers => Fate::Takes(time),
            _ => Fate::Works,
        }
    }

    /// Resets the engine, also when it loses power.
    pub fn reset(&mut self) {
        self.is_hung = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(inject: &mut Inject) -> [Fate; 3] {
        [inject.fate(), inject.fate(), inject.fate()]
    }

    #[test]
    fn it_fails_for_ever() {
        let mut inject = Inject {
            fails_after: Some(1),
            ..Inject::default()
        };
        assert_eq!(fates(&mut inject), [Fate::Works, Fate::Fails, Fate::Fails]);
        inject.reset();
        assert_eq!(inject.fate(), Fate::Fails);
    }

    #[test]
    fn it_hangs_until_it_is_reset() {
        let mut inject = Inject {
            hangs_after: Some(1),
            ..Inject::default()
        };
        assert_eq!(fates(&mut inject), [Fate::Works, Fate::Hangs, Fate::Hangs]);
        inject.reset();
        assert_eq!(fates(&mut inject), [Fate::Works; 3]);
    }

    #[test]
    fn one_transfer_is_slow() {
        let time = Duration::from_millis(7);
        let mut inject = Inject {
            slow: Some((2, time)),
            ..Inject::default()
        };
        let slow = Fate::Takes(time);
        assert_eq!(fates(&mut inject), [Fate::Works, slow, Fate::Works]);
    }
}
