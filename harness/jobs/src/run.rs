//! Runs a job in its machine, and judges the results.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use host::paths::Paths;
use host::proc::{quote, tail};
use kernel::Built;
use ktap::Status;
use machine::logscan;
use machine::vm::{Boot, Booter, End, RunResult};
use plan::job::{Job, Same, guest_script, log_name, split, words};
use plan::topology::{Kind, Machine};
use results::report::Outcome;
use setup::rdma_core;

use crate::demo::ScenarioResult;
use crate::{claims, demo, nic, speed, vram};

/// Boots a job and returns its results.
pub fn run(job: &Job<'_>, booter: &Booter<'_>) -> Result<Vec<Outcome>> {
    Ok(play(job, booter)?.1)
}

/// Like [`run`], with the rows of the demo's table if the job plays scenarios.
pub fn play(job: &Job<'_>, booter: &Booter<'_>) -> Result<(Vec<ScenarioResult>, Vec<Outcome>)> {
    let paths = booter.paths;
    let ran = boot(job, booter)?;
    let rows = demo::rows(job, &ran);
    let mut outcomes = Vec::from_iter(rows.iter().map(|row| row.outcome(&job.name, paths)));
    let program = |program: &str| {
        let log = paths.short(&ran.log_of(&log_name(program)));
        let outcomes = self::program(job, program, &ran).into_iter();
        outcomes.map(move |outcome| outcome.with_log(log.clone()))
    };
    for name in &job.spec.programs {
        outcomes.extend(program(name));
    }
    if let Some(test) = job.test.as_ref().filter(|_| outcomes.is_empty()) {
        let reason = format!("no program of this job has a test {test}");
        outcomes.push(Outcome::could_not_run(&job.name, test, reason));
    }
    if job.needs_rdma_core() {
        outcomes.extend(program("pyverbs"));
    }
    if !job.spec.commands.is_empty() {
        let commands = job.spec.commands.iter();
        let told = Vec::from_iter(commands.flat_map(|name| program(name)));
        if job.spec.models().has_connectx(job.spec.machine) {
            let trouble = claims::contradicted(&told, &ran);
            outcomes.push(Outcome::unless(&job.name, "the NIC's log agrees", trouble));
        }
        outcomes.extend(told);
    }
    if job.spec.kunit.is_some() {
        for case in ktap::parse(&ran.console) {
            outcomes.push(Outcome::from_ktap(&job.name, "kunit", case));
        }
    }
    if let Some(floor) = job.spec.at_least {
        let trouble = too_few(&outcomes, floor);
        outcomes.push(Outcome::unless(&job.name, "enough tests pass", trouble));
    }
    outcomes.extend(of_machine(&job.name, &ran, &job.spec.allow, paths));
    if job.spec.models().has_connectx(job.spec.machine) {
        outcomes.extend(nic::outcomes(&job.name, &job.spec, job.topology, &ran));
    }
    outcomes.extend(vram::outcome(&job.name, &job.spec, job.topology, &ran));
    // A single test may copy nothing.
    if job.spec.models().has_copy_engine() && job.test.is_none() {
        let gpus = job.topology.gpus.len();
        outcomes.push(speed::outcome(&job.name, &job.kernel, &ran.dir, gpus));
    }
    if job.spec.kmemleak {
        outcomes.push(Outcome::unless(
            &job.name,
            "no memory is leaked",
            leaks(&ran),
        ));
    }
    // For other outcomes, the console is the most useful log. Its folder has all files.
    let console = paths.short(&ran.console());
    for outcome in &mut outcomes {
        outcome.log_file.get_or_insert_with(|| console.clone());
    }
    Ok((rows, outcomes))
}

/// What the job adds to the kernel's command line.
pub(crate) fn append(job: &Job<'_>, machine: &Machine) -> Vec<String> {
    let for_tests = match job.spec.machine {
        // The demo runs like a user's kernel.
        Kind::Counting if !job.is_demo() => &machine.platform(job.topology).append_for_tests[..],
        _ => &[],
    };
    let mut append = [for_tests, &job.spec.append].concat();
    if let Some(filter) = &job.spec.kunit {
        append.push("kunit.enable=1".to_owned());
        if filter != "*" {
            append.push(format!("kunit.filter_glob={filter}"));
        }
    }
    append
}

