//! `SHARD=1/4`: the first of four parts. Together the parts cover everything.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use host::status::Usage;

/// One of several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: usize,
    of: usize,
}

/// A set of names that must stay in one shard, because their results are compared.
#[derive(Clone, Debug, Default)]
pub struct Unit {
    /// Jobs, checks, or kernels whose build is a test.
    pub names: Vec<String>,
    /// How long they take without kernel builds.
    pub seconds: f64,
    /// Kernels that must be built for them.
    pub kernels: BTreeSet<String>,
}

/// The cost in seconds of one more kernel for a shard: a build from scratch.
const KERNEL: f64 = 600.0;

impl Shard {
    /// `1/4`
    pub fn new(text: &str) -> Result<Self> {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((number, of)) if 0 < number && number <= of => Ok(Self { number, of }),
            _ => bail!(Usage(format!(
                "SHARD={text}: it is a number and how many shards there are, SHARD=1/4 to SHARD=4/4"
            ))),
        }
    }

    /// The names in this shard. Each name is in exactly one shard if every shard gets the
    /// same units.
    pub fn picked(self, mut units: Vec<Unit>) -> BTreeSet<String> {
        // Sorted by kernels, units with the same kernels mostly end up in one shard.
        units.sort_by(|one, other| (&one.kernels, &one.names).cmp(&(&other.kernels, &other.names)));
        // If there are more shards than units, the rest are empty.
        let mut ends = vec![0];
        ends.extend(cut(&units, self.of.min(units.len())));
        let Some(&end) = ends.get(self.number) else {
            return BTreeSet::new();
        };
        let picked = units.drain(ends[self.number - 1]..end);
        picked.flat_map(|unit| unit.names).collect()
    }
}

/// Cuts a row into `parts` parts so that the longest part is as short as possible. Returns
/// the end of each part.
fn cut(units: &[Unit], parts: usize) -> Vec<usize> {
    let count = units.len();
    // For each number of units: the time of the longest part, and where the last part begins.
    let mut rounds: Vec<Vec<(f64, usize)>> = Vec::new();
    let mut before = vec![f64::INFINITY; count + 1];
    before[0] = 0.0;
    for _ in 0..parts {
        let mut round = Vec::with_capacity(count + 1);
        for end in 0..=count {
            let mut best = (before[end], end);
            let (mut seconds, mut kernels) = (0.0, BTreeSet::new());
            for start in (0..end).rev() {
                seconds += units[start].seconds;
                kernels.extend(&units[start].kernels);
                let last = seconds + KERNEL * kernels.len() as f64;
                let longest = before[start].max(last);
                if longest < best.0 {
                    best = (longest, start);
                }
            }
            round.push(best);
        }
        before = round.iter().map(|(longest, _)| *longest).collect();
        rounds.push(round);
    }
    let mut ends = Vec::with_capacity(parts);
    let mut end = count;
    for round in rounds.iter().rev() {
        ends.push(end);
        end = round[end].1;
    }
    ends.reverse();
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str, seconds: f64, kernels: &[&str]) -> Unit {
        Unit {
            names: vec![name.to_owned()],
            seconds,
            kernels: kernels.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    fn shards(units: &[Unit], of: usize) -> Vec<BTreeSet<String>> {
        let shard = |number| Shard { number, of }.picked(units.to_vec());
        (1..=of).map(shard).collect()
    }

    #[test]
    fn a_shard_is_one_of_some() {
        assert_eq!(Shard::new("4/4").unwrap(), Shard { number: 4, of: 4 });
        let bad = [
            "", "x", "0/4", "5/4", "1/0", "0/0", "1", "1/", "/4", "1/4/2", "-1/4",
        ];
        for text in bad {
            let error = Shard::new(text).unwrap_err();
            assert!(error.downcast_ref::<Usage>().is_some());
            assert!(error.to_string().starts_with(&format!("SHARD={text}: ")));
        }
    }

    #[test]
    fn each_name_is_in_one_shard_whatever_the_order() {
        let kernels = ["plain", "debug", "base/kernel"];
        let mut units = Vec::new();
        for number in 0..50 {
            let kernel = kernels[number % 3];
            units.push(unit(
                &format!("job{number}"),
                (number * 7 % 90) as f64,
                &[kernel],
            ));
        }
        for of in [1, 2, 3, 4, 7, 50, 60] {
            let parts = shards(&units, of);
            assert_eq!(parts.iter().map(BTreeSet::len).sum::<usize>(), units.len());
            let all: BTreeSet<_> = parts.iter().flatten().collect();
            assert_eq!(all.len(), units.len());
            units.reverse();
            assert_eq!(shards(&units, of), parts);
        }
    }

    #[test]
    fn shards_take_as_long_as_each_other() {
        let mut units = Vec::from_iter((0..10).map(|n| unit(&format!("short{n}"), 10.0, &[])));
        units.push(unit("very-long", 90.0, &[]));
        let parts = shards(&units, 2);
        let of_the_long = parts.iter().find(|part| part.contains("very-long"));
        assert!(of_the_long.unwrap().len() <= 2, "{parts:?}");
        // With equal times, the number of units decides.
        for unit in &mut units {
            unit.seconds = 60.0;
        }
        let sizes = Vec::from_iter(shards(&units, 3).iter().map(BTreeSet::len));
        assert!(sizes.iter().all(|size| (3..=4).contains(size)), "{sizes:?}");
    }

    #[test]
    fn a_kernel_is_built_in_few_shards() {
        let kernels = ["plain", "debug", "modules", "no-p2p"];
        let mut units = Vec::new();
        for number in 0..40 {
            let kernel = kernels[number % 4];
            units.push(unit(&format!("job{number}"), 30.0, &[kernel]));
        }
        for part in shards(&units, 4) {
            let numbers = part
                .iter()
                .map(|name| name[3..].parse::<usize>().unwrap() % 4);
            assert_eq!(numbers.collect::<BTreeSet<_>>().len(), 1, "{part:?}");
        }
    }

    #[test]
    fn there_may_be_nothing_for_a_shard() {
        let parts = shards(&[unit("style", 1.0, &[])], 4);
        assert_eq!(parts.iter().filter(|part| part.is_empty()).count(), 3);
        assert!(shards(&[], 2).iter().all(BTreeSet::is_empty));
        let shard = Shard::new("1000000000/1000000000").unwrap();
        assert!(shard.picked(vec![unit("style", 1.0, &[])]).is_empty());
    }
}
