//! Builds kernels and runs jobs in parallel. Each job runs as soon as its kernels are built.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex};

use anyhow::Result;

/// Runs several jobs at a time. The first error ends the run. Results remain.
pub fn run_all<T: Send>(
    jobs: Vec<T>,
    at_a_time: usize,
    run: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    run_as_built(jobs, |_| Vec::new(), &[], at_a_time, |_| Ok(true), run)?;
    Ok(())
}

/// Builds kernels in their order, and runs each job as soon as all its kernels are built.
/// `build` returns whether the kernel can be used. Returns the jobs that did not run
/// because one of their kernels cannot be used.
///
/// During builds, one job runs at a time, because a build leaves a processor idle now and
/// then. The first error ends the run. Results remain.
pub fn run_as_built<'k, T: Send>(
    jobs: Vec<T>,
    needs: impl Fn(&T) -> Vec<&'k str> + Sync,
    kernels: &[&'k str],
    at_a_time: usize,
    build: impl Fn(&'k str) -> Result<bool>,
    run: impl Fn(T) -> Result<()> + Sync,
) -> Result<Vec<T>> {
    let queue = Mutex::new(Queue {
        waiting: jobs,
        there: BTreeSet::new(),
        is_building: true,
        failed: None,
    });
    let changed = Condvar::new();
    let lock = || queue.lock().expect("no panic holds it");
    let fail = |error| {
        lock().failed.get_or_insert(error);
        changed.notify_all();
    };
    // Waits for a job whose kernels are built. Returns `None` if there will be none.
    let next = || {
        let mut queue = lock();
        while queue.failed.is_none() {
            let has_all = |job: &T| needs(job).iter().all(|name| queue.there.contains(name));
            match queue.waiting.iter().position(has_all) {
                Some(at) => return Some(queue.waiting.remove(at)),
                None if queue.is_building => {
                    queue = changed.wait(queue).expect("no panic holds it");
                }
                None => break,
            }
        }
        None
    };
    let work = || {
        while let Some(job) = next() {
            if let Err(error) = run(job) {
                fail(error);
            }
        }
    };
    std::thread::scope(|scope| {
        // With `at_a_time` 1, no job runs during a build.
        let beside = usize::from(at_a_time > 1);
        for _ in 0..beside {
            scope.spawn(work);
        }
        let building = Building(|| {
            lock().is_building = false;
            changed.notify_all();
        });
        for kernel in kernels {
            if lock().failed.is_some() {
                break;
            }
            match build(kernel) {
                Ok(true) => {
                    lock().there.insert(kernel);
                    changed.notify_all();
                }
                Ok(false) => (),
                Err(error) => fail(error),
            }
        }
        drop(building);
        for _ in beside..at_a_time.max(1) {
            scope.spawn(work);
        }
    });
    let queue = queue.into_inner().expect("no panic holds it");
    queue.failed.map_or(Ok(queue.waiting), Err)
}

/// Like [`run_as_built`], but runs the jobs of a kernel before it builds the next one. So
/// the first kernels' jobs are done even if the time is over during a later build.
pub fn run_before_next_build<'k, T: Send>(
    mut jobs: Vec<T>,
    needs: impl Fn(&T) -> Vec<&'k str> + Sync,
    kernels: &[&'k str],
    at_a_time: usize,
    build: impl Fn(&'k str) -> Result<bool>,
    run: impl Fn(T) -> Result<()> + Sync,
) -> Result<Vec<T>> {
    let mut there = BTreeSet::new();
    for kernel in std::iter::once(None).chain(kernels.iter().map(Some)) {
        if let Some(kernel) = kernel
            && build(kernel)?
        {
            there.insert(*kernel);
        }
        let has_all = |job: &T| needs(job).iter().all(|name| there.contains(name));
        let (ready, rest) = jobs.into_iter().partition(has_all);
        run_all(ready, at_a_time, &run)?;
        jobs = rest;
    }
    Ok(jobs)
}

/// Ends the building phase when dropped. So jobs do not wait forever if a build panics.
struct Building<F: Fn()>(F);

impl<F: Fn()> Drop for Building<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Jobs that wait for kernels.
struct Queue<'k, T> {
    waiting: Vec<T>,
    /// Kernels that are built.
    there: BTreeSet<&'k str>,
    /// Whether more kernels will follow.
    is_building: bool,
    /// The first error.
    failed: Option<anyhow::Error>,
}

#[cfg(test)]
mod tests;