/// Shell lines that load modules and run the scripts that come first.
pub(crate) fn prepare(job: &Job<'_>, booter: &Booter<'_>) -> String {
    let paths = booter.paths;
    let mut text = booter.load(&job.spec.load, job.topology);
    let guest = paths.root.join("harness/guest");
    text.push_str(&format!("guest={}\n", quote(&guest.to_string_lossy())));
    for script in &job.spec.prepare {
        let file = guest_script(&paths.root, script);
        text.push_str(&format!(". {}\n", quote(&file.to_string_lossy())));
    }
    text
}

fn boot(job: &Job<'_>, booter: &Booter<'_>) -> Result<RunResult> {
    let paths = booter.paths;
    let step = booter.ui.step(format!("run: {}", job.name));
    booter.boot(
        &Boot {
            name: &job.name,
            kernel: &Built::at(paths, &job.kernel),
            topology: job.topology,
            kind: job.spec.machine,
            models: job.spec.models(),
            append: &append(job, booter.machine),
            icount: job.spec.icount.as_deref(),
            cpus: job.spec.cpus,
            coverage: job.spec.coverage,
            job: script(job, booter)?,
            limit: Duration::from_secs(job.spec.limit),
        },
        &step,
    )
}

/// The whole job as lines of shell.
fn script(job: &Job<'_>, booter: &Booter<'_>) -> Result<String> {
    let paths = booter.paths;
    let programs = Built::at(paths, job.spec.from.as_ref().unwrap_or(&job.kernel));
    let mut text = prepare(job, booter);
    for (name, value) in &job.spec.env {
        text.push_str(&format!("export {name}={}\n", quote(value)));
    }
    text.push_str(&demo::script(job, &programs));
    if !job.spec.programs.is_empty() {
        text.push_str("find_judge\nexport P2PTEST_JUDGE=\"$judge\"\n");
        if job.topology.hotplug {
            text.push_str("export P2PTEST_HOTPLUG=\"$judge\"\n");
        }
    }
    for program in &job.spec.programs {
        let (path, arguments) = words(program);
        let (folder, name) = split(path);
        let file = programs.selftests(folder).join(name);
        text.push_str(&format!(
            "run {} {} {arguments}\n",
            log_name(program),
            quote(&file.to_string_lossy())
        ));
    }
    if job.needs_rdma_core() {
        let tests = rdma_core::tests(paths, booter.ui)?;
        text.push_str(&format!(
            "run pyverbs pyverbs {} {}\n",
            quote(&tests.to_string_lossy()),
            job.spec.pyverbs.join(" "),
        ));
    }
    for command in &job.spec.commands {
        text.push_str(&format!("run {command} {command}\n"));
    }
    if job.spec.kmemleak {
        text.push_str("kmemleak\n");
    }
    if job.spec.coverage {
        text.push_str("coverage\n");
    }
    Ok(text)
}

/// Our machine has everything that tests need, so an unexpected skip counts as a failure.
fn may_skip(job: &Job<'_>, outcome: Outcome) -> Outcome {
    let Some(skips) = &job.spec.skips else {
        return outcome;
    };
    let mut known = skips.iter().chain(&job.topology.skips);
    if outcome.status != Status::Skipped || known.any(|text| outcome.reason.contains(text)) {
        return outcome;
    }
    let reason = format!("skipped, and not expected to: {}", outcome.reason);
    Outcome::failed(&outcome.suite, &outcome.name, reason)
}

