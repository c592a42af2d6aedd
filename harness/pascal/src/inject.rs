//! What the copy engine does wrong, if whoever starts the model wants that.

use std::time::Duration;

/// When it does so. Transfers of all channels count, from one on.
#[derive(Clone, Debug, Default)]
pub struct Inject {
    /// After so many transfers each one ends its channel.
    pub fails_after: Option<u64>,
    /// After so many it hangs, until the driver resets it.
    pub hangs_after: Option<u64>,
    /// The driver is told that this board has none.
    pub has_no_copy_engine: bool,
    /// The transfer with this number takes so long.
    pub slow: Option<(u64, Duration)>,
    transfers: u64,
    is_hung: bool,
}

/// What becomes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out at once.
    Works,
    /// It fails.
    Fails,
    /// The engine hangs.
    Hangs,
    /// It is carried out when this has passed.
    Takes(Duration),
}

impl Inject {
    /// That of the next transfer.
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
            // Once: a reset mends it.
            self.hangs_after = None;
            self.is_hung = true;
            return Fate::Hangs;
        }
        match self.slow {
            Some((number, time)) if number == self.transfers => Fate::Takes(time),
            _ => Fate::Works,
        }
    }

    /// The engine was reset, or has lost its power.
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
