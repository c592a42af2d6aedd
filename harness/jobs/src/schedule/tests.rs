use super::*;

use anyhow::bail;

#[test]
fn jobs_run_until_the_first_error() {
    let done = Mutex::new(0);
    // One job at a time. With more, another thread could take all jobs before the error is
    // seen.
    let result = run_all((0..100).collect(), 1, |n| {
        *done.lock().unwrap() += 1;
        if n == 3 { bail!("no") } else { Ok(()) }
    });
    assert!(result.is_err());
    assert_eq!(*done.lock().unwrap(), 4);
    run_all(vec![1, 2, 3], 8, |_| Ok(())).unwrap();
}

#[test]
fn a_job_runs_once_its_kernels_are_there() {
    for at_a_time in [1, 2, 8] {
        let (built, ran) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let build = |kernel: &str| {
            // Gives a job time to run too early.
            std::thread::sleep(std::time::Duration::from_millis(10));
            built.lock().unwrap().push(kernel.to_owned());
            Ok(true)
        };
        let jobs = vec![vec!["plain"], vec!["debug", "base"], vec!["base"], vec![]];
        let kernels = ["base", "debug", "plain"];
        let run = |needs: Vec<&str>| {
            let built = built.lock().unwrap();
            let has = |name: &&str| built.iter().any(|there| there == name);
            assert!(needs.iter().all(has), "{needs:?}");
            ran.lock().unwrap().push(needs.len());
            Ok(())
        };
        run_as_built(jobs, Vec::clone, &kernels, at_a_time, build, run).unwrap();
        assert_eq!(*built.lock().unwrap(), kernels);
        assert_eq!(ran.lock().unwrap().len(), 4);
    }
}

#[test]
fn of_what_can_run_the_first_does() {
    let ran = Mutex::new(Vec::new());
    let jobs = vec![vec!["plain"], vec!["base"], vec![]];
    let run = |needs: Vec<&'static str>| {
        ran.lock().unwrap().push(needs);
        Ok(())
    };
    let kernels = ["base", "plain"];
    let left = run_as_built(jobs.clone(), Vec::clone, &kernels, 1, |_| Ok(true), run);
    assert!(left.unwrap().is_empty());
    assert_eq!(ran.into_inner().unwrap(), jobs);
}

#[test]
fn jobs_run_before_the_next_build() {
    let done = Mutex::new(Vec::new());
    let note = |what: String| done.lock().unwrap().push(what);
    let build = |kernel: &str| {
        note(format!("build {kernel}"));
        Ok(kernel != "debug")
    };
    let run = |needs: Vec<&str>| {
        note(format!("run {}", needs.join("+")));
        Ok(())
    };
    let jobs = vec![vec!["debug"], vec!["plain", "base"], vec!["plain"], vec![]];
    let kernels = ["plain", "debug", "base"];
    let left = run_before_next_build(jobs, Vec::clone, &kernels, 2, build, run).unwrap();
    assert_eq!(left, [["debug"]]);
    let order = "run |build plain|run plain|build debug|build base|run plain+base";
    assert_eq!(done.into_inner().unwrap().join("|"), order);
}

#[test]
fn nobody_waits_for_a_build_that_panics() {
    let jobs = vec![vec!["plain"]];
    let all = || {
        run_as_built(
            jobs,
            Vec::clone,
            &["plain"],
            2,
            |_| panic!("no"),
            |_| Ok(()),
        )
    };
    assert!(std::panic::catch_unwind(all).is_err());
}

#[test]
fn a_kernel_that_cannot_be_used_costs_only_its_own_jobs() {
    let ran = Mutex::new(Vec::new());
    let run = |job| {
        ran.lock().unwrap().push(job);
        Ok(())
    };
    let jobs = vec![vec!["debug"], vec!["plain"], vec!["plain", "debug"]];
    let build = |kernel: &str| Ok(kernel != "debug");
    let left = run_as_built(jobs, Vec::clone, &["debug", "plain"], 2, build, run).unwrap();
    assert_eq!(*ran.lock().unwrap(), [["plain"]]);
    assert_eq!(left, [vec!["debug"], vec!["plain", "debug"]]);
}

#[test]
fn nothing_runs_after_an_error() {
    let build = |kernel: &str| {
        if kernel == "debug" {
            bail!("no")
        } else {
            Ok(true)
        }
    };
    let ran = Mutex::new(0);
    let run = |_| {
        *ran.lock().unwrap() += 1;
        Ok(())
    };
    let jobs = vec![vec!["debug"], vec!["plain"]];
    let result = run_as_built(jobs, Vec::clone, &["debug", "plain"], 2, build, run);
    assert_eq!(result.unwrap_err().to_string(), "no");
    assert_eq!(*ran.lock().unwrap(), 0);
}
