//! Starts programs so that none outlives this process. Each program gets its own process
//! group, and Ctrl-C ends every group before this process exits.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Write, pipe};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The groups that run now. The lock also orders "start a group" against "end all groups".
/// After the signal no group can start, so none is missed.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// How long programs have to exit before they are killed.
const GRACE: Duration = Duration::from_secs(3);

/// Whether a signal has asked this process to stop.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Ends every program that this process started when a signal asks it to stop.
pub fn watch_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
    thread::spawn(move || {
        for _ in signals.forever() {
            let again = INTERRUPTED.swap(true, Ordering::SeqCst);
            end_all(if again {
                Signal::SIGKILL
            } else {
                Signal::SIGTERM
            });
            if !again {
                thread::spawn(|| {
                    thread::sleep(GRACE);
                    end_all(Signal::SIGKILL);
                });
            }
        }
    });
    Ok(())
}

fn end_all(signal: Signal) {
    for &group in GROUPS.lock().expect("no panic holds it").iter() {
        // The group may be gone already.
        let _ = killpg(Pid::from_raw(group), signal);
    }
}

/// A program and everything it starts. Dropping it ends them.
struct Group {
    child: Child,
    id: i32,
}

impl Group {
    fn spawn(command: &mut Command) -> Result<Self> {
        let mut groups = GROUPS.lock().expect("no panic holds it");
        if interrupted() {
            bail!("interrupted");
        }
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.process_group(0).spawn().map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                anyhow!("{name} not found: run `make setup`")
            } else {
                anyhow!("{name}: {error}")
            }
        })?;
        let id = child.id() as i32;
        groups.insert(id);
        Ok(Self { child, id })
    }

    fn wait(mut self) -> Result<ExitStatus> {
        let status = self.child.wait()?;
        if interrupted() {
            bail!("interrupted");
        }
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut groups = GROUPS.lock().expect("no panic holds it");
        groups.remove(&self.id);
        // This also kills what the program left behind in its group.
        let _ = killpg(Pid::from_raw(self.id), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// The command as a shell accepts it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| quote(&word.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

/// `word`, quoted for a shell if needed.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs a program and returns its output. An error contains the end of its standard error.
pub fn capture(command: &mut Command) -> Result<String> {
    let (status, out, err) = output(command)?;
    if !status.success() {
        bail!("{}: {}", shown(command), tail(&err, 20));
    }
    Ok(out)
}

/// Like [`capture`], with a file as the program's input.
pub fn capture_from(command: &mut Command, input: &Path) -> Result<String> {
    let file = File::open(input).with_context(|| input.display().to_string())?;
    let (status, out, err) = collect(command.stdin(file))?;
    if !status.success() {
        bail!("{}: {}", shown(command), tail(&err, 20));
    }
    Ok(out)
}

/// Runs a program. Returns its status, standard output and standard error.
pub fn output(command: &mut Command) -> Result<(ExitStatus, String, String)> {
    collect(command.stdin(Stdio::null()))
}

/// Like [`output`], but the caller sets standard input.
pub fn collect(command: &mut Command) -> Result<(ExitStatus, String, String)> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = Group::spawn(command)?;
    let err = group.child.stderr.take().expect("it is piped");
    let err = thread::spawn(move || read_all(err));
    let out = read_all(group.child.stdout.take().expect("it is piped"))?;
    let err = err.join().expect("reading does not panic")?;
    Ok((group.wait()?, out, err))
}

fn read_all(mut source: impl std::io::Read) -> Result<String> {
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A program was ended because its time was over.
#[derive(Debug)]
pub struct OutOfTime;

impl fmt::Display for OutOfTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of time")
    }
}

impl Error for OutOfTime {}

/// Runs a program, writes both of its outputs to `log` as they arrive, and passes each
/// line to `on_line`.
pub fn stream(command: Command, log: &Path, on_line: impl FnMut(&str)) -> Result<ExitStatus> {
    stream_until(None, command, log, on_line)
}

