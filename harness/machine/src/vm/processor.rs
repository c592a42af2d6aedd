//! A processor of the host for each machine.
//!
//! While QEMU counts instructions it runs all of a machine's CPUs in one thread, and
//! the clock that edu waits for in another one. What goes from one to the other and
//! back costs more on two processors: 8 to 20 % of the time of three jobs of `make
//! test` on a virtual host (selftest/switch, debug-race, rxe-debug; one run each).

use std::process::Command;
use std::sync::{LazyLock, Mutex};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Those that we may run on.
pub static PROCESSORS: LazyLock<Pool> = LazyLock::new(|| Pool::new(allowed()));

/// Processors that no machine has.
pub struct Pool(Mutex<Vec<usize>>);

/// A processor that no other machine of ours has meanwhile; none if there are more
/// machines than processors, or if the machine needs more than one.
pub struct Processor<'a> {
    pool: &'a Pool,
    number: Option<usize>,
}

impl Pool {
    fn new(numbers: Vec<usize>) -> Self {
        Self(Mutex::new(numbers))
    }

    /// The next free one.
    pub fn take(&self) -> Processor<'_> {
        Processor {
            pool: self,
            number: self.0.lock().expect("no panic holds it").pop(),
        }
    }

    /// No processor of its own: for a machine whose CPUs run side by side.
    pub fn none(&self) -> Processor<'_> {
        Processor {
            pool: self,
            number: None,
        }
    }
}

impl Processor<'_> {
    /// A program that is to run there, and what it starts.
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
