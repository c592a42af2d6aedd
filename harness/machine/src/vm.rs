//! Boots a kernel in a topology, runs a job in it, and collects the results. virtme-ng
//! boots. This file sets the command, the time limit, and how the run ended.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use judge::Judge;

use host::paths::Paths;
use host::proc::{indent, quote, shown, stream, tail};
use host::ui::{Step, Ui};
use kernel::{Built, VIRTME_MODS};
use plan::topology::{Kind, Machine, Models, Topology, vram};
use setup::qemu::with_vfio_user;
use setup::{Tools, guest_root, search_path};

mod hotplug;
mod inputs;
pub mod model;
mod processor;
mod qemu;
mod socket;
pub mod trace;

use hotplug::Hotplug;
use model::{Device, Model, Setting};
use processor::{PROCESSORS, Processor};
use socket::at;

/// Boots virtual machines.
pub struct Booter<'a> {
    /// The directories.
    pub paths: &'a Paths,
    /// Shows progress.
    pub ui: &'a Ui,
    /// The installed tools.
    pub tools: &'a Tools,
    /// `QEMU=`
    pub qemu: Option<&'a Path>,
    /// `QEMU_ARGS=`: more arguments for QEMU.
    pub qemu_args: &'a [String],
    /// The settings of every machine.
    pub machine: &'a Machine,
}

/// What to boot, and the job to run.
pub struct Boot<'a> {
    /// Its name in results. Its directory is build/run/<name>.
    pub name: &'a str,
    /// The kernel.
    pub kernel: &'a Built,
    /// The topology.
    pub topology: &'a Topology,
    /// The kind of machine.
    pub kind: Kind,
    /// The models of a parallel machine.
    pub models: Models<'a>,
    /// Added to the kernel's command line.
    pub append: &'a [String],
    /// QEMU's `-icount`, if it differs from the machine's.
    pub icount: Option<&'a str>,
    /// How many processors, if not as many as the machine has.
    pub cpus: Option<u32>,
    /// Whether QEMU logs the executed code, for [`patches::coverage`].
    pub coverage: bool,
    /// Lines of shell. harness/guest/lib.sh defines the functions for them.
    pub job: String,
    /// The time after which the machine counts as hung.
    pub limit: Duration,
}

/// How a machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The job ended, with this status.
    Done(i32),
    /// The job ended with status 0, but its last line is not on the console.
    Unheard,
    /// The kernel panicked, with this line.
    Panicked(String),
    /// It did not end in time.
    TimedOut(Duration),
    /// The machine ended before the job did.
    Lost,
}

/// A machine that has ended.
pub struct RunResult {
    /// Its directory.
    pub dir: PathBuf,
    /// How it ended.
    pub end: End,
    /// Everything on its console.
    pub console: String,
    /// How long it took.
    pub time: Duration,
    /// The complaints of a parallel machine's models. The inner `None` means that there
    /// are none.
    pub witness: Option<Option<String>>,
}

