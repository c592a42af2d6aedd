//! Decodes a channel's push buffer: headers, and the methods that they encode
//! (`include/nvhw/class/cl906f.h`).

use std::collections::VecDeque;

/// A write to a register of an engine or of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// The channel's object that the method is for.
    pub subchannel: usize,
    /// The register.
    pub method: u32,
    /// The value.
    pub data: u32,
}

/// How the method advances from one data word to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Each,
    Once,
    Never,
}

/// A header that still has data words.
#[derive(Clone, Copy, Debug)]
struct Header {
    left: u32,
    method: u32,
    subchannel: usize,
    step: Step,
}

/// Words that are not decoded yet.
#[derive(Default)]
pub struct Commands {
    words: VecDeque<u32>,
    header: Option<Header>,
}

impl Commands {
    /// Appends the next segment.
    pub fn extend(&mut self, words: impl IntoIterator<Item = u32>) {
        self.words.extend(words);
    }

    /// Whether no word is left.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The next method, or none if no word is left. The error is a word that is no valid header.
    pub fn next_method(&mut self) -> Result<Option<Method>, u32> {
        while let Some(word) = self.words.pop_front() {
            let method = match self.header.take() {
                Some(header) => Some(self.data(header, word)),
                None => self.header(word)?,
            };
            if method.is_some() {
                return Ok(method);
            }
        }
        Ok(None)
    }

    fn data(&mut self, mut header: Header, data: u32) -> Method {
        let Header {
            method, subchannel, ..
        } = header;
        header.left -= 1;
        if header.step != Step::Never {
            header.method = (method + 4) & 0x3ffc;
        }
        if header.step == Step::Once {
            header.step = Step::Never;
        }
        self.header = (header.left > 0).then_some(header);
        Method {
            subchannel,
            method,
            data,
        }
    }

    fn header(&mut self, word: u32) -> Result<Option<Method>, u32> {
        let method = (word & 0xfff) << 2;
        let subchannel = ((word >> 13) & 7) as usize;
        let count = (word >> 16) & 0x1fff;
        let step = match word >> 29 {
            // A zero word is a no-op. The other words of this kind are device masks for SLI.
            0 => return Ok(None),
            1 => Step::Each,
            3 => Step::Never,
            4 => {
                return Ok(Some(Method {
                    subchannel,
                    method,
                    data: count,
                }));
            }
            5 => Step::Once,
            // End of the segment: skip the rest.
            7 => {
                self.words.clear();
                return Ok(None);
            }
            _ => return Err(word),
        };
        self.header = (count > 0).then_some(Header {
            left: count,
            method,
            subchannel,
            step,
        });
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A header of one kind and its data. The kind is in the header's upper three bits.
    fn run() -> impl Strategy<Value = (u32, usize, u32, Vec<u32>)> {
        let kind = prop_oneof![Just(0u32), Just(1), Just(3), Just(4), Just(5)];
        let method = (0..0x1000u32).prop_map(|method| method << 2);
        let data = prop::collection::vec(any::<u32>(), 0..12);
        (kind, 0..8usize, method, data)
    }

    /// The words, and the methods that they encode.
    fn written(
        (kind, subchannel, method, data): (u32, usize, u32, Vec<u32>),
    ) -> (Vec<u32>, Vec<Method>) {
        let is_short = kind == 0 || kind == 4;
        let data = if is_short { vec![] } else { data };
        // A short header has data in place of a count.
        let count = if is_short { 0x1555 } else { data.len() as u32 };
        let header = kind << 29 | count << 16 | (subchannel as u32) << 13 | method >> 2;
        let at = |method: u32, data| Method {
            subchannel,
            method: method % 0x4000,
            data,
        };
        let all = (0u32..).zip(&data);
        let methods = match kind {
            0 => vec![],
            1 => all.map(|(n, data)| at(method + 4 * n, *data)).collect(),
            3 => all.map(|(_, data)| at(method, *data)).collect(),
            4 => vec![at(method, count)],
            _ => all
                .map(|(n, data)| at(method + 4 * n.min(1), *data))
                .collect(),
        };
        ([vec![header], data].concat(), methods)
    }

    proptest! {
        /// Encoded methods decode to the same list, wherever a segment ends.
        #[test]
        fn random_commands_are_read_as_they_were_written(
            runs in prop::collection::vec(run(), 0..20),
            segment in 1..60usize,
        ) {
            let (words, methods): (Vec<_>, Vec<_>) = runs.into_iter().map(written).unzip();
            let mut commands = Commands::default();
            let mut read = Vec::new();
            for segment in words.concat().chunks(segment) {
                commands.extend(segment.iter().copied());
                while let Some(method) = commands.next_method().unwrap() {
                    read.push(method);
                }
            }
            prop_assert_eq!(read, methods.concat());
        }
    }
}
