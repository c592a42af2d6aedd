//! A host processor for each machine.
//!
//! When QEMU counts instructions, one thread runs all CPUs of a machine, and another
//! thread runs the clock that edu waits for. Communication between the two threads costs
//! more on two processors: 8 to 20 % of the time of three jobs of `make test` on a virtual
//! host (selftest/switch, the races on the debug kernel, rxe-debug; one run each).

use std::process::Command;
use std::sync::{LazyLock, Mutex};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// The processors that we may run on.
pub static PROCESSORS: LazyLock<Pool> = LazyLock::new(|| Pool::new(allowed()));

/// Processors without a machine.
pub struct Pool(Mutex<Vec<usize>>);

/// A processor for one machine alone. No number if there are more machines than
/// processors, or if the machine needs more than one processor.
pub struct Processor<'a> {
    pool: &'a Pool,
    number: Option<usize>,
}

impl Pool {
    fn new(numbers: Vec<usize>) -> Self {
        Self(Mutex::new(numbers))
    }

    /// Takes a free processor, if there is one.
    pub fn take(&self) -> Processor<'_> {
        Processor {
            pool: self,
            number: self.0.lock().expect("no panic holds it").pop(),
        }
    }

    /// Takes no processor: for a machine whose CPUs run in parallel.
    pub fn none(&self) -> Processor<'_> {
        Processor {
            pool: self,
            number: None,
        }
    }
}

impl Processor<'_> {
    /// A command that runs on this processor, with its children.
    pub fn command(&self, program: &str) -> Command {
        let Some(number) = self.number else {
            return Command::new(program);
        };
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &number.to_string(), program]);
        command
    }
}

impl Drop for Processor<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.0.lock().expect("no panic holds it");
        free.extend(self.number);
    }
}

fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let numbers = 0..CpuSet::count();
    numbers
        .filter(|&number| set.is_set(number).unwrap_or(false))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::proc::shown;

    #[test]
    fn there_is_one_that_we_may_run_on() {
        assert!(!allowed().is_empty());
    }

    #[test]
    fn no_two_machines_have_the_same() {
        let pool = Pool::new(vec![0, 1]);
        let taken: Vec<_> = (0..3).map(|_| pool.take()).collect();
        let commands: Vec<_> = taken.iter().map(|p| shown(&p.command("vng"))).collect();
        let on = |number| format!("taskset --cpu-list {number} vng");
        assert_eq!(commands, [on(1), on(0), "vng".to_owned()]);
        drop(taken);
        assert_eq!(pool.0.lock().unwrap().len(), 2);
    }
}