impl RunResult {
    /// A machine whose job has ended well, and that printed nothing. For tests.
    pub fn quiet(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            end: End::Done(0),
            console: String::new(),
            time: Duration::ZERO,
            witness: None,
        }
    }

    /// A file that the job wrote.
    pub fn file(&self, name: &str) -> Option<String> {
        let bytes = fs::read(self.dir.join("out").join(name)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The log of the kernel's console.
    pub fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// The log of the program with that name. If it was not started, the console's.
    pub fn log_of(&self, name: &str) -> PathBuf {
        let log = self.dir.join("out").join(format!("{name}.log"));
        if log.is_file() { log } else { self.console() }
    }

    /// The problem of the machine itself, if there is one.
    pub fn trouble(&self) -> Option<String> {
        let what = match &self.end {
            End::Done(0) => return None,
            End::Done(status) => format!(
                "the job ended with status {status}: {}",
                tail(&self.file("job.log").unwrap_or_default(), 5)
            ),
            End::Unheard => {
                format!("the console was lost before the job ended: \"{LAST_LINE}\" is not on it")
            }
            End::Panicked(line) => line.clone(),
            End::TimedOut(limit) => format!("no end within {} s", limit.as_secs()),
            End::Lost => "the machine went away before the job ended".to_owned(),
        };
        Some(format!(
            "{what}\nThe last lines of its console:\n{}\nThe whole log: {}",
            indent(&tail(&self.console, 25)),
            self.console().display()
        ))
    }
}

const SOCKET: &str = "judge.sock";

/// The last line that harness/guest/lib.sh writes to the kernel's log.
const LAST_LINE: &str = "harness: the job has ended";

impl Booter<'_> {
    /// The directory of the machine with that name.
    pub fn dir(&self, name: &str) -> PathBuf {
        self.paths.runs().join(name)
    }

    /// Moves the files of the machine with that name, so that it can boot again.
    pub fn set_aside(&self, name: &str) -> Result<String> {
        let dir = self.dir(name);
        let mut places = (1..).map(|number| dir.with_extension(format!("failed{number}")));
        let place = places.find(|place| !place.exists()).expect("one is free");
        fs::rename(&dir, &place).with_context(|| dir.display().to_string())?;
        Ok(self.paths.short(&place))
    }

    /// Shell lines that load modules, with their parameters in a topology.
    pub fn load(&self, modules: &[impl AsRef<str>], topology: &Topology) -> String {
        let qemu = qemu::major(self.qemu);
        let parameters = |module| self.machine.parameters(module, qemu, topology);
        let names = modules.iter().map(AsRef::as_ref);
        names
            .map(|module| format!("load {module} {}\n", parameters(module)))
            .collect()
    }

    /// Boots, runs, and waits for the end.
    pub fn boot(&self, boot: &Boot<'_>, step: &Step<'_>) -> Result<RunResult> {
        let dir = self.prepare(boot)?;
        let processor = match boot.kind {
            Kind::Counting => PROCESSORS.take(),
            Kind::Parallel => PROCESSORS.none(),
        };
        let command = self.command(boot, &dir, Some((boot.limit, &processor)))?;
        let models = self.models(boot, &dir, Some(boot.limit))?;
        let judge = JudgePort::open(&dir, boot)?;
        if self.ui.verbose {
            self.ui.say(format!("+ {}", shown(&command)));
        }
        let log = dir.join("console.log");
        let start = Instant::now();
        let mut panic = None;
        let status = stream(command, &log, |line| {
            if let Some((_, text)) = line.split_once("harness: ") {
                step.at(text);
            }
            if panic.is_none() && line.contains("Kernel panic - not syncing") {
                panic = Some(line.to_owned());
            }
        });
        judge.close(&dir);
        status?;
        let time = start.elapsed();
        let witness = match boot.kind {
            Kind::Counting => None,
            Kind::Parallel => Some(model::end(models, &boot.topology.requests)?),
        };
        let console = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let job = fs::read_to_string(dir.join("out/status")).ok();
        let job = job.and_then(|text| text.trim().parse().ok());
        let end = match (panic, job) {
            (Some(line), _) => End::Panicked(line),
            // The exit status is less clear: timeout(1) is killed as well if the machine
            // has to be killed, and any other signal to QEMU looks the same.
            _ if time >= boot.limit => End::TimedOut(boot.limit),
            (None, Some(0)) if !console.contains(LAST_LINE) => End::Unheard,
            (None, Some(status)) => End::Done(status),
            (None, None) => End::Lost,
        };
        Ok(RunResult {
            dir,
            end,
            console,
            time,
            witness,
        })
    }

    /// Starts the models of a parallel machine. They listen when this returns.
    fn models(&self, boot: &Boot<'_>, dir: &Path, limit: Option<Duration>) -> Result<Vec<Model>> {
        let setting = Setting {
            paths: self.paths,
            dir,
            gpus: boot.topology.gpus.len(),
            models: boot.models,
            limit,
        };
        let mut devices = Vec::new();
        if boot.models.pascal.is_some() {
            devices.extend((0..setting.gpus).map(|number| (Device::Pascal, number..number + 1)));
        }
        if boot.models.has_connectx(boot.kind) {
            let nics = boot.topology.nics.len();
            let together = if boot.topology.wire { nics } else { 1 };
            let first = (0..nics).step_by(together);
            devices.extend(first.map(|first| (Device::ConnectX, first..first + together)));
        }
        let start = |(device, numbers)| Model::start(&setting, device, numbers);
        devices.into_iter().map(start).collect()
    }

    /// Runs the job, which may only load modules, and then a shell on our terminal.
    /// `debug`: vng lets gdb attach, and writes crash dumps.
    pub fn shell(&self, boot: &Boot<'_>, debug: bool) -> Result<()> {
        let dir = self.prepare(boot)?;
        let settings = dir.join("shell.rc");
        fs::write(&settings, prompt(boot.topology))?;
        let bash = format!(
            "exec bash --rcfile {} -i",
            quote(&settings.to_string_lossy())
        );
        let text = format!(
            "#!/bin/bash\n{}load() {{ insmod \"$P2PTEST_MODDIR/$1.ko\" \"${{@:2}}\"; }}\n\
             finish() {{ {bash}; }}\n{}{bash}\n",
            environment(boot),
            boot.job
        );
        let shell = dir.join("shell.sh");
        fs::write(&shell, text)?;
        fs::set_permissions(&shell, PermissionsExt::from_mode(0o755))?;
        let mut command = self.command(boot, &dir, None)?;
        if debug {
            command.arg("--debug");
        }
        let models = self.models(boot, &dir, None)?;
        let judge = JudgePort::open(&dir, boot)?;
        self.ui.say(format!("+ {}", shown(&command)));
        host::proc::interactive(&mut command)?;
        judge.close(&dir);
        if let Some(trouble) = model::end(models, &boot.topology.requests)? {
            self.ui.say(trouble);
        }
        Ok(())
    }

    fn prepare(&self, boot: &Boot<'_>) -> Result<PathBuf> {
        if !boot.kernel.image().is_file() {
            bail!(
                "{} is not built: `make build`",
                boot.kernel.image().display()
            );
        }
        let dir = self.dir(boot.name);
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
        }
        fs::create_dir_all(dir.join("out"))?;
        fs::create_dir_all(self.home())?;
        let lib = self.paths.root.join("harness/guest/lib.sh");
        let job = format!(
            "#!/bin/sh\nout={}\n{}. {}\n{}\nfinish\n",
            quote(&dir.join("out").to_string_lossy()),
            environment(boot),
            quote(&lib.to_string_lossy()),
            boot.job.trim_end(),
        );
        fs::write(dir.join("job.sh"), job)?;
        Ok(dir)
    }

    /// Arguments for a guest that does not have the host's files: its root file system, and the
    /// folders that jobs need, by the same paths.
    fn share(&self, boot: &Boot<'_>, dir: &Path, command: &mut Command) -> Result<()> {
        let root = guest_root::get(self.paths, self.ui, boot.topology.arch)?;
        command.arg("--root").arg(&root);
        let guest = self.paths.root.join("harness/guest");
        for (option, folder) in [
            ("--rodir", guest.as_path()),
            ("--rodir", &boot.kernel.dir),
            ("--rwdir", dir),
        ] {
            let inside = folder.strip_prefix("/").context("an absolute path")?;
            // The guest cannot make it, because its root file system is read-only.
            fs::create_dir_all(root.join(inside))?;
            let (inside, folder) = (inside.display(), folder.display());
            command.arg(option).arg(format!("{inside}={folder}"));
        }
        Ok(())
    }

    /// A home directory for virtme-ng's settings and cache, apart from the user's.
    fn home(&self) -> PathBuf {
        self.paths.build().join("run/home")
    }

    /// `limits`: the time limit and the processor. `None` for a shell.
    fn command(
        &self,
        boot: &Boot<'_>,
        dir: &Path,
        limits: Option<(Duration, &Processor<'_>)>,
    ) -> Result<Command> {
        let vng = self.tools.vng_dir.join("vng");
        let mut command = match limits {
            Some((limit, processor)) => {
                // timeout(1) ends the machine in time even if we are killed.
                let mut command = processor.command("timeout");
                command.args(["--kill-after=5", &limit.as_secs().to_string()]);
                command.arg(vng);
                command
            }
            None => Command::new(vng),
        };
        command.current_dir(dir);
        command.env("PATH", search_path(self.tools)?);
        command.env("HOME", self.home());
        command.arg("--run").arg(boot.kernel.image());
        // QEMU's arguments decide about KVM. vng cannot use the virtiofsd of Debian 12.
        command.args(["--disable-kvm", "--force-9p", "--verbose"]);
        command.args(["--memory", self.machine.memory(boot.topology)]);
        let cpus = boot.cpus.unwrap_or(self.machine.cpus);
        command.args(["--cpus", &cpus.to_string()]);
        let arch = boot.topology.arch;
        let qemu = match boot.kind {
            Kind::Counting if !arch.is_foreign() => self.qemu.map(Path::to_owned),
            _ => Some(with_vfio_user(self.paths, self.ui, arch, self.qemu)?),
        };
        if let Some(qemu) = qemu {
            command.arg("--qemu").arg(qemu);
        }
        if let Some(name) = arch.foreign() {
            command.args(["--arch", name]);
            self.share(boot, dir, &mut command)?;
        } else {
            command.args(["--rwdir", "out"]);
        }
        // Without CONFIG_BLOCK, the kernel accepts 9p as root only if it has a name.
        command.args(["--append", "root=/dev/root"]);
        if limits.is_some() {
            // Cache the host's files, because nobody changes them during the run.
            // Otherwise each program that starts would read itself and its libraries
            // again.
            let flags = "version=9p2000.L,trans=virtio,access=any,msize=524288,cache=loose";
            command.args(["--append", &format!("rootflags={flags}")]);
            if !arch.is_foreign() {
                let bin = self.paths.root.join("harness/guest/bin");
                command.args(["--append", &format!("PATH={}", bin.display())]);
            }
        }
        let kinds = self.machine.append(boot.kind, boot.topology);
        for arg in kinds.chain(&boot.topology.append).chain(boot.append) {
            command.arg("--append").arg(arg);
        }
        let mut qemu = self
            .machine
            .qemu(boot.kind, &boot.models, boot.icount, boot.topology);
        if boot.coverage {
            qemu.extend(trace::options(trace::LOG));
        }
        qemu.extend(self.qemu_args.iter().cloned());
        if boot.topology.hotplug {
            qemu.push("-qmp".to_owned());
            qemu.push(format!("unix:{},server=on,wait=off", hotplug::SOCKET));
        }
        for (option, value) in [
            ("-device", "virtio-serial-pci,bus=pcie.0".to_owned()),
            ("-chardev", format!("socket,id=judge,path={SOCKET}")),
            (
                "-device",
                "virtserialport,chardev=judge,name=judge".to_owned(),
            ),
        ] {
            qemu.push(option.to_owned());
            qemu.push(value);
        }
        // virtme-ng passes them to a shell.
        let qemu: Vec<_> = qemu.iter().map(|word| quote(word)).collect();
        command.arg(format!("--qemu-opts={}", qemu.join(" ")));
        if limits.is_some() {
            command.args(["--", "sh"]).arg(dir.join("job.sh"));
        } else {
            command.arg("--shell").arg(dir.join("shell.sh"));
        }
        Ok(command)
    }
}

