//! The speed of a machine with GPU models, from the models' logs
//! (harness/pascal/src/witness.rs): how long nouveau takes until it can move pages, and
//! how long it waits for pages that migrate to host memory. Both are times of the host.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use plan::topology::pascal;
use results::report::Outcome;

/// The name of the outcome with these times.
const NAME: &str = "the GPU is ready, and pages come home, in time";
/// The kernel that must be fast. The others have a planted defect, count lines or look for
/// errors.
const KERNEL: &str = "plain";

/// A longer time is a failure.
const READY: Duration = Duration::from_secs(60);
const HOME: Duration = Duration::from_millis(5);
/// The least number of copies whose median counts. In a machine that copies twice, one pause
/// of a busy host would be the median.
const COPIES: usize = 16;

/// A line of the log. Other fields do not matter here.
#[derive(Deserialize)]
struct Line {
    us: u64,
    #[serde(flatten)]
    event: Event,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Probe,
    Channel {
        chid: u32,
        what: String,
    },
    Copy {
        chid: u32,
    },
    Fill {
        chid: u32,
    },
    Home {
        took_us: u64,
    },
    #[serde(other)]
    Other,
}

/// The times in the log of one model.
#[derive(Debug, Default, PartialEq, Eq)]
struct Times {
    /// From the driver's first access to the device until the channel that moves pages exists.
    ready: Option<Duration>,
    /// From a doorbell to the semaphore, for pages that migrate to host memory.
    homes: Vec<Duration>,
}

impl Times {
    fn read(log: &str) -> Result<Self> {
        let mut times = Self::default();
        let mut probe = None;
        // The first start of each channel. A suspend makes channels start again.
        let mut started = BTreeMap::new();
        // If the model had to be killed, the last line is cut.
        for (number, line) in log.split_inclusive('\n').enumerate() {
            let Some(line) = line.strip_suffix('\n') else {
                break;
            };
            let Line { us, event } =
                serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
            match event {
                Event::Probe => {
                    probe.get_or_insert(us);
                }
                Event::Channel { chid, what } if what == "started" => {
                    started.entry(chid).or_insert(us);
                }
                Event::Copy { chid } | Event::Fill { chid } if times.ready.is_none() => {
                    let channel = started.get(&chid).context("a copy without a channel")?;
                    let probe = probe.context("a copy without a driver")?;
                    times.ready = Some(Duration::from_micros(channel.saturating_sub(probe)));
                }
                Event::Home { took_us } => times.homes.push(Duration::from_micros(took_us)),
                _ => {}
            }
        }
        Ok(times)
    }
}

/// The times in the logs of a machine's models.
#[derive(Debug, PartialEq, Eq)]
pub struct Speed {
    /// The slowest model.
    ready: Duration,
    /// The median. `None` if no page has migrated to host memory.
    home: Option<Duration>,
    homes: usize,
}

impl Speed {
    /// Reads the logs.
    pub fn read<P: AsRef<Path>>(logs: impl IntoIterator<Item = P>) -> Result<Self> {
        let (mut ready, mut homes) = (None, Vec::new());
        for log in logs {
            let log = log.as_ref();
            let text = std::fs::read_to_string(log).map_err(Into::into);
            let times = text.and_then(|text| Times::read(&text));
            let times = times.with_context(|| log.display().to_string())?;
            // Not every job uses every GPU of its topology.
            ready = ready.max(times.ready);
            homes.extend(times.homes);
        }
        homes.sort_unstable();
        Ok(Self {
            ready: ready.context("no GPU has copied anything")?,
            home: homes.get(homes.len() / 2).copied(),
            homes: homes.len(),
        })
    }

    /// The times in one line, for people.
    pub fn in_words(&self) -> String {
        let ready = format!("the GPU ready after {:.1} s", self.ready.as_secs_f64());
        match self.home {
            None => ready,
            Some(home) => format!(
                "{ready}, pages home {} times in {:.2} ms (median)",
                self.homes,
                home.as_secs_f64() * 1e3
            ),
        }
    }

