//! Progress for people: spinners on a terminal, plain lines without one. And what the tool
//! prints, which must not end it when nobody reads that any more: `print!` panics then.

use std::fmt::Arguments;
use std::io::{self, IsTerminal, Write as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Where progress is shown. Results go to standard output, progress to
/// standard error.
pub struct Ui {
    bars: MultiProgress,
    terminal: bool,
    /// Show every command.
    pub verbose: bool,
}

/// Prints to standard output. Does nothing if nobody reads it.
pub fn print(text: Arguments<'_>) {
    let _ = io::stdout().write_fmt(text);
}

/// Prints to standard error. Does nothing if nobody reads it.
pub fn print_error(text: Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// `print!` that does not panic.
#[macro_export]
macro_rules! out {
    ($($arg:tt)*) => { $crate::ui::print(format_args!($($arg)*)) };
}

/// `println!` that does not panic.
#[macro_export]
macro_rules! outln {
    ($($arg:tt)*) => { $crate::ui::print(format_args!("{}\n", format_args!($($arg)*))) };
}

/// `eprintln!` that does not panic.
#[macro_export]
macro_rules! errln {
    ($($arg:tt)*) => { $crate::ui::print_error(format_args!("{}\n", format_args!($($arg)*))) };
}

/// How often a long step prints a line without a terminal.
const HEARTBEAT: Duration = Duration::from_secs(60);

impl Ui {
    /// `verbose`: show every command.
    pub fn new(verbose: bool) -> Self {
        Self {
            bars: MultiProgress::new(),
            terminal: std::io::stderr().is_terminal(),
            verbose,
        }
    }

    /// Prints a line above the spinners.
    pub fn say(&self, line: impl AsRef<str>) {
        if self.terminal {
            // Only fails if standard error is closed: then nobody reads it.
            let _ = self.bars.println(line.as_ref());
        } else {
            crate::errln!("{}", line.as_ref());
        }
    }

    /// Begins a step that takes time.
    pub fn step(&self, what: impl Into<String>) -> Step<'_> {
        let what = what.into();
        let bar = self.terminal.then(|| {
            let style = ProgressStyle::with_template("{spinner} {prefix} {wide_msg} {elapsed}")
                .expect("the template is right");
            let bar = self.bars.add(ProgressBar::new_spinner().with_style(style));
            bar.set_prefix(what.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if bar.is_none() {
            crate::errln!("{what} ...");
        }
        let now = Instant::now();
        Step {
            ui: self,
            what,
            bar,
            start: now,
            spoken: Mutex::new(now),
        }
    }
}

/// A step that takes time. When dropped, it disappears from the screen. [`Step::done`]
/// leaves a line.
pub struct Step<'a> {
    ui: &'a Ui,
    what: String,
    bar: Option<ProgressBar>,
    start: Instant,
    spoken: Mutex<Instant>,
}

impl Step<'_> {
    /// Shows how far the step is.
    pub fn at(&self, message: impl Into<String>) {
        let message = message.into();
        if let Some(bar) = &self.bar {
            bar.set_message(message);
            return;
        }
        let mut spoken = self.spoken.lock().expect("no panic holds it");
        if spoken.elapsed() >= HEARTBEAT {
            *spoken = Instant::now();
            crate::errln!(
                "{} ... {} ({message})",
                self.what,
                seconds(self.start.elapsed())
            );
        }
    }

    /// Ends the step with a line that stays.
    pub fn done(self, result: impl AsRef<str>) {
        self.ui.say(format!(
            "{}: {} ({})",
            self.what,
            result.as_ref(),
            seconds(self.start.elapsed())
        ));
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            self.ui.bars.remove(bar);
        }
    }
}

/// A duration in a readable form.
pub fn seconds(time: Duration) -> String {
    let all = time.as_secs();
    match all {
        0..60 => format!("{all} s"),
        _ => format!("{} min {} s", all / 60, all % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(seconds(Duration::from_millis(1700)), "1 s");
        assert_eq!(seconds(Duration::from_secs(125)), "2 min 5 s");
    }
}