/// The environment of the guest's scripts, as lines of shell.
fn environment(boot: &Boot<'_>) -> String {
    let mut text = format!(
        "export P2PTEST_MODDIR={}\nexport P2PTEST_EXPECT={}\nexport P2PTEST_DISRUPTIVE=1\n",
        quote(&boot.kernel.modules().to_string_lossy()),
        quote(&boot.topology.expect),
    );
    if boot.topology.arch.is_foreign() {
        // With a root file system of the guest's own, vng expects the modules in it.
        let all = boot.kernel.dir.join(VIRTME_MODS);
        let options = format!("-d {} -S 0.0.0", all.display());
        text.push_str(&format!("export MODPROBE_OPTIONS={}\n", quote(&options)));
    }
    text
}

/// The settings of a shell. Its prompt shows the topology and the loaded modules.
fn prompt(topology: &Topology) -> String {
    format!(
        "_modules() {{ while read -r _name _; do echo -n \" $_name\"; done </proc/modules; }}\n\
         PS1='{}:$(_modules)\\n\\w\\$ '\n",
        topology.name
    )
}

/// The host end of the judge's port in the guest.
struct JudgePort {
    thread: thread::JoinHandle<()>,
}

impl JudgePort {
    fn open(dir: &Path, boot: &Boot<'_>) -> Result<Self> {
        let devices = boot.topology.pluggable(boot.kind, &boot.models);
        let hotplug = Hotplug::new(dir.to_owned(), devices, boot.topology.ports());
        Self::with(dir, boot.topology.gpus.len(), hotplug)
    }

    fn with(dir: &Path, gpus: usize, hotplug: Hotplug) -> Result<Self> {
        let listener = at(dir, SOCKET, |path| UnixListener::bind(path));
        let listener = listener.context("the judge's socket")?;
        let vram = (0..gpus).map(|n| dir.join(vram(n))).collect();
        let mut record = File::create(dir.join("judge.log"))?;
        let thread = thread::spawn(move || {
            let Ok((stream, _)) = listener.accept() else {
                return;
            };
            let mut judge = Judge::new(vram);
            let answer = |question: &str| {
                let answer = hotplug.answer(question);
                answer.unwrap_or_else(|| judge.answer(question))
            };
            // The stream ends with the machine, so that is no error.
            let _ = judge::serve(answer, &stream, &stream, |question, answer| {
                let _ = writeln!(record, "{question}\n{answer}");
            });
        });
        Ok(Self { thread })
    }

    /// Stops the thread after the machine has ended.
    fn close(self, dir: &Path) {
        // If QEMU never connected, this connection ends the thread.
        drop(at(dir, SOCKET, |path| UnixStream::connect(path)));
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests;