/// Like [`stream`]. At `until` it ends the program, and fails with [`OutOfTime`].
pub fn stream_until(
    until: Option<Instant>,
    mut command: Command,
    log: &Path,
    mut on_line: impl FnMut(&str),
) -> Result<ExitStatus> {
    let mut file = File::create(log).with_context(|| log.display().to_string())?;
    let (reader, writer) = pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let group = Group::spawn(&mut command)?;
    // Close our write ends. Otherwise the reader never sees end of file.
    drop(command);

    let id = Pid::from_raw(group.id);
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let watch = until.map(|until| scope.spawn(move || end_at(until, id, &is_done)));
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            file.write_all(&line)?;
            on_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
            line.clear();
        }
        // The group's id is valid until `wait`, so the watch ends first.
        drop(done);
        let is_late = watch.is_some_and(|watch| watch.join().expect("it does not panic"));
        let status = group.wait()?;
        if is_late {
            bail!(OutOfTime);
        }
        Ok(status)
    })
}

/// Ends a group at `until`. Returns earlier, and `false`, when the other end of `is_done`
/// is dropped.
fn end_at(until: Instant, group: Pid, is_done: &mpsc::Receiver<()>) -> bool {
    let is_over = |left| is_done.recv_timeout(left) == Err(RecvTimeoutError::Timeout);
    if !is_over(until.saturating_duration_since(Instant::now())) {
        return false;
    }
    let _ = killpg(group, Signal::SIGTERM);
    if is_over(GRACE) {
        let _ = killpg(group, Signal::SIGKILL);
    }
    true
}

/// A program that runs in the background. Dropping it ends the program.
pub struct Background(Group);

/// Starts a program in the background. Both of its outputs go to `log`.
pub fn background(command: &mut Command, log: &Path) -> Result<Background> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    Ok(Background(Group::spawn(command)?))
}

impl Background {
    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.0.child.try_wait()?)
    }
}

/// Runs a program in the foreground, in our process group, with our terminal.
///
/// Ctrl-C reaches the program and this process in any order. The program may end from
/// SIGINT before this process sees its own signal, so the program's status counts as well.
pub fn interactive(command: &mut Command) -> Result<ExitStatus> {
    let status = command
        .status()
        .with_context(|| command.get_program().to_string_lossy().into_owned())?;
    if status.signal() == Some(SIGINT) {
        INTERRUPTED.store(true, Ordering::SeqCst);
    }
    if interrupted() {
        bail!("interrupted");
    }
    Ok(status)
}

/// The default number of parallel jobs.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Indents each line by four spaces.
pub fn indent(text: &str) -> String {
    text.lines()
        .map(|line| format!("    {line}\n"))
        .collect::<String>()
        .trim_end()
        .to_owned()
}