    /// Which time is too long.
    pub fn trouble(&self) -> Option<String> {
        let mut slow = Vec::new();
        if self.ready > READY {
            slow.push(format!("{} s until the GPU is ready", READY.as_secs()));
        }
        if self.homes >= COPIES && self.home.is_some_and(|home| home > HOME) {
            slow.push(format!("{} ms until pages are home", HOME.as_millis()));
        }
        let told = self.in_words();
        (!slow.is_empty()).then(|| format!("{told}; at most {}", slow.join(", and ")))
    }
}

/// The result of a job with so many GPUs that left its files in `dir`. Its log contains
/// the times, for people.
pub fn outcome(job: &str, kernel: &str, dir: &Path, gpus: usize) -> Outcome {
    let logs = (0..gpus).map(|gpu| dir.join(format!("{}.log", pascal(gpu))));
    let (told, trouble) = match Speed::read(logs) {
        Ok(speed) => (speed.in_words(), speed.trouble()),
        Err(error) => {
            let told = format!("{error:#}");
            (told.clone(), Some(told))
        }
    };
    let mut outcome = Outcome::unless(job, NAME, trouble.filter(|_| kernel == KERNEL));
    outcome.log.push(told);
    outcome
}

/// The times in a job's results, if there are any.
pub fn of(outcomes: &[Outcome]) -> Option<&str> {
    let outcome = outcomes.iter().find(|outcome| outcome.name == NAME)?;
    outcome.log.first().map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log in the model's format. Another channel exists before the one that moves
    /// pages, and all start again after a suspend.
    const LOG: &str = r#"{"n":1,"us":1000000,"event":"probe"}
{"n":2,"us":2000000,"event":"channel","chid":0,"what":"bound"}
{"n":3,"us":2000010,"event":"channel","chid":0,"what":"started"}
{"n":4,"us":31500000,"event":"channel","chid":2,"what":"started"}
{"n":5,"us":40000000,"event":"power","what":"off"}
{"n":6,"us":41000000,"event":"probe"}
{"n":7,"us":42000000,"event":"channel","chid":2,"what":"started"}
{"n":8,"us":50000000,"event":"fill","chid":2,"to":{"aperture":"vram","address":4096},"len":4096}
{"n":9,"us":50000000,"event":"copy","chid":0,"from":{"aperture":"vram","address":4096},"to":{"aperture":"system","address":4096},"len":4096,"late":true}
{"n":10,"us":50000100,"event":"home","chid":2,"copies":1,"len":4096,"took_us":90}
{"n":11,"us":50000200,"event":"home","chid":2,"copies":512,"len":2097152,"took_us":90000}
{"n":12,"us":50000300,"event":"home","chid":2,"copies":1,"len":4096,"took_us":110}
{"n":13,"us":60000000,"event":"end","registers":9}
"#;

    fn speed(logs: &[&str]) -> Result<Speed> {
        let dir = tempfile::tempdir().unwrap();
        let write = |(n, log): (usize, &&str)| {
            let file = dir.path().join(n.to_string());
            std::fs::write(&file, log).unwrap();
            file
        };
        Speed::read(logs.iter().enumerate().map(write))
    }

    #[test]
    fn times_are_those_of_the_first_probe_and_the_median() {
        let speed = speed(&[LOG]).unwrap();
        let told = "the GPU ready after 30.5 s, pages home 3 times in 0.11 ms (median)";
        assert_eq!(speed.in_words(), told);
        assert_eq!(speed.trouble(), None);
    }

    #[test]
    fn the_slowest_gpu_counts_and_one_that_is_not_used_does_not() {
        let unused = LOG.split_inclusive('\n').take(4).collect::<String>();
        let slow = LOG
            .replace("31500000", "61500001")
            .replace(r#""took_us":90"#, r#""took_us":6000"#);
        let told = speed(&[&unused, LOG]).unwrap().in_words();
        assert!(told.contains(" 30.5 s, pages home 3 times"), "{told}");
        let few = speed(&[LOG, &slow]).unwrap().trouble().unwrap();
        assert!(
            few.ends_with("; at most 60 s until the GPU is ready"),
            "{few}"
        );
        let trouble = speed(&[slow.as_str(); 6]).unwrap().trouble().unwrap();
        assert_eq!(
            trouble,
            "the GPU ready after 60.5 s, pages home 18 times in 6.00 ms (median); \
             at most 60 s until the GPU is ready, and 5 ms until pages are home"
        );
    }

    #[test]
    fn each_is_a_limit_of_its_own() {
        let late = LOG.replace("31500000", "61000001");
        let trouble = speed(&[&late]).unwrap().trouble().unwrap();
        assert!(trouble.ends_with("; at most 60 s until the GPU is ready"));
        let on_time = LOG.replace("31500000", "61000000");
        assert_eq!(speed(&[&on_time]).unwrap().trouble(), None);
        let slow = LOG.replace(r#""took_us":110"#, r#""took_us":5001"#);
        let trouble = speed(&[slow.as_str(); 6]).unwrap().trouble().unwrap();
        assert!(trouble.ends_with("; at most 5 ms until pages are home"));
        let in_time = LOG.replace(r#""took_us":110"#, r#""took_us":5000"#);
        assert_eq!(speed(&[&in_time]).unwrap().trouble(), None);
    }

    #[test]
    fn a_job_fails_by_it_on_the_kernel_that_must_be_fast() {
        let dir = tempfile::tempdir().unwrap();
        let of_job = |kernel| outcome("nouveau/switch", kernel, dir.path(), 1);
        assert_eq!(of_job(KERNEL).status, ktap::Status::Failed);
        assert_eq!(of_job("coverage/kernel").status, ktap::Status::Passed);
        let late = LOG.replace("31500000", "61500000");
        for (log, status) in [(LOG, "Passed"), (&late, "Failed")] {
            std::fs::write(dir.path().join("pascal0.log"), log).unwrap();
            let outcome = of_job(KERNEL);
            assert_eq!(format!("{:?}", outcome.status), status);
            let told = of(std::slice::from_ref(&outcome)).unwrap();
            assert!(told.starts_with("the GPU ready after "), "{told}");
            assert_eq!(of_job("debug").status, ktap::Status::Passed);
        }
        assert_eq!(of(&[Outcome::passed("nouveau/switch", "other")]), None);
    }

    #[test]
    fn pages_need_not_come_home() {
        let none = LOG.replace(r#""event":"home""#, r#""event":"bar1""#);
        let speed = speed(&[&none]).unwrap();
        assert_eq!(speed.in_words(), "the GPU ready after 30.5 s");
    }

    #[test]
    fn a_log_that_does_not_tell_is_an_error() {
        let told = |logs: &[&str]| format!("{:#}", speed(logs).unwrap_err());
        assert_eq!(told(&[""]), "no GPU has copied anything");
        assert_eq!(told(&[]), "no GPU has copied anything");
        let (_, without) = LOG.split_once('\n').unwrap();
        let without = without.replace("probe", "power");
        assert!(told(&[&without]).ends_with("a copy without a driver"));
        let without = LOG.replace("started", "bound");
        assert!(told(&[&without]).ends_with("a copy without a channel"));
        assert!(told(&["nonsense\n"]).contains("line 1"));
        let missing = Speed::read([Path::new("/nowhere/log")]).unwrap_err();
        assert!(format!("{missing:#}").starts_with("/nowhere/log: "));
        // A model that was killed has not written its last line.
        let cut = &LOG[..LOG.len() - 3];
        assert_eq!(speed(&[cut]).unwrap(), speed(&[LOG]).unwrap());
    }
}