fn program(job: &Job<'_>, program: &str, ran: &RunResult) -> Vec<Outcome> {
    let (_, name) = split(words(program).0);
    let file = log_name(program);
    let Some(log) = ran.file(&format!("{file}.log")) else {
        return vec![Outcome::failed(&job.name, name, "it was not started")];
    };
    // Another program of the job may contain the test.
    if job.test.is_some() && log.lines().any(|line| line == "1..0") {
        return Vec::new();
    }
    let cases = ktap::parse(&log);
    let none_failed = cases.iter().all(|case| case.status != Status::Failed);
    let all_skipped = cases.iter().all(|case| case.status == Status::Skipped);
    let mut outcomes: Vec<_> = cases
        .into_iter()
        .map(|case| Outcome::from_ktap(&job.name, name, case))
        .map(|outcome| may_skip(job, outcome))
        .collect();
    // If all tests skip, a program exits with KSFT_SKIP, so that a runner that only looks
    // at the status does not count it as passed.
    let wanted = if all_skipped { "4" } else { "0" };
    let status = ran.file(&format!("{file}.status")).unwrap_or_default();
    if none_failed && status.trim() != wanted {
        outcomes.push(Outcome::failed(
            &job.name,
            &format!("{name}: exit status"),
            format!("{:?}; its last lines:\n{}", status.trim(), tail(&log, 10)),
        ));
    }
    outcomes
}

/// Why too few tests pass.
fn too_few(outcomes: &[Outcome], floor: usize) -> Option<String> {
    let count = |status| {
        let all = outcomes.iter();
        all.filter(|outcome| outcome.status == status).count()
    };
    let passed = count(Status::Passed);
    (passed < floor).then(|| {
        format!(
            "{passed} passed, {} failed, {} skipped; at least {floor} must pass",
            count(Status::Failed),
            count(Status::Skipped)
        )
    })
}

/// The results of a job's machine itself.
pub fn of_machine(job: &str, ran: &RunResult, allowed: &[String], paths: &Paths) -> Vec<Outcome> {
    let mut machine = Outcome::unless(job, "the machine ends well", ran.trouble());
    machine.seconds = Some(ran.time.as_secs_f64());
    let quiet = Outcome::unless(job, "a quiet kernel log", loud(ran, allowed));
    let mut outcomes = vec![machine, quiet];
    if let Some(complaint) = &ran.witness {
        outcomes.push(Outcome::unless(job, "the NIC's witness", complaint.clone()));
    }
    let log = |outcome: Outcome| outcome.with_log(paths.short(&ran.console()));
    outcomes.into_iter().map(log).collect()
}

fn loud(ran: &RunResult, allowed: &[String]) -> Option<String> {
    if ran.end == End::Unheard {
        return Some("the log is not whole".to_owned());
    }
    let mut reports = logscan::reports(&ran.console);
    reports.retain(|report| !logscan::is_allowed(report, allowed));
    let first = reports.first()?;
    Some(format!("{} reports; the first:\n{first}", reports.len()))
}

fn leaks(ran: &RunResult) -> Option<String> {
    match ran.file("kmemleak") {
        None => Some("kmemleak did not answer".to_owned()),
        Some(text) if text.trim().is_empty() => None,
        Some(text) => Some(text),
    }
}

/// Compares the results of two jobs. `None` if one of them did not run.
pub fn compare(same: &Same, outcomes: &[Outcome]) -> Option<Outcome> {
    let results = |job: &str| -> BTreeMap<String, Status> {
        outcomes
            .iter()
            .filter(|outcome| outcome.suite == job)
            .map(|outcome| (outcome.name.clone(), outcome.status))
            .collect()
    };
    let [a, b] = &same.jobs;
    let (one, other) = (results(a), results(b));
    if one.is_empty() || other.is_empty() {
        return None;
    }
    let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
    let differ: Vec<_> = names
        .into_iter()
        .filter(|name| one.get(*name) != other.get(*name))
        .map(|name| {
            let told = |status: Option<&Status>| match status {
                Some(status) => format!("{status:?}").to_lowercase(),
                None => "absent".to_owned(),
            };
            format!(
                "{name}: {} in {a}, {} in {b}",
                told(one.get(name)),
                told(other.get(name))
            )
        })
        .collect();
    let what = format!("{a} and {b} come out the same, {} tests", one.len());
    let trouble = (!differ.is_empty()).then(|| differ.join("\n"));
    Some(Outcome::unless(&same.suite(), &what, trouble))
}

#[cfg(test)]
mod tests;