/// Whether a process ends within seconds. A killed orphan stays a zombie until its new
/// parent reaps it. For tests.
pub fn ends(pid: &str) -> bool {
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.ok()
            .and_then(|stat| stat.rsplit(") ").next()?.chars().next())
    };
    (0..200).any(|_| {
        thread::sleep(Duration::from_millis(20));
        matches!(state(), None | Some('Z' | 'X'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{INTERRUPTED, Verdict, status_of};

    #[test]
    fn both_outputs_reach_log_and_reader() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let mut lines = Vec::new();
        let status = stream(command, &log, |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(status.code(), Some(3));
        lines.sort();
        assert_eq!(lines, ["err", "out"]);
        assert_eq!(std::fs::read_to_string(&log).unwrap().len(), 8);
    }

    #[test]
    fn a_program_ends_when_its_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let run = |milliseconds, script: &str| {
            let mut sh = Command::new("sh");
            sh.args(["-c", script]);
            let until = Instant::now() + Duration::from_millis(milliseconds);
            stream_until(Some(until), sh, &log, |_| ())
        };
        assert!(run(60_000, "true").unwrap().success());
        assert_eq!(run(60_000, "exit 3").unwrap().code(), Some(3));
        for trap in ["", "trap '' TERM; "] {
            let error = run(200, &format!("{trap}echo $$; sleep 60; sleep 60")).unwrap_err();
            assert!(error.downcast_ref::<OutOfTime>().is_some(), "{error}");
            let pid = std::fs::read_to_string(&log).unwrap();
            assert!(ends(&pid), "process {} is still there", pid.trim());
        }
    }

    #[test]
    fn a_failure_says_what_the_program_said() {
        let error = capture(Command::new("sh").args(["-c", "echo why >&2; false"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }

    #[test]
    fn a_missing_program_says_how_to_get_it() {
        let error = capture(&mut Command::new("p2p-no-such-program")).unwrap_err();
        assert!(error.to_string().contains("make setup"), "{error}");
    }

    #[test]
    fn nothing_of_a_group_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let script = format!(
            "sleep 1000 >/dev/null 2>&1 & echo $! > {}",
            pid_file.display()
        );
        capture(Command::new("sh").args(["-c", &script])).unwrap();
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        assert!(ends(&pid), "process {} is still there", pid.trim());
    }

    #[test]
    fn ctrl_c_leaves_nothing_running() {
        const SCRIPT: &str = "P2P_TEST_SCRIPT";
        // This test starts itself again as the program that gets the signal.
        if let Ok(script) = std::env::var(SCRIPT) {
            watch_signals().unwrap();
            let mut sh = Command::new("sh");
            sh.args(["-c", &script]);
            let result = stream(sh, Path::new("log"), |_| ()).map(|_| Verdict::Passed);
            assert_eq!(result.as_ref().unwrap_err().to_string(), "interrupted");
            std::process::exit(status_of(&result).into());
        }
        // The started program exits on SIGTERM in the first case and ignores it in the second.
        for trap in ["", "trap '' TERM; "] {
            let dir = tempfile::tempdir().unwrap();
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "proc::tests::ctrl_c_leaves_nothing_running"])
                .env(SCRIPT, format!("{trap}sleep 60 & echo $! >pid; wait"))
                .current_dir(dir.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let started = || {
                let pid = std::fs::read_to_string(dir.path().join("pid"));
                pid.ok().filter(|pid| pid.ends_with('\n'))
            };
            let pid = soon(started).expect("it starts");
            let id = Pid::from_raw(child.id() as i32);
            nix::sys::signal::kill(id, Signal::SIGINT).unwrap();
            let status = soon(|| child.try_wait().unwrap());
            let _ = child.kill();
            let code = status.expect("it ends").code();
            assert_eq!(code, Some(INTERRUPTED.into()), "{trap}");
            assert!(ends(&pid), "process {} is still there", pid.trim());
        }
    }

    #[test]
    fn ctrl_c_counts_that_only_the_program_in_the_foreground_has_seen() {
        const CHILD: &str = "P2P_TEST_FOREGROUND";
        // The flag belongs to the whole process, so the test runs in another one.
        if std::env::var_os(CHILD).is_some() {
            let mut sh = Command::new("sh");
            let result = interactive(sh.args(["-c", "kill -s INT $$"]));
            assert_eq!(result.as_ref().unwrap_err().to_string(), "interrupted");
            std::process::exit(status_of(&result.map(|_| Verdict::Passed)).into());
        }
        let name = "ctrl_c_counts_that_only_the_program_in_the_foreground_has_seen";
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("proc::tests::{name}")])
            .env(CHILD, "1")
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(INTERRUPTED.into()));
    }

    /// Waits some seconds for `there` to return a value.
    fn soon<T>(mut there: impl FnMut() -> Option<T>) -> Option<T> {
        (0..1000).find_map(|_| {
            thread::sleep(Duration::from_millis(20));
            there()
        })
    }

    #[test]
    fn quoting() {
        assert_eq!(quote("a-b=c/d"), "a-b=c/d");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }
}
